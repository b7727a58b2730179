package main

import (
	"bytes"
	"strings"
	"testing"
	"text/template"

	"github.com/google/go-cmp/cmp"
)

type sampleRow struct {
	name string
	size int64
	note *string
	tags []string
}

func sampleColumns() []column[sampleRow] {
	return []column[sampleRow]{
		{key: "name", doc: "its name", value: func(r sampleRow) any { return r.name }},
		{key: "size_bytes", head: "SIZE", right: true, doc: "its size", value: func(r sampleRow) any { return r.size }, text: func(r sampleRow) string { return formatSize(r.size) }},
		{key: "note", doc: "a remark", value: func(r sampleRow) any { return r.note }},
		{key: "tags", wide: true, doc: "words", value: func(r sampleRow) any { return r.tags }},
	}
}

func TestOneRowInEveryFormat(t *testing.T) {
	note := "true <b> \"x\", ü"
	rows := []sampleRow{{"a", 2048, nil, []string{}}, {"längst", 5, &note, []string{"1", "x y"}}}
	for format, want := range map[string]string{
		"table": "NAME       SIZE  NOTE\na       2.0 KiB  -\nlängst      5 B  true <b> \"x\", ü\n",
		"wide":  "NAME       SIZE  NOTE             TAGS\na       2.0 KiB  -                []\nlängst      5 B  true <b> \"x\", ü  [\"1\",\"x y\"]\n",
		"jsonl": "{\"name\":\"a\",\"size_bytes\":2048,\"note\":null,\"tags\":[]}\n{\"name\":\"längst\",\"size_bytes\":5,\"note\":\"true <b> \\\"x\\\", ü\",\"tags\":[\"1\",\"x y\"]}\n",
		"json": "[\n  {\n    \"name\": \"a\",\n    \"size_bytes\": 2048,\n    \"note\": null,\n    \"tags\": []\n  },\n  {\n    \"name\": \"längst\",\n    \"size_bytes\": 5,\n" +
			"    \"note\": \"true <b> \\\"x\\\", ü\",\n    \"tags\": [\n      \"1\",\n      \"x y\"\n    ]\n  }\n]\n",
		"yaml": "- name: a\n  size_bytes: 2048\n  note: null\n  tags: []\n- name: längst\n  size_bytes: 5\n  note: true <b> \"x\", ü\n  tags:\n    - \"1\"\n    - x y\n",
		"csv":  "name,size_bytes,note,tags\na,2048,,[]\nlängst,5,\"true <b> \"\"x\"\", ü\",\"[\"\"1\"\",\"\"x y\"\"]\"\n",
		"name": "a\nlängst\n",
	} {
		var b bytes.Buffer
		if err := printRows(&printer{w: &b, format: format}, sampleColumns(), rows); err != nil {
			t.Errorf("%s: %v", format, err)
		}
		if d := cmp.Diff(want, b.String()); d != "" {
			t.Errorf("%s: %s", format, d)
		}
	}
}

func TestTemplatesAndHeaders(t *testing.T) {
	var b bytes.Buffer
	big := sampleRow{name: "a", size: 1<<62 + 1}
	p := &printer{w: &b, format: "go", tmpl: template.Must(template.New("").Option("missingkey=error").Parse("{{.name}} {{.size_bytes}}\n"))}
	if err := printRows(p, sampleColumns(), []sampleRow{big}); err != nil || b.String() != "a 4611686018427387905\n" {
		t.Errorf("%q, %v", b.String(), err)
	}
	b.Reset()
	p = &printer{w: &b, format: "table", noHeaders: true}
	if err := printRows(p, sampleColumns(), []sampleRow{big}); err != nil || strings.Contains(b.String(), "NAME") {
		t.Errorf("%q, %v", b.String(), err)
	}
	b.Reset()
	p = &printer{w: &b, format: "yaml", single: true}
	if err := printRows(p, sampleColumns(), []sampleRow{big}); err != nil || !strings.HasPrefix(b.String(), "name: a\n") {
		t.Errorf("%q, %v", b.String(), err)
	}
}

// TestKeysAreSnakeCase holds what every command that takes -o promises: stable keys with a meaning.
func TestKeysAreSnakeCase(t *testing.T) {
	for _, p := range leafPaths(testTree(), nil) {
		if findFlag(p.leaf.Flags, "no-headers") == nil {
			continue
		}
		stdout, stderr, status := execute(t, "", append(p.names, "-o", "schema")...)
		if status != 0 {
			t.Errorf("kctl %s -o schema: %d %s", strings.Join(p.names, " "), status, stderr)
		}
		for line := range strings.Lines(stdout) {
			key, doc, _ := strings.Cut(strings.TrimSpace(line), "  ")
			if strings.Trim(key, "abcdefghijklmnopqrstuvwxyz0123456789_") != "" || strings.TrimSpace(doc) == "" {
				t.Errorf("kctl %s: key %q means %q", strings.Join(p.names, " "), key, doc)
			}
		}
	}
}

func TestColoursGoWhereTheyAreWanted(t *testing.T) {
	for _, tt := range []struct {
		flag, noColor string
		tty, want     bool
	}{{"", "", true, true}, {"", "1", true, false}, {"", "", false, false}, {"always", "1", false, true}, {"never", "", true, false}} {
		s, _, errOut := testSession("", map[string]string{"NO_COLOR": tt.noColor})
		s.errTTY = tt.tty
		s.colour(invocation{flags: []flagValue{{"color", tt.flag}}})
		s.exit(usage("x"))
		if got := strings.Contains(errOut.String(), "\x1b["); got != tt.want {
			t.Errorf("%+v: %q", tt, errOut)
		}
	}
}
