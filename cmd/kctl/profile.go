package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"
	"gopkg.in/yaml.v3"
)

// profiles is a file of named clusters: .kctl.yaml of a project, else config.yaml of the user.
type profiles struct {
	Current  string             `yaml:"current,omitempty"`
	Profiles map[string]profile `yaml:"profiles,omitempty"`
	path     string
}

// profile is how to reach one cluster.
type profile struct {
	Bootstrap  []string          `yaml:"bootstrap"`
	Properties map[string]string `yaml:"properties,omitempty"`
}

// userProfiles is where profiles are written.
func (s *session) userProfiles() (string, error) {
	if f := s.getenv("KCTL_CONFIG"); f != "" {
		return f, nil
	}
	if dir := first(s.getenv("XDG_CONFIG_HOME")); dir != "" {
		return filepath.Join(dir, "kctl", "config.yaml"), nil
	}
	home := s.getenv("HOME")
	if home == "" {
		return "", usage("neither KCTL_CONFIG nor HOME is set, so there is no place for profiles")
	}
	return filepath.Join(home, ".config", "kctl", "config.yaml"), nil
}

// projectProfiles is the nearest .kctl.yaml from here up to the root of the git tree; "" when there is none.
func projectProfiles() string {
	dir, err := os.Getwd()
	for err == nil {
		file := filepath.Join(dir, ".kctl.yaml")
		if _, err := os.Stat(file); err == nil {
			return file
		}
		if _, err := os.Stat(filepath.Join(dir, ".git")); err == nil || filepath.Dir(dir) == dir {
			return ""
		}
		dir = filepath.Dir(dir)
	}
	return ""
}

func readProfiles(path string) (*profiles, error) {
	p := &profiles{Profiles: map[string]profile{}, path: path}
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return p, nil
	}
	if err != nil {
		return nil, usage("%s", err)
	}
	d := yaml.NewDecoder(bytes.NewReader(b))
	d.KnownFields(true)
	if err := d.Decode(p); err != nil && len(bytes.TrimSpace(b)) > 0 {
		return nil, usage("%s: %s", path, err)
	}
	if p.Profiles == nil {
		p.Profiles = map[string]profile{}
	}
	return p, nil
}

// write replaces the file; it may hold secrets, so only its owner reads it.
func (p *profiles) write() error {
	b, err := yaml.Marshal(p)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(p.path), 0o700); err != nil {
		return err
	}
	next := p.path + ".new"
	if err := os.WriteFile(next, b, 0o600); err != nil {
		return err
	}
	return os.Rename(next, p.path)
}

// profile finds the profile of a command: --profile, KCTL_PROFILE, the current one of the project's file, that of the user's.
// No profile is an empty one.
func (s *session) profile(c *cli.Context) (profile, error) {
	name := first(c.String("profile"), s.getenv("KCTL_PROFILE"))
	var files []string
	if f := projectProfiles(); f != "" {
		files = append(files, f)
	}
	if f, err := s.userProfiles(); err == nil {
		files = append(files, f)
	}
	for _, f := range files {
		p, err := readProfiles(f)
		if err != nil {
			return profile{}, err
		}
		if found, ok := p.Profiles[first(name, p.Current)]; ok {
			return found, nil
		}
	}
	if name != "" {
		return profile{}, &failure{status: exitNotFound, text: "there is no profile " + name, advice: "`kctl profile list` shows what exists"}
	}
	return profile{}, nil
}

// profileRow is a profile in a list.
type profileRow struct {
	name string
	profile
	current bool
	file    string
}

func profileColumns() []column[profileRow] {
	return []column[profileRow]{
		{key: "name", doc: "the profile", value: func(p profileRow) any { return p.name }},
		{key: "current", doc: "whether it is used when no other is named", value: func(p profileRow) any { return p.current }},
		{key: "bootstrap", doc: "brokers", value: func(p profileRow) any { return notNil(p.Bootstrap) }, text: func(p profileRow) string { return strings.Join(p.Bootstrap, ",") }},
		{key: "properties", doc: "names of its client properties; values may be secret", value: func(p profileRow) any { return notNil(sortedKeys(p.Properties)) }, text: func(p profileRow) string { return strings.Join(sortedKeys(p.Properties), ",") }},
		{key: "file", wide: true, doc: "where it stands", value: func(p profileRow) any { return p.file }},
	}
}

