package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
)

func reassignAlias(*session) alias {
	return alias{
		name: "kafka-reassign-partitions", usage: "as Kafka's tool: move partitions between brokers", failed: "Error",
		options: commonOptions(
			aliasOption{"generate", switchOption, "propose a reassignment"},
			aliasOption{"execute", switchOption, "start a reassignment"},
			aliasOption{"verify", switchOption, "say how far a reassignment is"},
			aliasOption{"cancel", switchOption, "stop a reassignment"},
			aliasOption{"list", switchOption, "list the reassignments that run"},
			aliasOption{"reassignment-json-file", valueOption, "`FILE` of the reassignment"},
			aliasOption{"topics-to-move-json-file", valueOption, "`FILE`: {\"topics\":[{\"topic\":\"t\"}],\"version\":1}"},
			aliasOption{"broker-list", valueOption, "`ID,ID` of brokers to move to"},
			aliasOption{"additional", switchOption, "while others run"},
			aliasOption{"preserve-throttles", switchOption, "leave --throttle's limits in force"},
			aliasOption{"disable-rack-aware", switchOption, "do not look at racks"},
			aliasOption{"throttle", valueOption, "`BYTES` a second that a broker copies at most, until --verify or --cancel takes the limit back"},
			aliasOption{"replica-alter-log-dirs-throttle", valueOption, "`BYTES` a second that a broker copies at most between its directories, until --verify or --cancel takes the limit back"},
			aliasOption{"disallow-replication-factor-change", switchOption, "refuse another number of replicas"},
			aliasOption{"timeout", valueOption, "`MILLISECONDS` that --execute tries to start moves between directories, default 10000"},
		),
		examples: []string{
			"kctl kafka-reassign-partitions --bootstrap-server localhost:9092 --reassignment-json-file move.json --execute",
			"kctl kafka-reassign-partitions --bootstrap-server localhost:9092 --list",
		},
		run: runReassign,
	}
}

func runReassign(a *aliasCall) error {
	action, err := a.only("generate", "execute", "verify", "cancel", "list")
	if err != nil {
		return err
	}
	brokers := a.value("broker-list")
	delete(a.values, "broker-list")
	l, ctx, hangUp, err := a.open()
	if err != nil {
		return err
	}
	defer hangUp()
	switch action {
	case "list":
		return a.listReassignments(ctx, l)
	case "generate":
		return a.generateReassignment(ctx, l, brokers)
	}
	if a.value("reassignment-json-file") == "" {
		return usage("Missing required option --reassignment-json-file")
	}
	wanted, err := readReassignment(a.value("reassignment-json-file"))
	if err != nil {
		return err
	}
	switch action {
	case "execute":
		return a.executeReassignment(ctx, l, wanted)
	case "verify":
		return a.verifyReassignment(ctx, l, wanted)
	}
	return a.cancelReassignment(ctx, l, wanted)
}

func (a *aliasCall) listReassignments(ctx context.Context, l *link) error {
	running, err := l.reassignments(ctx)
	if err != nil {
		return err
	}
	if len(running) == 0 {
		a.print("No partition reassignments found.")
		return nil
	}
	a.print("Current partition reassignments:")
	for _, tp := range sortedPlaces(running) {
		r := running[tp]
		text := fmt.Sprintf("%s-%d: replicas: %s.", tp.topic, tp.partition, joinInts(r.Replicas))
		if len(r.AddingReplicas) > 0 {
			text += fmt.Sprintf(" adding: %s.", joinInts(r.AddingReplicas))
		}
		if len(r.RemovingReplicas) > 0 {
			text += fmt.Sprintf(" removing: %s.", joinInts(r.RemovingReplicas))
		}
		a.print("%s", text)
	}
	return nil
}

func sortedPlaces[V any](m map[topicPartition]V) []topicPartition {
	var out []topicPartition
	for tp := range m {
		out = append(out, tp)
	}
	slices.SortFunc(out, topicPartition.compare)
	return out
}

func (a *aliasCall) generateReassignment(ctx context.Context, l *link, list string) error {
	ids, err := parsePartitions(list)
	if err != nil || len(ids) == 0 {
		return usage("Missing required option --broker-list")
	}
	b, err := os.ReadFile(a.value("topics-to-move-json-file"))
	if err != nil {
		return usage("--topics-to-move-json-file: %s", err)
	}
	var file struct{ Topics []struct{ Topic string } }
	if err := json.Unmarshal(b, &file); err != nil {
		return usage("--topics-to-move-json-file: %s", err)
	}
	only := map[string][]int32{}
	for _, t := range file.Topics {
		only[t.Topic] = nil
	}
	rows, err := l.chosenPartitions(ctx, only)
	if err != nil {
		return err
	}
	brokers, err := l.brokerPlaces(ctx)
	if err != nil {
		return err
	}
	for _, id := range ids {
		if !slices.ContainsFunc(brokers, func(p brokerPlace) bool { return p.id == id }) {
			return says("Unknown broker id %d", id)
		}
	}
	brokers = slices.DeleteFunc(brokers, func(p brokerPlace) bool { return !slices.Contains(ids, p.id) })
	if a.has("disable-rack-aware") {
		for i := range brokers {
			brokers[i].rack = ""
		}
	}
	current := describeReplicas(rows, l.replicaDirs(ctx))
	p := newPlanner(brokers, nil)
	for i := range rows {
		to := p.place(partitionRow{replicas: nil}, func(int32) bool { return true }, len(rows[i].replicas))
		if len(to) < len(rows[i].replicas) {
			return fmt.Errorf("InvalidReplicationFactorException: Replication factor: %d larger than available brokers: %d", len(rows[i].replicas), len(brokers))
		}
		rows[i].replicas = to
	}
	a.print("Current partition replica assignment")
	a.print("%s\n", current)
	a.print("Proposed partition reassignment configuration")
	a.print("%s", describeReplicas(rows, nil))
	return nil
}

