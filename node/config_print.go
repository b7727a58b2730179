package node

import (
	"fmt"
	"io"

	"github.com/karstlog/karst/config"
)

// Print writes the settings in force in the form of a properties file, each with where it came from; with all also those
// at their default, as comments. Secrets are masked.
func (l *Loaded) Print(w io.Writer, all bool) error {
	layers := config.Layers{Static: l.Static}
	for _, v := range layers.DescribeBroker() {
		set := v.Source == config.SourceStatic
		if !set && !all {
			continue
		}
		value, before := escapeValue(v.Value), "#"
		switch {
		case set:
			before = "# " + l.Sources[v.Option.Name] + "\n"
			if v.Option.Sensitive {
				value = "[hidden]"
			}
		case v.Null:
			continue
		}
		if _, err := fmt.Fprintf(w, "%s%s=%s\n", before, v.Option.Name, value); err != nil {
			return err
		}
	}
	return nil
}

// escapeValue writes a value so that properties.Parse reads it back.
func escapeValue(v string) string {
	var b []byte
	for i := range len(v) {
		switch c := v[i]; {
		case c == '\\':
			b = append(b, `\\`...)
		case c == '\n':
			b = append(b, `\n`...)
		case c == '\r':
			b = append(b, `\r`...)
		case c == '\t':
			b = append(b, `\t`...)
		case c == '\f':
			b = append(b, `\f`...)
		case c == ' ' && i == 0:
			b = append(b, `\ `...)
		default:
			b = append(b, c)
		}
	}
	return string(b)
}
