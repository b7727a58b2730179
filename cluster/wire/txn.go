package wire

//go:generate sh -c "protoc -I. --plugin=protoc-gen-go=$(go tool -modfile=../../internal/tools/go.mod -n protoc-gen-go) --go_out=. --go_opt=paths=source_relative txn_markers.proto"

// Mark asks for the markers of a decided transaction.
var Mark = Method[PbMarks, PbMarked, *PbMarks, *PbMarked]{Key: 10130}
