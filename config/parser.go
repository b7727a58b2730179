package config

import (
	"strconv"
	"time"
)

// parser reads typed values out of layers and remembers the first error, so that a struct can be filled in one go.
// Asking for an option that is not in the table is a bug and panics.
type parser struct {
	layers *Layers
	scope  Scope
	err    error
}

func (p *parser) option(name string) *Option {
	o, ok := find(p.scope, name)
	if !ok {
		panic("config: no " + p.scope.String() + " option " + name)
	}
	return o
}

// string returns the value in force, empty when there is none. It is checked here, since a file may hold anything.
func (p *parser) string(name string) string {
	o := p.option(name)
	v, null, src := p.layers.inForce(o)
	if null || src == SourceDefault {
		return v
	}
	c, err := o.Canonical(v)
	p.fail(err)
	return c
}

func (p *parser) fail(err error) {
	if p.err == nil && err != nil {
		p.err = err
	}
}

func (p *parser) source(name string) Source {
	_, _, src := p.layers.inForce(p.option(name))
	return src
}

func (p *parser) isSet(name string) bool { return p.source(name) != SourceDefault }

func (p *parser) int64(name string) int64 {
	v := p.string(name)
	if v == "" {
		return 0
	}
	n, err := strconv.ParseInt(v, 10, 64)
	if err != nil {
		p.fail(&ValueError{Name: name, Value: v, Reason: "Not a number"})
	}
	return n
}

func (p *parser) int32(name string) int32 { return int32(p.int64(name)) } // INT was checked to fit

// duration reads a time; -1 and below, where the option admits them, are -1 ("no limit").
func (p *parser) duration(name string) time.Duration {
	n := p.int64(name)
	size := unitSize[p.option(name).Unit]
	if n > 0 && n > (1<<63-1)/size {
		return 1<<63 - 1
	}
	return millis(n * size)
}

func (p *parser) bool(name string) bool { return p.string(name) == "true" }

func (p *parser) list(name string) []string { return SplitList(p.string(name)) }

func (p *parser) float(name string) float64 {
	f, err := strconv.ParseFloat(p.string(name), 64)
	if err != nil {
		p.fail(&ValueError{Name: name, Value: p.string(name), Reason: "Not a number of type DOUBLE"})
	}
	return f
}
