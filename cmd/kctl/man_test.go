package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestManPagesSayWhatTheHelpSays: every command has a page with its flags and examples, in macros that man(7) knows.
func TestManPagesSayWhatTheHelpSays(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "man1")
	if _, stderr, status := execute(t, "", "man", "--dir", dir); status != 0 {
		t.Fatal(stderr)
	}
	overview, _, _ := execute(t, "", "man")
	pages := map[string]string{}
	for _, c := range testTree() {
		b, err := os.ReadFile(filepath.Join(dir, "kctl-"+c.Name+".1"))
		if err != nil {
			t.Fatal(err)
		}
		pages[c.Name] = string(b)
		if !strings.Contains(overview, `"kctl\-`+roffText(c.Name)+`(1)"`) {
			t.Errorf("kctl.1 does not name %s", c.Name)
		}
		if one, _, status := execute(t, "", "man", c.Name); status != 0 || one != pages[c.Name] {
			t.Errorf("kctl man %s: status %d, and not what --dir writes", c.Name, status)
		}
	}
	for _, p := range leafPaths(testTree(), nil) {
		page := pages[p.names[0]]
		for _, g := range flagGroups(p.leaf) {
			for _, f := range g.flags {
				if !strings.Contains(page, roffText(flagSpelling(f))) {
					t.Errorf("the page of %s has no %s", p.names[0], flagSpelling(f))
				}
			}
		}
		_, examples := splitDescription(p.leaf)
		for _, e := range examples {
			if !strings.Contains(page, "\n"+roffText(e)+"\n") {
				t.Errorf("the page of %s has no %q", p.names[0], e)
			}
		}
	}
	macro := regexp.MustCompile(`(?m)^[.'](\w*)`)
	for name, page := range pages {
		for _, m := range macro.FindAllStringSubmatch(page, -1) {
			if !strings.Contains(" TH SH SS TP PP B br nf fi ", " "+m[1]+" ") {
				t.Errorf("the page of %s uses .%s", name, m[1])
			}
		}
	}
	if groff, err := exec.LookPath("groff"); err == nil {
		if out, err := exec.Command(groff, "-man", "-ww", "-z", filepath.Join(dir, "kctl.1"), filepath.Join(dir, "kctl-topic.1")).CombinedOutput(); err != nil || len(out) > 0 {
			t.Errorf("groff: %v\n%s", err, out)
		}
	}
}

func TestNoManPageOfNoCommand(t *testing.T) {
	if _, stderr, status := execute(t, "", "man", "topics"); status != exitNotFound || !strings.Contains(stderr, `"topics"`) {
		t.Errorf("status %d: %s", status, stderr)
	}
}

func TestRoffTakesNoTextForItsOwn(t *testing.T) {
	for in, want := range map[string]string{
		`a\b`: `a\(rsb`, ".x": `\&.x`, "'x": `\&'x`, "a-b `C`": `a\-b C`, "two\nlines": "two lines",
	} {
		if got := roffText(in); got != want {
			t.Errorf("%q becomes %q, want %q", in, got, want)
		}
	}
}