func profileCommand(s *session) *cli.Command {
	return &cli.Command{
		Name:  "profile",
		Usage: "name clusters and switch between them",
		Subcommands: []*cli.Command{
			{
				Name: "list", Usage: "list profiles",
				Description: describe("Profiles stand in .kctl.yaml of a project (searched from here up to the root of the git tree) and in ~/.config/kctl/config.yaml (or KCTL_CONFIG).",
					"kctl profile list", "kctl profile list -o wide"),
				Flags: flagSet(nil, outputFlags()), Action: listing(s, profileColumns(), func(*cli.Context) ([]profileRow, error) { return s.profileRows() }),
			},
			{
				Name: "current", Usage: "print the name of the profile in use, for a prompt",
				Description: describe("", "kctl profile current -o name", "kctl profile current -o 'go={{.name}}'"),
				Flags:       flagSet(nil, outputFlags()), Action: listing(s, profileColumns(), s.profileCurrent),
			},
			{
				Name: "add", Usage: "add or replace a profile", ArgsUsage: "NAME",
				Description: describe("Takes brokers from -b and client properties from -X. Secrets are better named than written: -X sasl.password=@FILE or env:NAME. The first profile becomes the current one.",
					"kctl profile add local -b localhost:9092", "kctl profile add prod -b k1:9092,k2:9092 -X security.protocol=SASL_SSL -X sasl.password=env:PROD_PASSWORD"),
				Flags: flagSet(nil, outputFlags(), clientFlags()), Action: listing(s, profileColumns(), s.profileAdd),
			},
			{
				Name: "use", Usage: "make a profile the current one", ArgsUsage: "NAME",
				Description: describe("", "kctl profile use prod", "kctl profile use local"),
				Flags:       flagSet(nil, outputFlags()), Action: listing(s, profileColumns(), s.profileUse),
			},
			{
				Name: "delete", Usage: "forget a profile", ArgsUsage: "NAME",
				Description: describe("", "kctl profile delete local", "kctl profile delete prod"),
				Flags:       flagSet(nil, outputFlags()), Action: listing(s, profileColumns(), s.profileDelete),
			},
		},
	}
}

func (s *session) profileRows() ([]profileRow, error) {
	var files []string
	if f := projectProfiles(); f != "" {
		files = append(files, f)
	}
	user, err := s.userProfiles()
	if err != nil {
		return nil, err
	}
	var rows []profileRow
	current := s.getenv("KCTL_PROFILE")
	for _, f := range append(files, user) {
		p, err := readProfiles(f)
		if err != nil {
			return nil, err
		}
		current = first(current, p.Current)
		for _, name := range sortedKeys(p.Profiles) {
			if !slices.ContainsFunc(rows, func(r profileRow) bool { return r.name == name }) {
				rows = append(rows, profileRow{name: name, profile: p.Profiles[name], file: f})
			}
		}
	}
	for i := range rows {
		rows[i].current = rows[i].name == current
	}
	return rows, nil
}

func (s *session) profileCurrent(*cli.Context) ([]profileRow, error) {
	rows, err := s.profileRows()
	return slices.DeleteFunc(rows, func(r profileRow) bool { return !r.current }), err
}

// editProfiles changes the user's file.
func (s *session) editProfiles(c *cli.Context, edit func(p *profiles, name string) error) ([]profileRow, error) {
	if err := needArgs(c, 1, 1, "name"); err != nil {
		return nil, err
	}
	file, err := s.userProfiles()
	if err != nil {
		return nil, err
	}
	p, err := readProfiles(file)
	if err != nil {
		return nil, err
	}
	if err := edit(p, c.Args().First()); err != nil {
		return nil, err
	}
	if err := p.write(); err != nil {
		return nil, fmt.Errorf("write %s: %w", file, err)
	}
	return s.profileRows()
}

func (s *session) profileAdd(c *cli.Context) ([]profileRow, error) {
	return s.editProfiles(c, func(p *profiles, name string) error {
		added := profile{Properties: map[string]string{}}
		for _, b := range c.StringSlice("bootstrap-server") {
			added.Bootstrap = append(added.Bootstrap, strings.Split(b, ",")...)
		}
		if len(added.Bootstrap) == 0 {
			return usage("missing -b HOST:PORT")
		}
		for _, x := range c.StringSlice("property") {
			key, value, ok := strings.Cut(x, "=")
			if !ok {
				return usage("-X %s: want KEY=VALUE", x)
			}
			added.Properties[key] = value
		}
		p.Profiles[name] = added
		p.Current = first(p.Current, name)
		return nil
	})
}

func (s *session) profileUse(c *cli.Context) ([]profileRow, error) {
	rows, err := s.profileRows()
	if err != nil {
		return nil, err
	}
	return s.editProfiles(c, func(p *profiles, name string) error {
		if !slices.ContainsFunc(rows, func(r profileRow) bool { return r.name == name }) {
			return &failure{status: exitNotFound, text: "there is no profile " + name}
		}
		p.Current = name
		return nil
	})
}

func (s *session) profileDelete(c *cli.Context) ([]profileRow, error) {
	return s.editProfiles(c, func(p *profiles, name string) error {
		if _, ok := p.Profiles[name]; !ok {
			return &failure{status: exitNotFound, text: "there is no profile " + name + " in " + p.path}
		}
		delete(p.Profiles, name)
		if p.Current == name {
			p.Current = ""
		}
		return nil
	})
}