// describeReplicas is a reassignment in Kafka's json; a directory that is not in dirs is any.
func describeReplicas(rows []partitionRow, dirs map[replicaPlace]replicaDir) string {
	f := reassignmentFile{Version: 1, Partitions: []reassignmentPartition{}}
	for _, r := range rows {
		p := reassignmentPartition{Topic: r.topic, Partition: r.partition, Replicas: notNull(r.replicas)}
		for _, b := range r.replicas {
			p.LogDirs = append(p.LogDirs, cmp.Or(dirs[replicaPlace{r.topicPartition, b}].now, "any"))
		}
		f.Partitions = append(f.Partitions, p)
	}
	b, _ := json.Marshal(f) // strings and numbers
	return string(b)
}

func (a *aliasCall) executeReassignment(ctx context.Context, l *link, wanted reassignment) error {
	running, err := l.reassignments(ctx)
	if err != nil {
		return err
	}
	if len(running) > 0 && !a.has("additional") {
		return says("Cannot execute because there is an existing partition assignment.  Use --additional to override this and create a new partition assignment in addition to the existing one.")
	}
	only := map[string][]int32{}
	for tp := range wanted.replicas {
		only[tp.topic] = append(only[tp.topic], tp.partition)
	}
	rows, err := l.chosenPartitions(ctx, only)
	if err != nil {
		return err
	}
	brokers, err := l.brokerPlaces(ctx)
	if err != nil {
		return err
	}
	var moves []replicaMove
	var names []string
	for _, r := range rows {
		to := wanted.replicas[r.topicPartition]
		for _, b := range to {
			if !slices.ContainsFunc(brokers, func(p brokerPlace) bool { return p.id == b }) {
				return says("Unknown broker id %d", b)
			}
		}
		if a.has("disallow-replication-factor-change") && len(to) != len(r.replicas) {
			return fmt.Errorf("%s-%d would get another replication factor", r.topic, r.partition)
		}
		moves = append(moves, replicaMove{topicPartition: r.topicPartition, from: r.replicas, to: to})
		names = append(names, fmt.Sprintf("%s-%d", r.topic, r.partition))
	}
	a.print("Current partition replica assignment\n\n%s\n\nSave this to use as the --reassignment-json-file option during rollback", describeReplicas(rows, l.replicaDirs(ctx)))
	if err := a.setThrottles(ctx, l, copies(running, moves), wanted.dirs); err != nil {
		return err
	}
	if err := l.alterReplicas(ctx, moves); err != nil {
		return err
	}
	a.print("Successfully started partition reassignment%s for %s", plural(len(names)), strings.Join(names, ","))
	return a.moveDirs(ctx, l, wanted.dirs)
}

func (a *aliasCall) verifyReassignment(ctx context.Context, l *link, wanted reassignment) error {
	running, err := l.reassignments(ctx)
	if err != nil {
		return err
	}
	rows, err := l.partitionRows(ctx, nil, true)
	if err != nil {
		return err
	}
	have := map[topicPartition][]int32{}
	for _, r := range rows {
		have[r.topicPartition] = r.replicas
	}
	a.print("Status of partition reassignment:")
	done := true
	for _, tp := range sortedPlaces(wanted.replicas) {
		_, moving := running[tp]
		switch {
		case moving:
			done = false
			a.print("Reassignment of partition %s-%d is still in progress.", tp.topic, tp.partition)
		case have[tp] == nil:
			a.print("Reassignment of partition %s-%d is completed, but the partition does not exist.", tp.topic, tp.partition)
		case slices.Equal(have[tp], wanted.replicas[tp]):
			a.print("Reassignment of partition %s-%d is completed.", tp.topic, tp.partition)
		default:
			a.print("There is no active reassignment of partition %s-%d, but replica set is %s rather than %s.", tp.topic, tp.partition, joinInts(have[tp]), joinInts(wanted.replicas[tp]))
		}
	}
	if a.verifyDirs(ctx, l, wanted.dirs) && done {
		a.print("")
		return a.clearThrottles(ctx, l, wanted.replicas)
	}
	return nil
}

