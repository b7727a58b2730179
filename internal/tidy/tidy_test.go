// Package tidy holds the rules of the house that a compiler does not check, as tests: who may import whom, which
// packages stay free of clocks and I/O, where goroutines start, how long a file may be.
package tidy

import (
	"bufio"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const (
	module   = "github.com/karstlog/karst"
	root     = "../.."
	maxLines = 600
)

// source is one Go file of the product (tests and generated code are left out).
type source struct {
	pkg, path string // both relative to the module's root; pkg of the root is "karst"
	file      *ast.File
	fset      *token.FileSet
	lines     int
}

func sources(t *testing.T) []source {
	t.Helper()
	var out []source
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(root, path)
		if d.IsDir() {
			_, nested := os.Stat(filepath.Join(path, "go.mod"))
			if rel != "." && (nested == nil || strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata") {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(rel, ".go") || strings.HasSuffix(rel, "_test.go") || strings.HasSuffix(rel, ".pb.go") {
			return nil
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		fset := token.NewFileSet()
		f, err := parser.ParseFile(fset, path, b, parser.ParseComments)
		if err != nil {
			return err
		}
		pkg := filepath.ToSlash(filepath.Dir(rel))
		if pkg == "." {
			pkg = "karst"
		}
		out = append(out, source{pkg, filepath.ToSlash(rel), f, fset, strings.Count(string(b), "\n")})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// rule is one row of the import table in docs/architecture.md.
type rule struct {
	pure    bool
	imports []string // "everything" allows all
}

// table reads the rows `| package | pure | may import |` below the heading "Who imports whom".
func table(t *testing.T) map[string]rule {
	t.Helper()
	f, err := os.Open(filepath.Join(root, "docs", "architecture.md"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	rules := map[string]rule{}
	in := false
	for s := bufio.NewScanner(f); s.Scan(); {
		line := s.Text()
		if strings.HasPrefix(line, "#") {
			in = strings.Contains(line, "Who imports whom")
		}
		cells := strings.Split(line, "|")
		if !in || len(cells) < 5 || strings.HasPrefix(cells[1], "-") || strings.TrimSpace(cells[1]) == "package" {
			continue
		}
		r := rule{pure: strings.TrimSpace(cells[2]) == "pure"}
		for _, p := range strings.Split(cells[3], ",") {
			if p = strings.Trim(strings.TrimSpace(p), "`"); p != "" && p != "–" {
				r.imports = append(r.imports, p)
			}
		}
		rules[strings.Trim(strings.TrimSpace(cells[1]), "`")] = r
	}
	return rules
}

func (r rule) allows(pkg string) bool {
	if slices.Contains(r.imports, "everything") || slices.Contains(r.imports, pkg) {
		return true
	}
	switch pkg { // every package may use the small internal ones
	case "internal/uuid", "internal/mutant", "internal/vfs", "internal/properties":
		return true
	}
	return false
}

func TestImportsFollowTheTable(t *testing.T) {
	rules := table(t)
	seen := map[string]bool{}
	for _, s := range sources(t) {
		seen[s.pkg] = true
		r, ok := rules[s.pkg]
		if !ok {
			t.Errorf("%s: package %s has no row in docs/architecture.md", s.path, s.pkg)
			continue
		}
		for _, i := range s.file.Imports {
			path, _ := strconv.Unquote(i.Path.Value)
			if path == module {
				path = module + "/karst"
			}
			pkg, own := strings.CutPrefix(path, module+"/")
			if own && !r.allows(pkg) {
				t.Errorf("%s imports %s, which its row in docs/architecture.md does not allow", s.path, pkg)
			}
		}
	}
	for pkg := range rules {
		if !seen[pkg] {
			t.Errorf("docs/architecture.md has a row for %s, which does not exist", pkg)
		}
	}
}

func TestPurePackagesStayPure(t *testing.T) {
	rules := table(t)
	banned := []string{"os", "net", "math/rand", "math/rand/v2", "crypto/rand", "syscall", "log/slog"}
	for _, s := range sources(t) {
		if !rules[s.pkg].pure {
			continue
		}
		for _, i := range s.file.Imports {
			if path, _ := strconv.Unquote(i.Path.Value); slices.Contains(banned, path) {
				t.Errorf("%s: a pure package imports %s", s.path, path)
			}
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.GoStmt:
				t.Errorf("%s: a pure package starts a goroutine", s.fset.Position(n.Pos()))
			case *ast.SelectorExpr:
				if x, ok := n.X.(*ast.Ident); ok && x.Name == "time" && slices.Contains([]string{"Now", "Since", "Sleep", "After", "NewTimer"}, n.Sel.Name) {
					t.Errorf("%s: a pure package reads the clock", s.fset.Position(n.Pos()))
				}
			}
			return true
		})
	}
}

func TestNothingIsWrittenThroughAMapping(t *testing.T) {
	for _, s := range sources(t) {
		ast.Inspect(s.file, func(n ast.Node) bool {
			if x, ok := n.(*ast.SelectorExpr); ok && x.Sel.Name == "PROT_WRITE" {
				t.Errorf("%s: a store into a mapping on a full disk is SIGBUS", s.fset.Position(n.Pos()))
			}
			return true
		})
	}
}

func TestNoInitAndNoPanicGuards(t *testing.T) {
	recovers := map[string]bool{"protocol": true, "internal/vfs": true, "cluster/quorum": true}
	for _, s := range sources(t) {
		ast.Inspect(s.file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.FuncDecl:
				if n.Name.Name == "init" && n.Recv == nil {
					t.Errorf("%s: init function", s.fset.Position(n.Pos()))
				}
			case *ast.CallExpr:
				if f, ok := n.Fun.(*ast.Ident); ok && f.Name == "recover" && !recovers[s.pkg] {
					t.Errorf("%s: recover outside the decoder of frames, mapped reads and the opening of the Raft store", s.fset.Position(n.Pos()))
				}
			}
			return true
		})
	}
}

func TestFilesStayReadable(t *testing.T) {
	for _, s := range sources(t) {
		if s.lines > maxLines {
			t.Errorf("%s has %d lines, more than %d", s.path, s.lines, maxLines)
		}
	}
}

func TestEveryPackageSaysWhatItIsFor(t *testing.T) {
	documented := map[string]bool{}
	all := map[string]bool{}
	for _, s := range sources(t) {
		all[s.pkg] = true
		if s.file.Doc != nil {
			documented[s.pkg] = true
		}
	}
	for pkg := range all {
		if !documented[pkg] {
			t.Errorf("package %s has no package comment", pkg)
		}
	}
}

func Example_table() {
	fmt.Println(rule{imports: []string{"storage"}}.allows("storage"), rule{}.allows("storage"), rule{}.allows("internal/uuid"))
	// Output: true false true
}
