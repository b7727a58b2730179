package controller

import (
	"fmt"
	"slices"

	"github.com/karstlog/karst/cluster/metadata"
	"github.com/karstlog/karst/config"
	"github.com/karstlog/karst/internal/uuid"
)

// Default stands for "as configured" where a number of partitions or replicas is asked for.
const Default = -1

// NewTopic is a topic to create, as CreateTopics has it.
type NewTopic struct {
	Name              string
	Partitions        int32 // Default: num.partitions
	ReplicationFactor int16 // Default: default.replication.factor
	// Assignment names the replicas instead of the two numbers, which are then Default.
	Assignment []Assignment
	Configs    []ConfigValue
}

// Assignment is the replicas of one partition, the preferred leader first.
type Assignment struct {
	Partition int32
	Brokers   []metadata.BrokerID
}

// ConfigValue is a setting as it came; Value is nil for null.
type ConfigValue struct {
	Name  string
	Value *string
}

// CreateTopic checks a new topic and places it. Errors: those of metadata for names (*TopicNameError,
// *TopicExistsError, *TopicCollisionError), *PartitionCountError, *TooManyPartitionsError, *ReplicationFactorError,
// *AssignmentError, *ConfigError, *RequestError.
func (v View) CreateTopic(t NewTopic, d Draw) (metadata.CreateTopic, error) {
	if err := v.checkName(t.Name); err != nil {
		return metadata.CreateTopic{}, err
	}
	replicas, err := v.replicasFor(t, d.Start)
	if err != nil {
		return metadata.CreateTopic{}, err
	}
	configs, err := v.topicConfigs(t.Configs)
	if err != nil {
		return metadata.CreateTopic{}, err
	}
	if v.chooses(t) && len(replicas[0]) >= safeFactor {
		configs = v.withSafeMinimum(configs)
	}
	return metadata.CreateTopic{ID: d.ID, Name: t.Name, Partitions: replicas, Configs: configs}, nil
}

// A topic whose number of replicas nobody has chosen is safe against the loss of a broker if there are three of them: two
// must have a record before it counts.
const (
	safeFactor  = 3
	safeMinimum = "2"
)

// chooses tells whether the number of replicas is chosen here: by the number of brokers, or for a topic of the broker's own.
func (v View) chooses(t NewTopic) bool {
	return IsOwn(t.Name) || t.ReplicationFactor == Default && len(t.Assignment) == 0 && v.Defaults.ReplicationFactor == 0
}

// IsOwn tells whether a topic is the broker's own, which clients may not write to.
func IsOwn(name string) bool { return name == "__consumer_offsets" }

// withSafeMinimum sets min.insync.replicas unless somebody has.
func (v View) withSafeMinimum(configs map[string]string) map[string]string {
	l := v.Layers()
	l.Topic = configs
	if value, ok := l.TopicValue(minInsync); !ok || value.Source != config.SourceDefault {
		return configs
	}
	if configs == nil {
		configs = map[string]string{}
	}
	configs[minInsync] = safeMinimum
	return configs
}

func (v View) checkName(name string) error {
	if err := metadata.CheckTopicName(name); err != nil {
		return err
	}
	if metadata.IsKafkasOwn(name) {
		return &metadata.TopicNameError{Name: name, Reason: fmt.Sprintf("'%s' is reserved: what Kafka keeps there has another place here", name)}
	}
	if _, ok := v.Image.Topic(name); ok {
		return &metadata.TopicExistsError{Name: name}
	}
	if other, ok := v.Image.NearTopic(name); ok {
		return &metadata.TopicCollisionError{Name: name, Existing: other}
	}
	return nil
}

func (v View) replicasFor(t NewTopic, start uint64) ([][]metadata.BrokerID, error) {
	if len(t.Assignment) > 0 {
		return v.assigned(t)
	}
	partitions, factor := t.Partitions, t.ReplicationFactor
	if partitions == Default {
		partitions = v.Defaults.NumPartitions
	}
	if factor == Default {
		factor = v.Defaults.Replicas(len(v.Image.Brokers()))
	}
	if partitions <= 0 {
		return nil, &PartitionCountError{"Number of partitions must be larger than 0, or -1 to use the default value."}
	}
	if partitions > MaxPartitionsPerRequest {
		return nil, &TooManyPartitionsError{int64(partitions), MaxPartitionsPerRequest}
	}
	if err := v.checkFactor(factor); err != nil {
		return nil, err
	}
	return v.place(0, int(partitions), int(factor), start), nil
}

func (v View) checkFactor(factor int16) error {
	if factor <= 0 {
		return &ReplicationFactorError{"Replication factor must be larger than 0, or -1 to use the default value."}
	}
	if n := len(v.Image.Brokers()); int(factor) > n {
		return &ReplicationFactorError{fmt.Sprintf("Unable to replicate the partition %d time(s): only %d broker(s) are registered.", factor, n)}
	}
	if !v.anyUsable() {
		return &ReplicationFactorError{"Unable to place the partition: all brokers are fenced."}
	}
	return nil
}

func (v View) anyUsable() bool {
	return slices.ContainsFunc(v.Image.Brokers(), func(b *metadata.Broker) bool { return v.eligible(b.ID) })
}

