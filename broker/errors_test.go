package broker

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/karstlog/karst/cluster/metadata"
	"github.com/karstlog/karst/cluster/replica"
	"github.com/karstlog/karst/protocol/batch"
	"github.com/karstlog/karst/storage"
)

// domains are the packages whose errors may reach a handler.
var domains = []string{
	"../storage", "../protocol/batch", "../config",
	"../cluster", "../cluster/metadata", "../cluster/controller", "../cluster/quorum", "../cluster/replica",
	"../group", "../group/coordinator", "../txn", "../txn/coordinator",
}

func TestEveryDomainErrorHasACode(t *testing.T) {
	known := map[string]bool{}
	for _, r := range errorTable {
		if known[r.name] {
			t.Errorf("%s is in the table twice", r.name)
		}
		known[r.name] = true
	}
	for _, dir := range domains {
		for _, name := range exportedErrors(t, dir) {
			if !known[name] {
				t.Errorf("%s is not in the table of errors", name)
			}
		}
	}
}

// exportedErrors lists the exported error types and variables of a package, as package.Name.
func exportedErrors(t *testing.T, dir string) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, path := range files {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range f.Decls {
			for _, n := range errorNames(d) {
				names = append(names, f.Name.Name+"."+n)
			}
		}
	}
	return names
}

func errorNames(d ast.Decl) []string {
	switch d := d.(type) {
	case *ast.FuncDecl:
		if d.Recv == nil || d.Name.Name != "Error" {
			return nil
		}
		recv := d.Recv.List[0].Type
		if star, ok := recv.(*ast.StarExpr); ok {
			recv = star.X
		}
		if id, ok := recv.(*ast.Ident); ok && id.IsExported() {
			return []string{id.Name}
		}
	case *ast.GenDecl:
		if d.Tok != token.VAR {
			return nil
		}
		var names []string
		for _, s := range d.Specs {
			for _, n := range s.(*ast.ValueSpec).Names {
				if strings.HasPrefix(n.Name, "Err") {
					names = append(names, n.Name)
				}
			}
		}
		return names
	}
	return nil
}

func TestCodesAreThoseOfKafka(t *testing.T) {
	for _, r := range errorTable {
		for _, code := range []int16{r.code, r.old} {
			if code != codeUnknown && kerr.ErrorForCode(code) == kerr.UnknownServerError {
				t.Errorf("%s: %d is no error code", r.name, code)
			}
		}
	}
	want := map[int16]string{
		codeOffsetOutOfRange: "OFFSET_OUT_OF_RANGE", codeCorruptMessage: "CORRUPT_MESSAGE",
		codeUnknownTopic: "UNKNOWN_TOPIC_OR_PARTITION", codeNotLeader: "NOT_LEADER_FOR_PARTITION",
		codeRequestTimedOut: "REQUEST_TIMED_OUT", codeMessageTooLarge: "MESSAGE_TOO_LARGE",
		codeRecordListTooLarge: "RECORD_LIST_TOO_LARGE", codeStorage: "KAFKA_STORAGE_ERROR",
		codeOutOfOrderSequence: "OUT_OF_ORDER_SEQUENCE_NUMBER", codeInvalidProducerEpoch: "INVALID_PRODUCER_EPOCH",
		codeInvalidTxnState: "INVALID_TXN_STATE", codeInvalidRecord: "INVALID_RECORD", codeUnknownTopicID: "UNKNOWN_TOPIC_ID",
		codeTransactionAbortable: "TRANSACTION_ABORTABLE", codeTxnIDNotAuthorized: "TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
	}
	for code, name := range want {
		if got := kerr.TypedErrorForCode(code); got == nil || got.Message != name {
			t.Errorf("code %d is %v, want %s", code, got, name)
		}
	}
}

func TestErrorsAreFoundThroughWrapping(t *testing.T) {
	for _, c := range []struct {
		err      error
		new, old int16
	}{
		{nil, 0, 0},
		{fs.ErrNotExist, codeUnknown, codeUnknown},
		{fmt.Errorf("write: %w", &fs.PathError{Err: syscall.ENOSPC}), codeStorage, codeNotLeader},
		{fmt.Errorf("append: %w", &storage.OfflineError{}), codeStorage, codeNotLeader},
		{&replica.NotLeaderError{}, codeNotLeader, codeNotLeader},
		{&metadata.UnknownTopicIDError{}, codeUnknownTopicID, codeUnknownTopicID},
		{fmt.Errorf("x: %w", batch.ErrProducerEpoch), codeInvalidProducerEpoch, codeInvalidProducerEpoch},
		{errNotInTxnAbortable, codeTransactionAbortable, codeInvalidTxnState},
	} {
		if got := codeOf(c.err); got != c.new {
			t.Errorf("codeOf(%v) = %d, want %d", c.err, got, c.new)
		}
		if got := oldCodeOf(c.err); got != c.old {
			t.Errorf("oldCodeOf(%v) = %d, want %d", c.err, got, c.old)
		}
	}
}

func TestExplainBoundsRecordErrors(t *testing.T) {
	e := &batch.InvalidError{Reason: "bad", Records: slices.Repeat([]batch.RecordError{{Index: 1, Message: "m"}}, maxRecordErrors+5)}
	text, records := explain(fmt.Errorf("wrapped: %w", e))
	if text == "" || len(records) != maxRecordErrors || records[0].Index != 1 || records[0].Message != "m" {
		t.Errorf("explain gave %q and %d records", text, len(records))
	}
}
