package main

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/template"
	"unicode/utf8"

	"github.com/urfave/cli/v2"
	"gopkg.in/yaml.v3"
)

// column is one property of the rows a command prints: the key in json, yaml, csv and templates, and a column of the
// table. Keys are snake_case and stay; heads and texts may change.
type column[T any] struct {
	key   string
	head  string // of the table; "" is the key in capitals, "-" is not in tables
	wide  bool   // only in -o wide
	right bool   // numbers
	doc   string // for -o schema and docs/kctl.md
	value func(T) any
	text  func(T) string // in tables; nil: the value as it is
}

// formats are the values of -o. go=TEMPLATE and schema come on top.
var formats = []string{"table", "wide", "json", "jsonl", "yaml", "csv", "name"}

func outputFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "output", Aliases: []string{"o"}, Category: "Output", Usage: "`FORMAT`: " + strings.Join(formats, ", ") +
			", go=TEMPLATE, or schema for what the keys mean (default: table)"},
		&cli.BoolFlag{Name: "no-headers", Category: "Output", Usage: "tables and csv without the line of headings"},
		colorFlag(),
	}
}

func colorFlag() cli.Flag {
	return &cli.StringFlag{Name: "color", Category: "Output", Usage: "`WHEN`: auto, always or never (default: auto; NO_COLOR is honoured)"}
}

// printer knows how rows are wanted.
type printer struct {
	w         io.Writer
	format    string
	tmpl      *template.Template // with format "go"
	noHeaders bool
	single    bool // one object, not a list
}

func newPrinter(s *session, c *cli.Context) (*printer, error) {
	p := &printer{w: s.out, format: c.String("output"), noHeaders: c.Bool("no-headers")}
	if p.format == "" {
		p.format = s.getenv("KCTL_OUTPUT")
	}
	if p.format == "" {
		p.format = "table"
	}
	if text, ok := strings.CutPrefix(p.format, "go="); ok {
		if !strings.HasSuffix(text, "\n") {
			text += "\n"
		}
		tmpl, err := template.New("-o").Option("missingkey=error").Parse(strings.ReplaceAll(text, `\t`, "\t"))
		if err != nil {
			return nil, usage("bad template: %s", err)
		}
		p.tmpl, p.format = tmpl, "go"
		return p, nil
	}
	for _, f := range append(formats, "schema") {
		if p.format == f {
			return p, nil
		}
	}
	return nil, usage("unknown output format %q%s; there are %s and go=TEMPLATE", p.format, didYouMean(p.format, formats), strings.Join(formats, ", "))
}

// listing makes an action of a function that finds rows. Rows found before an error are printed, then the error.
func listing[T any](s *session, cols []column[T], find func(*cli.Context) ([]T, error)) cli.ActionFunc {
	return func(c *cli.Context) error {
		p, err := newPrinter(s, c)
		if err != nil {
			return err
		}
		if p.format == "schema" {
			return printSchema(p, cols)
		}
		rows, err := find(c)
		if len(rows) > 0 || err == nil {
			if err := printRows(p, cols, rows); err != nil {
				return err
			}
		}
		return err
	}
}

// single is listing for exactly one row: json without the brackets, a table of keys and values.
func single[T any](s *session, cols []column[T], find func(*cli.Context) (T, error)) cli.ActionFunc {
	return func(c *cli.Context) error {
		p, err := newPrinter(s, c)
		if err != nil {
			return err
		}
		if p.format == "schema" {
			return printSchema(p, cols)
		}
		row, err := find(c)
		if err != nil {
			return err
		}
		p.single = true
		return printRows(p, cols, []T{row})
	}
}

func printRows[T any](p *printer, cols []column[T], rows []T) error {
	switch p.format {
	case "json", "yaml":
		return p.document(objects(cols, rows))
	case "jsonl":
		for _, o := range objects(cols, rows) {
			if err := p.line(o); err != nil {
				return err
			}
		}
		return nil
	case "go":
		return p.template(objects(cols, rows))
	case "csv":
		return printCSV(p, cols, rows)
	case "name":
		for _, r := range rows {
			fmt.Fprintln(p.w, plainText(cols[0].value(r)))
		}
		return nil
	}
	if p.single {
		return printPairs(p, cols, rows[0])
	}
	return printTable(p, cols, rows)
}

// object is a row with its keys in order.
type object []member

type member struct {
	key   string
	value any
}

// MarshalJSON writes the members in their order; a map would sort them.
func (o object) MarshalJSON() ([]byte, error) {
	b := []byte{'{'}
	for i, m := range o {
		if i > 0 {
			b = append(b, ',')
		}
		v, err := jsonBytes(m.value)
		if err != nil {
			return nil, err
		}
		b = append(append(strconv.AppendQuote(b, m.key), ':'), v...)
	}
	return append(b, '}'), nil
}

// jsonBytes is json.Marshal without the escapes meant for HTML.
func jsonBytes(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}

func objects[T any](cols []column[T], rows []T) []object {
	out := make([]object, 0, len(rows))
	for _, r := range rows {
		o := make(object, 0, len(cols))
		for _, c := range cols {
			o = append(o, member{c.key, c.value(r)})
		}
		out = append(out, o)
	}
	return out
}

