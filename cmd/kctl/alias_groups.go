package main

import (
	"cmp"
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
)

func consumerGroupsAlias(*session) alias {
	return alias{
		name: "kafka-consumer-groups", usage: "as Kafka's tool: list, describe and delete groups, reset and delete offsets", failed: "Error: Executing consumer group command failed due to",
		options: commonOptions(
			aliasOption{"list", switchOption, "list groups"},
			aliasOption{"describe", switchOption, "describe groups"},
			aliasOption{"reset-offsets", switchOption, "move the offsets of groups"},
			aliasOption{"delete", switchOption, "delete groups"},
			aliasOption{"delete-offsets", switchOption, "delete offsets of topics"},
			aliasOption{"group", valueOption, "`GROUP`; repeatable"},
			aliasOption{"all-groups", switchOption, "all groups"},
			aliasOption{"topic", valueOption, "`TOPIC[:P,P]`; repeatable"},
			aliasOption{"all-topics", switchOption, "all topics that the group has offsets of"},
			aliasOption{"offsets", switchOption, "describe offsets (the default)"},
			aliasOption{"members", switchOption, "describe members"},
			aliasOption{"state", optionalOption, "describe the state; with --list, show it, and only groups in `STATE,STATE`"},
			aliasOption{"type", optionalOption, "with --list, show the type, and only groups of `TYPE,TYPE`"},
			aliasOption{"verbose", switchOption, "describe more"},
			aliasOption{"timeout", valueOption, "`MILLISECONDS` to wait for brokers"},
			aliasOption{"dry-run", switchOption, "only show what would be done (the default)"},
			aliasOption{"execute", switchOption, "do it"},
			aliasOption{"export", switchOption, "write the new offsets as csv"},
			aliasOption{"to-offset", valueOption, "`OFFSET` to go to"},
			aliasOption{"to-datetime", valueOption, "`TIME` to go to: YYYY-MM-DDTHH:mm:SS.sss"},
			aliasOption{"by-duration", valueOption, "`DURATION` to go back from now: PnDTnHnMnS"},
			aliasOption{"to-earliest", switchOption, "go to the start"},
			aliasOption{"to-latest", switchOption, "go to the end"},
			aliasOption{"shift-by", valueOption, "`N` records forward, or back if negative"},
			aliasOption{"from-file", valueOption, "csv `FILE` of offsets"},
			aliasOption{"to-current", switchOption, "stay"},
		),
		examples: []string{
			"kctl kafka-consumer-groups --bootstrap-server localhost:9092 --describe --group billing",
			"kctl kafka-consumer-groups --bootstrap-server localhost:9092 --group billing --topic orders --reset-offsets --to-earliest --execute",
		},
		run: runConsumerGroups,
	}
}

func runConsumerGroups(a *aliasCall) error {
	action, err := a.only("list", "describe", "reset-offsets", "delete", "delete-offsets")
	if err != nil {
		return err
	}
	if action != "list" && !a.has("group") && !a.has("all-groups") {
		return usage("Option --%s takes one of these options: --group, --all-groups", action)
	}
	if ms, err := a.int("timeout", 1); err != nil || ms < 1 {
		return usage("--timeout %s: want milliseconds", a.value("timeout"))
	}
	l, ctx, hangUp, err := a.open()
	if err != nil {
		return err
	}
	defer hangUp()
	names := slices.Clone(a.values["group"])
	if a.has("all-groups") || action == "list" {
		groups, err := l.adm.ListGroups(ctx)
		if err != nil {
			return err
		}
		if action == "list" {
			a.listGroups(groups.Sorted())
			return nil
		}
		names = groups.Groups()
	}
	slices.Sort(names)
	switch action {
	case "describe":
		return each(names, func(g string) error { return a.describeGroup(ctx, l, g) })
	case "delete":
		return a.deleteGroups(ctx, l, names)
	case "delete-offsets":
		return each(names, func(g string) error { return a.deleteOffsets(ctx, l, g) })
	}
	return a.resetOffsets(ctx, l, names)
}

func (a *aliasCall) listGroups(groups []kadm.ListedGroup) {
	if !a.has("state") && !a.has("type") {
		for _, g := range groups {
			a.print("%s", g.Group)
		}
		return
	}
	states := strings.FieldsFunc(a.value("state"), func(r rune) bool { return r == ',' || r == ' ' })
	kinds := strings.FieldsFunc(a.value("type"), func(r rune) bool { return r == ',' || r == ' ' })
	lines := [][]string{{"GROUP"}}
	if a.has("type") {
		lines[0] = append(lines[0], "TYPE")
	}
	if a.has("state") {
		lines[0] = append(lines[0], "STATE")
	}
	for _, g := range groups {
		kind := cmp.Or(g.GroupType, "classic")
		if !isOneOf(g.State, states) || !isOneOf(kind, kinds) {
			continue
		}
		line := []string{g.Group}
		if a.has("type") {
			line = append(line, strings.ToUpper(kind[:1])+kind[1:])
		}
		if a.has("state") {
			line = append(line, g.State)
		}
		lines = append(lines, line)
	}
	a.table(lines)
}

