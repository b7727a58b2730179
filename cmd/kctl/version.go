package main

import (
	"runtime"
	"runtime/debug"

	"github.com/urfave/cli/v2"
)

// Set by the linker (see Makefile); without it the Go tool's record of the working tree is used.
var version, commit, date string

type build struct {
	Version, Commit, Date string
	Modified              bool // built from a tree with changes that are not committed
}

func buildInfo() build {
	b := build{Version: version, Commit: commit, Date: date}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		info = &debug.BuildInfo{}
	}
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision" && b.Commit == "":
			b.Commit = s.Value[:min(12, len(s.Value))]
		case s.Key == "vcs.time" && b.Date == "":
			b.Date = s.Value
		case s.Key == "vcs.modified" && version == "":
			b.Modified = s.Value == "true"
		}
	}
	if b.Version == "" && info.Main.Version != "(devel)" {
		b.Version = info.Main.Version
	}
	for _, p := range []*string{&b.Version, &b.Commit, &b.Date} {
		if *p == "" {
			*p = "unknown"
		}
	}
	return b
}

func versionCommand(s *session) *cli.Command {
	cols := []column[build]{
		{key: "version", doc: "the release, or the nearest tag and the distance from it", value: func(b build) any { return b.Version }},
		{key: "commit", doc: "the commit this was built from", value: func(b build) any { return b.Commit }},
		{key: "date", doc: "when that commit was made", value: func(b build) any { return b.Date }},
		{key: "modified", doc: "whether the tree had changes that were not committed", wide: true, value: func(b build) any { return b.Modified }},
		{key: "go", doc: "the Go release it was built with", value: func(build) any { return runtime.Version() }},
		{key: "platform", doc: "operating system and processor", value: func(build) any { return runtime.GOOS + "/" + runtime.GOARCH }},
	}
	return &cli.Command{
		Name:  "version",
		Usage: "say which build this is",
		Description: describe("",
			"kctl version",
			"kctl version -o json"),
		Flags:  outputFlags(),
		Action: single(s, cols, func(*cli.Context) (build, error) { return buildInfo(), nil }),
	}
}