func plural(n int) string {
	if n == 1 {
		return ""
	}
	return "s"
}

func (a *aliasCall) cancelReassignment(ctx context.Context, l *link, wanted reassignment) error {
	running, err := l.reassignments(ctx)
	if err != nil {
		return err
	}
	var moves []replicaMove
	var names []string
	for _, tp := range sortedPlaces(wanted.replicas) {
		if _, ok := running[tp]; ok {
			moves = append(moves, replicaMove{topicPartition: tp})
			names = append(names, fmt.Sprintf("%s-%d", tp.topic, tp.partition))
		}
	}
	if len(moves) == 0 {
		a.print("None of the specified partition reassignments are active.")
	} else {
		if err := l.alterReplicas(ctx, moves); err != nil {
			return err
		}
		a.print("Successfully cancelled partition reassignment%s for: %s", plural(len(names)), strings.Join(names, ","))
	}
	if err := a.cancelDirs(ctx, l, wanted.dirs); err != nil {
		return err
	}
	return a.clearThrottles(ctx, l, wanted.replicas)
}

func leaderElectionAlias(*session) alias {
	return alias{
		name: "kafka-leader-election", usage: "as Kafka's tool: elect preferred or unclean leaders", failed: "Error",
		options: commonOptions(
			aliasOption{"admin.config", valueOption, "`FILE` of client properties"},
			aliasOption{"election-type", valueOption, "`TYPE`: preferred or unclean"},
			aliasOption{"topic", valueOption, "`TOPIC` of the partition"},
			aliasOption{"partition", valueOption, "`N`: the partition"},
			aliasOption{"all-topic-partitions", switchOption, "all partitions"},
			aliasOption{"path-to-json-file", valueOption, "`FILE`: {\"partitions\":[{\"topic\":\"t\",\"partition\":0}]}"},
		),
		examples: []string{
			"kctl kafka-leader-election --bootstrap-server localhost:9092 --election-type preferred --all-topic-partitions",
			"kctl kafka-leader-election --bootstrap-server localhost:9092 --election-type preferred --topic orders --partition 0",
		},
		run: runLeaderElection,
	}
}

func runLeaderElection(a *aliasCall) error {
	how := kadm.ElectPreferredReplica
	kind := strings.ToUpper(a.value("election-type"))
	switch kind {
	case "PREFERRED":
	case "UNCLEAN":
		how = kadm.ElectLiveReplica
	default:
		return usage("Missing required option(s): election-type, which is preferred or unclean")
	}
	set, err := a.electionSet()
	if err != nil {
		return err
	}
	l, ctx, hangUp, err := a.open()
	if err != nil {
		return err
	}
	defer hangUp()
	resp, err := l.adm.ElectLeaders(ctx, how, set)
	if err != nil {
		return err
	}
	var done, needless []string
	failed := map[topicPartition]error{}
	for _, rs := range resp {
		for _, r := range rs {
			name := fmt.Sprintf("%s-%d", r.Topic, r.Partition)
			switch {
			case r.Err == nil:
				done = append(done, name)
			case errors.Is(r.Err, kerr.ElectionNotNeeded):
				needless = append(needless, name)
			default:
				failed[topicPartition{r.Topic, r.Partition}] = r.Err
			}
		}
	}
	slices.Sort(done)
	slices.Sort(needless)
	if len(done) > 0 {
		a.print("Successfully completed leader election (%s) for partitions %s", kind, strings.Join(done, ", "))
	}
	if len(needless) > 0 {
		a.print("Valid replica already elected for partitions %s", strings.Join(needless, ", "))
	}
	for _, tp := range sortedPlaces(failed) {
		a.print("Error completing leader election (%s) for partition: %s-%d: %s", kind, tp.topic, tp.partition, kafkaText(failed[tp]))
	}
	if len(failed) > 0 {
		return fmt.Errorf("%d replica(s) could not be elected", len(failed))
	}
	return nil
}

// electionSet is the partitions to elect leaders of; nil is all.
func (a *aliasCall) electionSet() (kadm.TopicsSet, error) {
	set := kadm.TopicsSet{}
	switch {
	case a.has("all-topic-partitions"):
		return nil, nil
	case a.has("path-to-json-file"):
		b, err := os.ReadFile(a.value("path-to-json-file"))
		if err != nil {
			return nil, usage("--path-to-json-file: %s", err)
		}
		var file struct {
			Partitions []struct {
				Topic     string
				Partition int32
			}
		}
		if err := json.Unmarshal(b, &file); err != nil {
			return nil, usage("--path-to-json-file: %s", err)
		}
		for _, p := range file.Partitions {
			set.Add(p.Topic, p.Partition)
		}
		return set, nil
	case a.value("topic") != "" && a.value("partition") != "":
		p, err := a.int("partition", -1)
		set.Add(a.value("topic"), int32(p))
		return set, err
	}
	return nil, usage("One and only one of the following options is required: topic, all-topic-partitions, path-to-json-file")
}
