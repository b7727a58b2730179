package node

import "strings"

// retiredNames are settings of Kafka's brokers that are not in its present table: of ZooKeeper's days, of other
// distributions, of the JVM. A file may have them. A name that ends in '.' stands for all that begin with it.
var retiredNames = []struct{ name, reason string }{
	{"zookeeper.", "there is no ZooKeeper"},
	{"kafka.zookeeper.", "there is no ZooKeeper"},
	{"control.plane.listener.name", "there is no ZooKeeper"},
	{"broker.id.generation.enable", "ids are allotted by the cluster"},
	{"reserved.broker.max.id", "ids are allotted by the cluster"},
	{"confluent.", "an option of Confluent's distribution"},
	{"log4j.", "Java only"},
	{"log4j2.", "Java only"},
	{"auto.include.jmx.reporter", "read /metrics instead"},
	{"inter.broker.protocol.version", "every version is spoken"},
	{"log.message.format.version", "records are kept in the format of Kafka 4"},
	{"log.message.downconversion.enable", "old clients are always served"},
	{"log.message.timestamp.difference.max.ms", "removed in Kafka 4.0; use log.message.timestamp.before.max.ms and .after.max.ms"},
	{"offsets.commit.required.acks", "removed in Kafka 4.0; commits are acknowledged by all in-sync replicas"},
	{"leader.imbalance.per.broker.percentage", "removed in Kafka 4.0"},
	{"password.encoder.", "passwords are not kept in ZooKeeper"},
	{"delegation.token.master.key", "delegation tokens are not served"},
	{"quota.producer.default", "removed in Kafka 3.0; quotas are set at run time"},
	{"quota.consumer.default", "removed in Kafka 3.0; quotas are set at run time"},
	{"advertised.host.name", "removed in Kafka 3.0; use advertised.listeners"},
	{"advertised.port", "removed in Kafka 3.0; use advertised.listeners"},
	{"host.name", "removed in Kafka 3.0; use listeners"},
	{"log.cleaner.hash.algorithm", "chosen by the broker"},
	{"replica.fetch.backoff.max.ms", "chosen by the broker"},
	{"rlmm.config.", "there is no tiered storage"},
	{"rsm.config.", "there is no tiered storage"},
	{"ssl.engine.factory.", "no plug-ins"},
}

// retired says why a setting that Kafka's brokers once had is accepted without effect.
func retired(name string) (reason string, ok bool) {
	for _, r := range retiredNames {
		if name == r.name || strings.HasSuffix(r.name, ".") && strings.HasPrefix(name, r.name) {
			return r.reason, true
		}
	}
	return "", false
}