// table prints columns as wide as their widest cell, at least 15 characters, as Kafka's tools do.
func (a *aliasCall) table(lines [][]string) {
	widths := map[int]int{}
	for _, l := range lines {
		for i, cell := range l {
			widths[i] = max(widths[i], len(cell), 10)
		}
	}
	for _, l := range lines {
		var b strings.Builder
		for i, cell := range l {
			if i > 0 {
				b.WriteByte(' ')
			}
			if i == len(l)-1 {
				b.WriteString(cell)
			} else {
				fmt.Fprintf(&b, "%-*s", widths[i], cell)
			}
		}
		a.print("%s", b.String())
	}
}

func (a *aliasCall) describeGroup(ctx context.Context, l *link, name string) error {
	groups, err := l.fullGroups(ctx, []string{name})
	if errors.Is(err, kerr.GroupIDNotFound) {
		a.print("\nError: Consumer group '%s' does not exist.", name)
		return nil // as Kafka's tool has it
	}
	if err != nil {
		return err
	}
	g := &groups[0]
	switch {
	case a.has("state"):
		return a.describeGroupState(ctx, l, g)
	case a.has("members"):
		a.tellOfState(g)
		a.describeGroupMembers(g)
	default:
		a.tellOfState(g)
		a.describeGroupOffsets(g)
	}
	return nil
}

func (a *aliasCall) tellOfState(g *consumerGroup) {
	switch g.state {
	case "Empty":
		a.s.say("\nConsumer group '%s' has no active members.", g.id)
	case "Dead":
		a.s.say("\nConsumer group '%s' does not exist.", g.id)
	case "PreparingRebalance", "CompletingRebalance", "Assigning", "Reconciling":
		a.s.say("\nWarning: Consumer group '%s' is rebalancing.", g.id)
	}
}

func dash(n *int64) string {
	if n == nil {
		return "-"
	}
	return fmt.Sprint(*n)
}

func (a *aliasCall) describeGroupOffsets(g *consumerGroup) {
	if len(g.partitions) == 0 && len(g.members) == 0 {
		return
	}
	member := map[string]groupMember{}
	for _, m := range g.members {
		member[m.ID] = m
	}
	head := []string{"GROUP", "TOPIC", "PARTITION"}
	if a.has("verbose") {
		head = append(head, "LEADER-EPOCH")
	}
	lines := [][]string{append(head, "CURRENT-OFFSET", "LOG-END-OFFSET", "LAG", "CONSUMER-ID", "HOST", "CLIENT-ID")}
	idle := map[string]bool{}
	for _, m := range g.members {
		idle[m.ID] = true
	}
	for _, p := range g.partitions {
		line := []string{g.id, p.Topic, fmt.Sprint(p.Partition)}
		if a.has("verbose") {
			epoch := "-"
			if p.LeaderEpoch >= 0 {
				epoch = fmt.Sprint(p.LeaderEpoch)
			}
			line = append(line, epoch)
		}
		line = append(line, dash(p.Committed), dash(p.End), dash(p.Lag))
		if p.Member == nil {
			line = append(line, "-", "-", "-")
		} else {
			m := member[*p.Member]
			delete(idle, m.ID)
			line = append(line, m.ID, "/"+m.Host, m.Client)
		}
		lines = append(lines, line)
	}
	for _, m := range g.members {
		if idle[m.ID] {
			line := []string{g.id, "-", "-"}
			if a.has("verbose") {
				line = append(line, "-")
			}
			lines = append(lines, append(line, "-", "-", "-", m.ID, "/"+m.Host, m.Client))
		}
	}
	a.print("")
	a.table(lines)
}

func (a *aliasCall) describeGroupMembers(g *consumerGroup) {
	if len(g.members) == 0 {
		return
	}
	static := slices.ContainsFunc(g.members, func(m groupMember) bool { return m.Instance != nil })
	head := []string{"GROUP", "CONSUMER-ID"}
	if static {
		head = append(head, "GROUP-INSTANCE-ID")
	}
	head = append(head, "HOST", "CLIENT-ID", "#PARTITIONS")
	if a.has("verbose") {
		head = append(head, "CURRENT-EPOCH", "CURRENT-ASSIGNMENT", "TARGET-EPOCH", "TARGET-ASSIGNMENT")
	}
	lines := [][]string{head}
	for _, m := range g.members {
		line := []string{g.id, m.ID}
		if static {
			line = append(line, cmp.Or(orEmpty(m.Instance), "-"))
		}
		line = append(line, "/"+m.Host, m.Client, fmt.Sprint(len(m.assigned)))
		if a.has("verbose") {
			line = append(line, "-", cmp.Or(strings.ReplaceAll(m.partitionsText(), " ", ";"), "-"), "-", "-")
		}
		lines = append(lines, line)
	}
	a.print("")
	a.table(lines)
}

