package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/karstlog/karst/protocol/private"
)

// logs asks every broker what is wrong with its logs. Apache Kafka's brokers do not know the question.
func (x *examination) logs() []private.Logs {
	if x.asked {
		return x.troubles
	}
	x.asked = true
	for _, b := range x.brokers {
		if a, err := private.DescribeLogs.Call(x.ctx, x.l.cl.Broker(int(b.NodeID)), private.Empty{}); err == nil {
			x.troubles = append(x.troubles, a)
		}
	}
	return x.troubles
}

// troubled makes a finding of each log with a kind of trouble.
func (x *examination) troubled(kind string, describe func(l private.Log) finding) (out []finding) {
	for _, a := range x.logs() {
		for _, l := range a.Logs {
			if l.Kind != kind {
				continue
			}
			f := describe(l)
			f.subject = fmt.Sprintf("%s-%d on broker %d", l.Topic, l.Partition, a.Broker)
			out = append(out, f)
		}
	}
	return out
}

func checkDamaged(x *examination) []finding {
	return x.troubled(private.LogDamaged, func(l private.Log) finding {
		f := finding{severity: "critical", evidence: l.Reason, fix: "it is the only copy: stop the broker, then `kctl storage verify` and `kctl storage repair`"}
		if l.To > l.From {
			f.evidence = fmt.Sprintf("offsets %d to %d: %s", l.From, l.To, l.Reason)
		}
		for _, t := range x.topics {
			for _, p := range t.Partitions {
				if orEmpty(t.Topic) == l.Topic && p.Partition == l.Partition && len(p.Replicas) > 1 {
					f.fix = "nothing, as long as another replica is in sync: it is copied anew from there. Look at the disk"
				}
			}
		}
		return f
	})
}

func checkDiffers(x *examination) []finding {
	return x.troubled(private.LogDiffers, func(l private.Log) finding {
		return finding{
			severity: "critical", evidence: fmt.Sprintf("offsets %d to %d: %s", l.From, l.To, l.Reason),
			fix: fmt.Sprintf("read both: `kctl log dump` of each broker's files from offset %d on; then move the wrong replica away and back with `kctl partition reassign %s`", l.From, l.Topic),
		}
	})
}

func checkHeld(x *examination) (out []finding) {
	out = x.troubled(private.LogHeld, func(l private.Log) finding {
		f := finding{severity: "warning", evidence: fmt.Sprintf("%s from offset %d on stay: %s", formatSize(l.Bytes), l.From, l.Reason)}
		if l.UntilMs > 0 {
			f.evidence += ", until " + time.UnixMilli(l.UntilMs).UTC().Format(time.RFC3339)
		}
		switch {
		case strings.Contains(l.Reason, "timestamps"):
			f.fix = fmt.Sprintf("kctl config set topic %s message.timestamp.after.max.ms=3600000, or message.timestamp.type=LogAppendTime; `kctl topic trim` deletes what is there", l.Topic)
		case strings.Contains(l.Reason, "transaction"):
			f.fix = "kctl txn hanging; then kctl txn abort"
		case strings.Contains(l.Reason, "replicas"):
			f.fix = fmt.Sprintf("kctl partition list %s shows who is behind", l.Topic)
		default:
			f.fix = "the broker's log says more"
		}
		return f
	})
	for _, a := range x.logs() {
		if a.ClockJumpMs == 0 {
			continue
		}
		jump := time.Duration(a.ClockJumpMs) * time.Millisecond
		out = append(out, finding{
			severity: "warning", subject: fmt.Sprintf("broker %d", a.Broker),
			evidence: fmt.Sprintf("its wall clock jumped by %s, so retention by time goes by the time that has passed, for a day", jump.Round(time.Second)),
			fix:      "run chrony or ntpd; if the new time is right, nothing",
		})
	}
	return out
}
