// Writes COUNT records with keys and headers: kafkajs_produce.js HOST:PORT TOPIC COUNT
const { Kafka, logLevel, Partitioners } = require('kafkajs')
const [addr, topic, count] = [process.argv[2], process.argv[3], Number(process.argv[4])]

async function main() {
  const kafka = new Kafka({ brokers: [addr], clientId: 'interop', logLevel: logLevel.ERROR })
  const producer = kafka.producer({ createPartitioner: Partitioners.DefaultPartitioner })
  await producer.connect()
  for (let from = 0; from < count; from += 500) {
    const messages = []
    for (let i = from; i < Math.min(count, from + 500); i++) {
      messages.push({ key: 'key-' + String(i).padStart(5, '0'), value: `${i}:${'v'.repeat(i % 97)}`, headers: { h1: `h-${i % 7}`, h2: 'fixed' } })
    }
    await producer.send({ topic, messages, acks: -1 })
  }
  await producer.disconnect()
}
main().catch((err) => { console.error(err); process.exit(1) })
