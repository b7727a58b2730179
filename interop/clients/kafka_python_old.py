"""Writes with the protocol of several broker versions into one topic, and reads all of it back with each of them:
kafka_python_old.py HOST:PORT TOPIC"""
import sys

# kafka-python 1.4 brings a six that Python 3.12 cannot import, and a module named async
import six

sys.modules["kafka.vendor.six"] = six
sys.modules["kafka.vendor.six.moves"] = six.moves
import six.moves.urllib  # noqa: E402

from kafka import KafkaConsumer, KafkaProducer, TopicPartition  # noqa: E402

addr, topic = sys.argv[1], sys.argv[2]
versions = [(0, 8, 2), (0, 9), (0, 10), (0, 11), (1, 0, 0)]
codecs = [None, "gzip"]
sent = set()
for version in versions:
    for codec in codecs:
        producer = KafkaProducer(bootstrap_servers=addr, api_version=version, acks="all", compression_type=codec, linger_ms=5)
        futures = []
        for i in range(200):
            key = b"%d-%s-%d" % (version[1], (codec or "none").encode(), i) + b"-%d" % version[0]
            futures.append(producer.send(topic, key=key, value=b"v" * (i % 50)))
            sent.add(key)
        for f in futures:
            f.get(timeout=60)
        producer.close()
for version in versions:
    consumer = KafkaConsumer(bootstrap_servers=addr, api_version=version, group_id=None, auto_offset_reset="earliest", consumer_timeout_ms=20000)
    consumer.assign([TopicPartition(topic, p) for p in consumer.partitions_for_topic(topic)])
    consumer.seek_to_beginning()
    seen = []
    for m in consumer:
        seen.append(m.key)
        if len(seen) == len(sent):
            break
    consumer.close()
    assert set(seen) == sent and len(seen) == len(sent), (version, len(seen), len(sent))
print("%d records, %d versions" % (len(sent), len(versions)))
