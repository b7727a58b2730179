"""Writes COUNT records with keys and headers and reads them back: kafka_python.py HOST:PORT TOPIC COUNT"""
import sys
from kafka import KafkaConsumer, KafkaProducer, TopicPartition

addr, topic, count = sys.argv[1], sys.argv[2], int(sys.argv[3])


def record(i):
    return b"key-%05d" % i, b"%d:%s" % (i, b"v" * (i % 97)), [("h1", b"h-%d" % (i % 7)), ("h2", b"fixed")]


producer = KafkaProducer(bootstrap_servers=addr, acks="all", linger_ms=5, compression_type="gzip")
futures = []
for i in range(count):
    k, v, h = record(i)
    futures.append(producer.send(topic, key=k, value=v, headers=h))
for f in futures:
    f.get(timeout=60)
producer.close()

consumer = KafkaConsumer(bootstrap_servers=addr, group_id=None, auto_offset_reset="earliest", consumer_timeout_ms=20000)
consumer.assign([TopicPartition(topic, p) for p in consumer.partitions_for_topic(topic)])
consumer.seek_to_beginning()
seen = {}
for m in consumer:
    assert m.key not in seen, m.key
    seen[m.key] = (m.value, list(m.headers))
    if len(seen) == count:
        break
consumer.close()
for i in range(count):
    k, v, h = record(i)
    assert seen[k] == (v, h), (k, seen.get(k))
print("%d records" % count)