// assigned checks an assignment by hand: partitions 0 to n-1 once each, all with the same number of different,
// registered brokers.
func (v View) assigned(t NewTopic) ([][]metadata.BrokerID, error) {
	if t.Partitions != Default || t.ReplicationFactor != Default {
		return nil, badRequest("A manual partition assignment was given: partition count and replication factor must both be -1.")
	}
	n := len(t.Assignment)
	if n > MaxPartitionsPerRequest {
		return nil, &TooManyPartitionsError{int64(n), MaxPartitionsPerRequest}
	}
	out := make([][]metadata.BrokerID, n)
	for _, a := range t.Assignment {
		if a.Partition < 0 || int(a.Partition) >= n {
			return nil, badAssignment("The partitions of a manual assignment must be 0 to %d without a gap; got %d.", n-1, a.Partition)
		}
		if out[a.Partition] != nil {
			return nil, badAssignment("Partition %d is assigned twice.", a.Partition)
		}
		if err := v.checkReplicas(a.Partition, a.Brokers, len(t.Assignment[0].Brokers)); err != nil {
			return nil, err
		}
		out[a.Partition] = a.Brokers
	}
	return out, nil
}

func (v View) checkReplicas(partition int32, brokers []metadata.BrokerID, want int) error {
	if len(brokers) == 0 {
		return badAssignment("Partition %d is assigned to no broker.", partition)
	}
	usable := false
	for i, id := range brokers {
		b, ok := v.Image.Broker(id)
		if !ok {
			return badAssignment("Partition %d is assigned to broker %d, which is not registered.", partition, id)
		}
		if slices.Contains(brokers[:i], id) {
			return badAssignment("Partition %d is assigned to broker %d more than once.", partition, id)
		}
		usable = usable || !b.Fenced
	}
	if len(brokers) != want {
		return badAssignment("Partition %d has %d replicas and another one %d; all must have the same number.", partition, len(brokers), want)
	}
	if !usable {
		return badAssignment("All brokers of partition %d are fenced.", partition)
	}
	return nil
}

// topicConfigs checks the settings of a new topic and writes them in their canonical form.
func (v View) topicConfigs(values []ConfigValue) (map[string]string, error) {
	set := make(map[string]string, len(values))
	for _, c := range values {
		if c.Value == nil {
			return nil, &ConfigError{Name: c.Name, Reason: fmt.Sprintf("Null value is not allowed for the setting %q of a new topic.", c.Name)}
		}
		canonical, err := canonical(config.ScopeTopic, c.Name, *c.Value)
		if err != nil {
			return nil, err
		}
		set[c.Name] = canonical
	}
	if len(set) == 0 {
		return nil, nil
	}
	return set, v.checkTogether(config.ScopeTopic, set)
}

// ImportTopic is a topic whose logs are there already, written by Kafka.
type ImportTopic struct {
	Name       string
	ID         uuid.UUID // zero: Draw.ID is taken
	Partitions int32     // the largest partition found, plus one
	// LeaderEpoch is larger than every epoch in the logs, so that what this broker writes is told apart.
	LeaderEpoch metadata.LeaderEpoch
}

// ImportTopic makes the command for a topic with one replica of each partition, on this broker.
func (v View) ImportTopic(t ImportTopic, d Draw) (metadata.CreateTopic, error) {
	if err := v.checkName(t.Name); err != nil {
		return metadata.CreateTopic{}, err
	}
	if t.Partitions <= 0 {
		return metadata.CreateTopic{}, &PartitionCountError{"An imported topic has at least one partition."}
	}
	if t.ID.IsZero() {
		t.ID = d.ID
	}
	c := metadata.CreateTopic{ID: t.ID, Name: t.Name, LeaderEpoch: t.LeaderEpoch}
	for range t.Partitions {
		c.Partitions = append(c.Partitions, []metadata.BrokerID{v.Self})
	}
	return c, nil
}

// MorePartitions is what CreatePartitions asks for one topic.
type MorePartitions struct {
	Name  string
	Count int32 // of all partitions afterwards
	// Assignment has one list of brokers for each added partition; nil: they are placed.
	Assignment [][]metadata.BrokerID
}

// CreatePartitions checks and places added partitions. Errors: *metadata.UnknownTopicError, *PartitionCountError,
// *TooManyPartitionsError, *ReplicationFactorError, *AssignmentError.
func (v View) CreatePartitions(m MorePartitions, d Draw) (metadata.CreatePartitions, error) {
	t, ok := v.Image.Topic(m.Name)
	if !ok {
		return metadata.CreatePartitions{}, &metadata.UnknownTopicError{Name: m.Name}
	}
	have := int32(len(t.Partitions))
	added := int64(m.Count) - int64(have)
	switch {
	case added < 0:
		return metadata.CreatePartitions{}, &PartitionCountError{fmt.Sprintf(
			"The topic %s currently has %d partition(s); %d would not be an increase.", t.Name, have, m.Count)}
	case added == 0:
		return metadata.CreatePartitions{}, &PartitionCountError{fmt.Sprintf("Topic already has %d partition(s).", have)}
	case added > MaxPartitionsPerRequest:
		return metadata.CreatePartitions{}, &TooManyPartitionsError{added, MaxPartitionsPerRequest}
	}
	c := metadata.CreatePartitions{ID: t.ID, Count: have}
	factor := len(t.Partitions[0].Replicas)
	if m.Assignment != nil {
		c.New = m.Assignment
		return c, v.checkAdded(m, have, int(added), factor)
	}
	if err := v.checkFactor(int16(factor)); err != nil {
		return c, err
	}
	c.New = v.place(int(have), int(added), factor, d.Start)
	return c, nil
}

func (v View) checkAdded(m MorePartitions, have int32, added, factor int) error {
	if len(m.Assignment) != added {
		return badAssignment("Attempted to add %d additional partition(s), but %d assignment(s) were given.", added, len(m.Assignment))
	}
	for i, brokers := range m.Assignment {
		if err := v.checkReplicas(have+int32(i), brokers, factor); err != nil {
			return err
		}
	}
	return nil
}