func (p *printer) document(rows []object) error {
	var v any = rows
	if p.single {
		v = rows[0]
	}
	b, err := jsonBytes(v)
	if err != nil {
		return err
	}
	if p.format == "yaml" {
		return writeYAML(p.w, b)
	}
	var indented bytes.Buffer
	if err := json.Indent(&indented, b, "", "  "); err != nil {
		return err
	}
	indented.WriteByte('\n')
	_, err = p.w.Write(indented.Bytes())
	return err
}

func (p *printer) line(o object) error {
	b, err := jsonBytes(o)
	if err != nil {
		return err
	}
	_, err = p.w.Write(append(b, '\n'))
	return err
}

// writeYAML turns json into yaml by reading it as what it is, a subset, and writing it in block style. Order stays.
func writeYAML(w io.Writer, b []byte) error {
	var n yaml.Node
	if err := yaml.Unmarshal(b, &n); err != nil {
		return err
	}
	blockStyle(&n)
	e := yaml.NewEncoder(w)
	e.SetIndent(2)
	if err := e.Encode(&n); err != nil {
		return err
	}
	return e.Close()
}

func blockStyle(n *yaml.Node) {
	if n.Kind != yaml.ScalarNode || !needsQuotes(n) {
		n.Style = 0
	}
	if (n.Kind == yaml.SequenceNode || n.Kind == yaml.MappingNode) && len(n.Content) == 0 {
		n.Style = yaml.FlowStyle
	}
	for _, c := range n.Content {
		blockStyle(c)
	}
}

// needsQuotes says whether a string would become something else without them ("true", "7", "").
func needsQuotes(n *yaml.Node) bool {
	if n.Tag != "!!str" {
		return false
	}
	var v any
	return yaml.Unmarshal([]byte(n.Value), &v) != nil || v != any(n.Value)
}

// template runs -o go=TEMPLATE over each row; it sees what json shows.
func (p *printer) template(rows []object) error {
	for _, o := range rows {
		b, err := jsonBytes(o)
		if err != nil {
			return err
		}
		var v map[string]any
		d := json.NewDecoder(bytes.NewReader(b))
		d.UseNumber() // offsets do not fit a float
		if err := d.Decode(&v); err != nil {
			return err
		}
		if err := p.tmpl.Execute(p.w, v); err != nil {
			return usage("%s", err)
		}
	}
	return nil
}

func printCSV[T any](p *printer, cols []column[T], rows []T) error {
	w := csv.NewWriter(p.w)
	if !p.noHeaders {
		var head []string
		for _, c := range cols {
			head = append(head, c.key)
		}
		w.Write(head)
	}
	for _, r := range rows {
		var cells []string
		for _, c := range cols {
			cells = append(cells, plainText(c.value(r)))
		}
		w.Write(cells)
	}
	w.Flush()
	return w.Error()
}

// plainText is a value as csv and name show it: null is empty, what is nested is json.
func plainText(v any) string {
	switch v := v.(type) {
	case nil:
		return ""
	case string:
		return v
	case *string:
		if v == nil {
			return ""
		}
		return *v
	}
	b, err := jsonBytes(v)
	if err != nil {
		return fmt.Sprint(v)
	}
	if s := string(b); s != "null" {
		return s
	}
	return ""
}

func tableCell[T any](c column[T], r T) string {
	var s string
	if c.text != nil {
		s = c.text(r)
	} else {
		s = plainText(c.value(r))
	}
	if s == "" {
		return "-"
	}
	return s
}

func (c column[T]) heading() string {
	if c.head != "" {
		return c.head
	}
	return strings.ToUpper(strings.ReplaceAll(c.key, "_", " "))
}

func printTable[T any](p *printer, cols []column[T], rows []T) error {
	var heads []string
	var right []bool
	var shown []column[T]
	for _, c := range cols {
		if c.head == "-" || c.wide && p.format != "wide" {
			continue
		}
		shown, heads, right = append(shown, c), append(heads, c.heading()), append(right, c.right)
	}
	var lines [][]string
	if !p.noHeaders {
		lines = append(lines, heads)
	}
	for _, r := range rows {
		var line []string
		for _, c := range shown {
			line = append(line, tableCell(c, r))
		}
		lines = append(lines, line)
	}
	return writeLines(p.w, lines, right)
}

func printPairs[T any](p *printer, cols []column[T], row T) error {
	var lines [][]string
	for _, c := range cols {
		if c.head == "-" || c.wide && p.format != "wide" {
			continue
		}
		lines = append(lines, []string{strings.ToLower(c.heading()), tableCell(c, row)})
	}
	return writeLines(p.w, lines, nil)
}

// writeLines aligns cells by the number of characters, two blanks between columns, none at the end of a line.
func writeLines(w io.Writer, lines [][]string, right []bool) error {
	var widths []int
	for _, l := range lines {
		for i, cell := range l {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	var b strings.Builder
	for _, l := range lines {
		b.Reset()
		for i, cell := range l {
			if i > 0 {
				b.WriteString("  ")
			}
			pad := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell))
			if i < len(right) && right[i] {
				b.WriteString(pad + cell)
			} else {
				b.WriteString(cell + pad)
			}
		}
		if _, err := fmt.Fprintln(w, strings.TrimRight(b.String(), " ")); err != nil {
			return err
		}
	}
	return nil
}

// printSchema says what the keys of a command's json mean.
func printSchema[T any](p *printer, cols []column[T]) error {
	var lines [][]string
	for _, c := range cols {
		lines = append(lines, []string{c.key, c.doc})
	}
	return writeLines(p.w, lines, nil)
}