func orEmpty(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

func (a *aliasCall) describeGroupState(ctx context.Context, l *link, g *consumerGroup) error {
	resp, err := l.adm.ListBrokers(ctx)
	if err != nil {
		return err
	}
	coordinator := fmt.Sprintf("(%d)", g.coordinator)
	for _, b := range resp {
		if b.NodeID == g.coordinator {
			coordinator = fmt.Sprintf("%s:%d (%d)", b.Host, b.Port, b.NodeID)
		}
	}
	a.tellOfState(g)
	a.print("")
	a.table([][]string{
		{"GROUP", "COORDINATOR (ID)", "ASSIGNMENT-STRATEGY", "STATE", "#MEMBERS"},
		{g.id, coordinator, cmp.Or(g.assignor, "-"), g.state, fmt.Sprint(len(g.members))},
	})
	return nil
}

func (a *aliasCall) deleteGroups(ctx context.Context, l *link, names []string) error {
	resp, err := l.adm.DeleteGroups(ctx, names...)
	if err != nil && len(resp) == 0 {
		return err
	}
	var done []string
	var failed []string
	for _, n := range names {
		if err := resp[n].Err; err != nil {
			failed = append(failed, fmt.Sprintf("* Group '%s' could not be deleted due to: %s", n, kafkaText(err)))
		} else {
			done = append(done, "'"+n+"'")
		}
	}
	if len(failed) == 0 {
		a.print("Deletion of requested consumer groups (%s) was successful.", strings.Join(done, ", "))
		return nil
	}
	text := "Deletion of some consumer groups failed:\n" + strings.Join(failed, "\n")
	if len(done) > 0 {
		text += fmt.Sprintf("\nThese consumer groups were deleted successfully: %s", strings.Join(done, ", "))
	}
	return errors.New(text)
}

func (a *aliasCall) deleteOffsets(ctx context.Context, l *link, group string) error {
	only, err := parseTopicPartitions(a.values["topic"])
	if err != nil {
		return err
	}
	if len(only) == 0 {
		return usage("Option --delete-offsets takes one of these options: --topic")
	}
	rows, err := l.chosenPartitions(ctx, only)
	if err != nil {
		return err
	}
	set := kadm.TopicsSet{}
	for _, r := range rows {
		set.Add(r.topic, r.partition)
	}
	resp, err := l.adm.DeleteOffsets(ctx, group, set)
	if err != nil {
		return err
	}
	failed := resp.Error()
	if failed == nil {
		a.print("Request succeeded for deleting offsets from group %s.", group)
	} else {
		a.print("Encountered some partition level error, see the follow-up details:")
	}
	a.print("")
	lines := [][]string{{"TOPIC", "PARTITION", "STATUS"}}
	for _, r := range rows {
		word := "Successful"
		if err := resp[r.topic][r.partition]; err != nil {
			word = "Error: " + kafkaText(err)
		}
		lines = append(lines, []string{r.topic, fmt.Sprint(r.partition), word})
	}
	a.table(lines)
	return failed
}

func (a *aliasCall) resetOffsets(ctx context.Context, l *link, names []string) error {
	target, err := a.resetTarget()
	if err != nil {
		return err
	}
	if !a.has("topic") && !a.has("all-topics") && !a.has("from-file") {
		return usage("Option --reset-offsets takes one of these options: --topic, --all-topics, --from-file")
	}
	only, err := parseTopicPartitions(a.values["topic"])
	if err != nil {
		return err
	}
	if !a.has("execute") && !a.has("dry-run") && !a.has("export") {
		a.s.say("WARN: No action will be performed as the --execute option is missing. In a future major release, the default behavior of this command will be to prompt the user before executing the reset rather than doing a dry run. You should add the --dry-run option explicitly if you are scripting this command and want to keep the current default behavior without prompting.")
	}
	var all []offsetMove
	for _, group := range names {
		if err := a.refuseActive(ctx, l, group); err != nil {
			return err
		}
		wanted := only
		if a.has("from-file") {
			if wanted, err = filePartitions(a.value("from-file"), group); err != nil {
				return err
			}
		}
		moves, err := l.planReset(ctx, group, target, wanted, true)
		if err != nil {
			return err
		}
		if a.has("execute") {
			if err := l.commitMoves(ctx, group, moves); err != nil {
				return err
			}
		}
		all = append(all, moves...)
	}
	if a.has("export") {
		return a.exportMoves(all, len(names) > 1)
	}
	a.print("")
	lines := [][]string{{"GROUP", "TOPIC", "PARTITION", "NEW-OFFSET"}}
	for _, m := range all {
		lines = append(lines, []string{m.group, m.topic, fmt.Sprint(m.partition), fmt.Sprint(m.to)})
	}
	a.table(lines)
	return nil
}

// refuseActive refuses a group with members, as Kafka's tool does before it asks for anything.
func (a *aliasCall) refuseActive(ctx context.Context, l *link, group string) error {
	groups, err := l.groups(ctx, []string{group})
	if errors.Is(err, kerr.GroupIDNotFound) {
		return nil // it is made by its first offset
	}
	if err == nil && groups[0].state != "Empty" && groups[0].state != "Dead" {
		err = says("Assignments can only be reset if the group '%s' is inactive, but the current state is %s.", group, groups[0].state)
	}
	return err
}

func (a *aliasCall) resetTarget() (string, error) {
	action, err := a.only("to-offset", "to-datetime", "by-duration", "to-earliest", "to-latest", "shift-by", "from-file", "to-current")
	if err != nil {
		return "", usage("Option --reset-offsets takes one of these options: --to-offset, --to-datetime, --by-duration, --to-earliest, --to-latest, --shift-by, --from-file, --to-current")
	}
	v := a.value(action)
	switch action {
	case "to-earliest":
		return "start", nil
	case "to-latest":
		return "end", nil
	case "to-current":
		return "current", nil
	case "from-file":
		return "file:" + v, nil
	case "to-offset":
		if n, err := strconv.ParseInt(v, 10, 64); err != nil || n < 0 {
			return "", usage("--to-offset %s: want an offset", v)
		}
		return v, nil
	case "shift-by":
		n, err := strconv.ParseInt(v, 10, 64)
		if err != nil {
			return "", usage("--shift-by %s: want a number", v)
		}
		return fmt.Sprintf("%+d", n), nil
	case "by-duration":
		d, err := isoDuration(v)
		if err != nil {
			return "", err
		}
		return fmt.Sprintf("@%d", a.s.now().Add(-d).UnixMilli()), nil
	}
	for _, layout := range []string{"2006-01-02T15:04:05.000", "2006-01-02T15:04:05.000Z07:00", "2006-01-02T15:04:05.000Z0700", "2006-01-02T15:04:05", time.RFC3339, "2006-01-02T15:04", "2006-01-02"} {
		if t, err := time.Parse(layout, v); err == nil { // without a zone, UTC
			return fmt.Sprintf("@%d", t.UnixMilli()), nil
		}
	}
	return "", usage("--to-datetime %s: want YYYY-MM-DDTHH:mm:SS.sss", v)
}

// isoDuration reads PnDTnHnMnS.
func isoDuration(s string) (time.Duration, error) {
	bad := usage("%q is no duration such as P1DT2H30M", s)
	rest, ok := strings.CutPrefix(strings.ToUpper(s), "P")
	if !ok || rest == "" {
		return 0, bad
	}
	units := map[byte]time.Duration{'D': 24 * time.Hour}
	var total time.Duration
	for rest != "" {
		if rest[0] == 'T' {
			units = map[byte]time.Duration{'H': time.Hour, 'M': time.Minute, 'S': time.Second}
			if rest = rest[1:]; rest == "" {
				return 0, bad
			}
		}
		i := strings.IndexFunc(rest, func(r rune) bool { return (r < '0' || r > '9') && r != '.' })
		if i <= 0 || units[rest[i]] == 0 {
			return 0, bad
		}
		n, err := strconv.ParseFloat(rest[:i], 64)
		if err != nil {
			return 0, bad
		}
		total += time.Duration(n * float64(units[rest[i]]))
		rest = rest[i+1:]
	}
	return total, nil
}

// filePartitions are the partitions that a file has offsets of, for one group.
func filePartitions(file, group string) (map[string][]int32, error) {
	rows, err := readOffsets(file)
	if err != nil {
		return nil, err
	}
	out := map[string][]int32{}
	for _, r := range rows {
		if r.Group == "" || r.Group == group {
			out[r.Topic] = append(out[r.Topic], r.Partition)
		}
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("%s has no offsets of group %s", file, group)
	}
	return out, nil
}

func (a *aliasCall) exportMoves(moves []offsetMove, groups bool) error {
	w := csv.NewWriter(a.s.out)
	for _, m := range moves {
		row := []string{m.topic, fmt.Sprint(m.partition), fmt.Sprint(m.to)}
		if groups {
			row = append([]string{m.group}, row...)
		}
		if err := w.Write(row); err != nil {
			return err
		}
	}
	w.Flush()
	return w.Error()
}
