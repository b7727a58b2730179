package wire

//go:generate sh -c "protoc -I. --plugin=protoc-gen-go=$(go tool -modfile=../../internal/tools/go.mod -n protoc-gen-go) --go_out=. --go_opt=paths=source_relative control.proto"

// Calls between the controller and the brokers.
var (
	Heartbeat      = Method[PbHeartbeat, PbHeartbeatAnswer, *PbHeartbeat, *PbHeartbeatAnswer]{Key: 10110}
	LogEnds        = Method[PbLogEnds, PbLogEndsAnswer, *PbLogEnds, *PbLogEndsAnswer]{Key: 10111}
	DescribeQuorum = Method[PbDescribeQuorum, PbQuorum, *PbDescribeQuorum, *PbQuorum]{Key: 10112}
	Expel          = Method[PbExpel, PbExpelled, *PbExpel, *PbExpelled]{Key: 10113}
)
