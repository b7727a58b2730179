// Package metadata is what a cluster knows about itself: brokers, topics, partitions, settings, producer ids. An Image
// never changes; a Command makes the next one from it. All of the cluster's brokers apply the same commands in the
// order of the Raft log and so have the same image: nothing here looks at a clock, a random number or a map's order.
//
// A command carries its own precondition (an id, a count, a version). Who decided on an old image loses: Apply returns
// an error and changes nothing.
package metadata

//go:generate sh -c "protoc -I. --plugin=protoc-gen-go=$(go tool -modfile=../../internal/tools/go.mod -n protoc-gen-go) --go_out=. --go_opt=paths=source_relative metadata.proto txn.proto"
