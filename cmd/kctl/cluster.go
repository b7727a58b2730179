package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/urfave/cli/v2"

	"github.com/karstlog/karst/protocol/private"
)

// answerPatience is how long one broker may take to tell about itself or the cluster. One that is stopped never does.
const answerPatience = 3 * time.Second

func clusterCommand(s *session) *cli.Command {
	return &cli.Command{
		Name:  "cluster",
		Usage: "see how the cluster is, and change who belongs to it",
		Subcommands: []*cli.Command{
			clusterStatusCommand(s),
			clusterHealthCommand(s),
			clusterMembersCommand(s),
			clusterRaftCommand(s),
			clusterDecommissionCommand(s),
			clusterRemoveCommand(s),
			clusterRecoverCommand(s),
		},
	}
}

// snapshot is what the brokers of a cluster say at one moment.
type snapshot struct {
	private.Cluster
	nodes map[int32]private.Node // of brokers that answered
}

// look asks everybody who can be reached, and believes who knows the newest. A leader of the metadata log knows best. A
// broker that is stopped keeps nobody waiting for longer than answerPatience.
func (l *link) look(ctx context.Context) (snapshot, error) {
	sn := snapshot{nodes: map[int32]private.Node{}}
	err := sn.ask(ctx, l.cl.SeedBrokers())
	if err != nil {
		return sn, &failure{status: exitTimeout, text: "no broker tells about its cluster", err: err, advice: "is it Karst, and does it run? `kctl check health` asks the one on this machine"}
	}
	var others []*kgo.Broker
	for _, b := range sn.Brokers {
		if _, heard := sn.nodes[b.ID]; heard || b.Addr == "" {
			continue
		}
		cl, err := kgo.NewClient(slices.Concat(l.opts, []kgo.Opt{kgo.SeedBrokers(b.Addr)})...)
		if err != nil {
			return sn, err
		}
		defer cl.Close()
		others = append(others, cl.SeedBrokers()...)
	}
	_ = sn.ask(ctx, others) // who does not answer is shown as that
	slices.SortFunc(sn.Brokers, func(a, b private.Broker) int { return cmp.Compare(a.ID, b.ID) })
	return sn, nil
}

// ask asks brokers at the same time. An error means that none of them has answered.
func (sn *snapshot) ask(ctx context.Context, brokers []*kgo.Broker) error {
	ctx, cancel := context.WithTimeout(ctx, answerPatience)
	defer cancel()
	var mu sync.Mutex
	var wg sync.WaitGroup
	var errs []error
	for _, b := range brokers {
		wg.Go(func() {
			node, err := private.DescribeNode.Call(ctx, b, private.Empty{})
			var c private.Cluster
			if err == nil {
				c, err = private.DescribeCluster.Call(ctx, b, private.Empty{})
			}
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				errs = append(errs, err)
				return
			}
			sn.nodes[node.ID] = node
			if sn.ClusterID == "" || newer(c, sn.Cluster) {
				sn.Cluster = c
			}
		})
	}
	wg.Wait()
	if len(errs) == len(brokers) {
		return errors.Join(errs...)
	}
	return nil
}

// newer prefers the word of who leads, then of who has a leader, then of who has applied most.
func newer(a, b private.Cluster) bool {
	rank := func(c private.Cluster) int {
		switch {
		case c.Controller == c.AnsweredBy:
			return 2
		case c.Controller >= 0:
			return 1
		}
		return 0
	}
	return cmp.Or(cmp.Compare(a.Term, b.Term), cmp.Compare(rank(a), rank(b)), cmp.Compare(a.Applied, b.Applied)) > 0
}

// state is how a broker is: what the cluster holds of it, unless it does not answer.
func (sn snapshot) state(b private.Broker) string {
	if _, ok := sn.nodes[b.ID]; !ok && b.State != "fenced" {
		return "no answer"
	} else if !ok {
		return "dead"
	}
	return b.State
}

// node is the row of a broker in tables.
type nodeRow struct {
	private.Broker
	state string
	node  private.Node
	heard bool
}

func (sn snapshot) rows() []nodeRow {
	var out []nodeRow
	for _, b := range sn.Brokers {
		n, ok := sn.nodes[b.ID]
		out = append(out, nodeRow{b, sn.state(b), n, ok})
	}
	return out
}

func (r nodeRow) disk() (used, total int64, ok bool) {
	for _, d := range r.node.Dirs {
		if d.Total > 0 {
			used, total, ok = used+d.Total-d.Usable, total+d.Total, true
		}
	}
	return used, total, ok
}

func (r nodeRow) diskText() string {
	used, total, ok := r.disk()
	if !ok {
		return "-"
	}
	return fmt.Sprintf("%d%% of %s", used*100/total, formatSize(total))
}

func orDash(text string) string {
	if text == "" {
		return "-"
	}
	return text
}

// nodeColumns are those of status, members and broker list, which leave out different ones.
func nodeColumns(keys ...string) []column[nodeRow] {
	all := []column[nodeRow]{
		{key: "id", head: "ID", right: true, doc: "node id", value: func(r nodeRow) any { return r.ID }},
		{key: "address", doc: "where clients connect", value: func(r nodeRow) any { return r.Addr }},
		{key: "cluster_address", head: "CLUSTER ADDRESS", doc: "where other brokers connect", value: func(r nodeRow) any { return r.ClusterAddr }, text: func(r nodeRow) string { return orDash(r.ClusterAddr) }},
		{key: "rack", doc: "broker.rack", value: func(r nodeRow) any { return r.Rack }, text: func(r nodeRow) string { return orDash(r.Rack) }},
		{key: "state", doc: "alive, draining, fenced (the cluster does not use it), dead (fenced and silent), or no answer (silent, and not fenced)", value: func(r nodeRow) any { return r.state }},
		{key: "voter", doc: "part in the metadata log: leader, voter or nonvoter", value: func(r nodeRow) any { return r.Raft }, text: func(r nodeRow) string { return orDash(r.Raft) }},
		{key: "gossip", doc: "what gossip says: alive or not seen", value: func(r nodeRow) any { return r.Gossip }},
		{key: "leaders", right: true, doc: "partitions it leads", value: func(r nodeRow) any { return r.Leaders }},
		{key: "replicas", right: true, doc: "partitions with a replica on it", value: func(r nodeRow) any { return r.Replicas }},
		{key: "out_of_sync", head: "OUT OF SYNC", right: true, doc: "of these, those that are not in the ISR", value: func(r nodeRow) any { return r.OutOfSync }},
		{key: "disk", doc: "what is used of its log directories' disks", value: func(r nodeRow) any {
			used, total, _ := r.disk()
			return object{{"used_bytes", used}, {"total_bytes", total}}
		}, text: nodeRow.diskText},
		{key: "uptime_ms", head: "UPTIME", doc: "since its start", value: func(r nodeRow) any { return r.node.UptimeMs }, text: func(r nodeRow) string {
			if !r.heard {
				return "-"
			}
			return shortDuration(time.Duration(r.node.UptimeMs) * time.Millisecond)
		}},
		{key: "version", doc: "of its build", value: func(r nodeRow) any { return r.node.Version }, text: func(r nodeRow) string { return orDash(r.node.Version) }},
	}
	if len(keys) == 0 {
		return all
	}
	return slices.DeleteFunc(all, func(c column[nodeRow]) bool { return !slices.Contains(keys, c.key) })
}

func clusterStatusCommand(s *session) *cli.Command {
	cols := nodeColumns("id", "address", "rack", "state", "voter", "leaders", "replicas", "disk", "uptime_ms", "version")
	return &cli.Command{
		Name:  "status",
		Usage: "show the cluster: its controller, its brokers, its partitions",
		Description: describe("Says what the brokers that answer know. Without a controller that may be old, and it says so.",
			"kctl cluster status",
			"kctl cluster status -o json"),
		Flags: flagSet(outputFlags(), clientFlags()),
		Action: func(c *cli.Context) error {
			p, err := newPrinter(s, c)
			if err != nil {
				return err
			}
			if p.format == "schema" {
				return printSchema(p, cols)
			}
			sn, err := s.lookOnce(c)
			if err != nil {
				return err
			}
			if p.format != "table" && p.format != "wide" {
				return listing(s, cols, func(*cli.Context) ([]nodeRow, error) { return sn.rows(), nil })(c)
			}
			return sn.print(s, p, cols)
		},
	}
}

func (s *session) lookOnce(c *cli.Context) (snapshot, error) {
	if err := needArgs(c, 0, 0, ""); err != nil {
		return snapshot{}, err
	}
	l, err := s.open(c)
	if err != nil {
		return snapshot{}, err
	}
	defer l.close()
	ctx, cancel := l.limited(c)
	defer cancel()
	return l.look(ctx)
}

func (sn snapshot) print(s *session, p *printer, cols []column[nodeRow]) error {
	alive := 0
	for _, r := range sn.rows() {
		if r.state == "alive" || r.state == "draining" {
			alive++
		}
	}
	controller := "none"
	if sn.Controller >= 0 {
		controller = fmt.Sprintf("%d (term %d)", sn.Controller, sn.Term)
	}
	fmt.Fprintf(s.out, "cluster  %s  (%s)   brokers %d/%d alive   controller %s\n", sn.Name, sn.ClusterID, alive, len(sn.Brokers), controller)
	if err := printRows(p, cols, sn.rows()); err != nil {
		return err
	}
	x := sn.Partitions
	fmt.Fprintf(s.out, "partitions %d   leaderless %d   under-replicated %d   under-min-isr %d   moving %d\n", x.Total, x.Leaderless, x.UnderReplicated, x.UnderMinISR, x.Moving)
	for _, note := range sn.notes() {
		fmt.Fprintln(s.out, note)
	}
	return nil
}

// notes are sentences about what the table cannot say.
func (sn snapshot) notes() []string {
	var out []string
	if sn.Controller < 0 {
		out = append(out, fmt.Sprintf("the metadata log has no leader: nothing can be changed, and this is what broker %d last knew (%d of %d voters answer)",
			sn.AnsweredBy, sn.votersHeard(), len(sn.voters())))
	}
	if len(sn.Brokers) == 2 && len(sn.voters()) == 1 {
		out = append(out, "two brokers have one voter: without it metadata cannot be changed. A third broker makes three voters, of which any one may fail")
	}
	return out
}

func (sn snapshot) voters() []private.Server {
	return slices.DeleteFunc(slices.Clone(sn.Servers), func(s private.Server) bool { return !s.Voter })
}

// wantedVoters is how many voters a cluster of as many living brokers has: an odd number, five at most.
func (sn snapshot) wantedVoters() int {
	alive := 0
	for _, r := range sn.rows() {
		if r.state == "alive" {
			alive++
		}
	}
	switch {
	case alive >= 5:
		return 5
	case alive >= 3:
		return 3
	}
	return 1
}

func (sn snapshot) votersHeard() int {
	heard := 0
	for _, v := range sn.voters() {
		if _, ok := sn.nodes[v.Broker]; ok {
			heard++
		}
	}
	return heard
}

// ailment is one reason why a cluster is not healthy.
type ailment struct{ kind, text, fix string }

// ailments are what a person would have to look at.
func (sn snapshot) ailments() []ailment {
	var out []ailment
	if sn.Controller < 0 {
		out = append(out, ailment{"no-controller", fmt.Sprintf("%d of %d voters of the metadata log answer", sn.votersHeard(), len(sn.voters())), "start the others; if they are lost: docs/operations.md, lost quorum"})
	}
	for _, r := range sn.rows() {
		id := strconv.Itoa(int(r.ID))
		switch r.state {
		case "dead", "no answer", "fenced":
			out = append(out, ailment{"broker", fmt.Sprintf("broker %s (%s): %s", id, r.Addr, r.state), "kctl cluster members " + id})
		}
		for _, d := range r.node.Dirs {
			if d.Error != "" {
				out = append(out, ailment{"directory", fmt.Sprintf("broker %s: %s is offline: %s", id, d.Path, d.Error), "restart the broker when its disk is well"})
			} else if d.Total > 0 && d.Usable*10 < d.Total {
				out = append(out, ailment{"disk", fmt.Sprintf("broker %s: %s is %d%% full", id, d.Path, (d.Total-d.Usable)*100/d.Total), "kctl topic list -o wide"})
			}
		}
	}
	if have, want := len(sn.voters()), sn.wantedVoters(); sn.Controller >= 0 && have < want {
		out = append(out, ailment{"voters", fmt.Sprintf("%d of %d voters of the metadata log: brokers are still promoted", have, want), "kctl cluster raft list"})
	}
	x := sn.Partitions
	for _, c := range []struct {
		n    int
		kind string
	}{{x.Leaderless, "leaderless"}, {x.UnderMinISR, "under-min-isr"}, {x.UnderReplicated, "under-replicated"}} {
		if c.n > 0 {
			out = append(out, ailment{c.kind, fmt.Sprintf("%d partitions", c.n), "kctl partition list"})
		}
	}
	return out
}

func clusterHealthCommand(s *session) *cli.Command {
	return &cli.Command{
		Name:  "health",
		Usage: "status 0 when all is well, 10 with one line a reason when not",
		Description: describe("With --wait it asks again until all is well, or --timeout is over (status 6).",
			"kctl cluster health",
			"kctl cluster health --wait --timeout 2m",
			"kctl cluster health --brokers 3 --wait"),
		Flags: flagSet([]cli.Flag{
			&cli.BoolFlag{Name: "wait", Usage: "until all is well"},
			&cli.IntFlag{Name: "brokers", Usage: "`N` brokers at least must be alive", Value: 1},
		}, clientFlags()),
		Action: func(c *cli.Context) error {
			if err := needArgs(c, 0, 0, ""); err != nil {
				return err
			}
			l, err := s.open(c)
			if err != nil {
				return err
			}
			defer l.close()
			ctx, cancel := l.limited(c)
			defer cancel()
			return s.health(ctx, c, l)
		},
	}
}

func (s *session) health(ctx context.Context, c *cli.Context, l *link) error {
	for {
		sick, err := l.sick(ctx, c.Int("brokers"))
		if err == nil && len(sick) == 0 {
			_, err := fmt.Fprintln(s.out, "HEALTHY")
			return err
		}
		if !c.Bool("wait") {
			return s.unhealthy(sick, err)
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			if c.Context.Err() != nil {
				return c.Context.Err()
			}
			return &failure{status: exitTimeout, text: "not healthy in time", err: s.unhealthy(sick, err)}
		}
	}
}

// sick asks once. An address that nobody answers at is no reason by itself: another may know more.
func (l *link) sick(ctx context.Context, least int) ([]ailment, error) {
	sn, err := l.look(ctx)
	if err != nil {
		return nil, err
	}
	sick := sn.ailments()
	alive := 0
	for _, r := range sn.rows() {
		if r.state == "alive" {
			alive++
		}
	}
	if alive < least {
		sick = append(sick, ailment{"brokers", fmt.Sprintf("%d of %d are alive", alive, least), "kctl cluster members"})
	}
	return sick, nil
}

func (s *session) unhealthy(sick []ailment, err error) error {
	if err != nil {
		return &failure{status: exitUnhealthy, err: err}
	}
	var lines [][]string
	for _, a := range sick {
		lines = append(lines, []string{"  " + a.kind, a.text, a.fix})
	}
	if err := writeLines(s.out, lines, make([]bool, 3)); err != nil {
		return err
	}
	reasons := "reasons"
	if len(sick) == 1 {
		reasons = "reason"
	}
	return &failure{status: exitUnhealthy, text: fmt.Sprintf("UNHEALTHY (%d %s)", len(sick), reasons)}
}

func clusterMembersCommand(s *session) *cli.Command {
	return &cli.Command{
		Name:        "members",
		Usage:       "list the brokers with what is known of each",
		ArgsUsage:   "[ID...]",
		Description: describe("", "kctl cluster members", "kctl cluster members 3 -o json"),
		Flags:       flagSet(outputFlags(), clientFlags()),
		Action: listing(s, nodeColumns(), func(c *cli.Context) ([]nodeRow, error) {
			return s.members(c)
		}),
	}
}

// members are the brokers, or those whose ids are given.
func (s *session) members(c *cli.Context) ([]nodeRow, error) {
	var ids []int32
	for _, a := range c.Args().Slice() {
		id, err := brokerID(a)
		if err != nil {
			return nil, err
		}
		ids = append(ids, id)
	}
	l, err := s.open(c)
	if err != nil {
		return nil, err
	}
	defer l.close()
	ctx, cancel := l.limited(c)
	defer cancel()
	sn, err := l.look(ctx)
	if err != nil {
		return nil, err
	}
	rows := sn.rows()
	for _, id := range ids {
		if !slices.ContainsFunc(rows, func(r nodeRow) bool { return r.ID == id }) {
			return nil, unknownBroker(id)
		}
	}
	if len(ids) > 0 {
		rows = slices.DeleteFunc(rows, func(r nodeRow) bool { return !slices.Contains(ids, r.ID) })
	}
	return rows, nil
}

func brokerID(text string) (int32, error) {
	id, err := strconv.ParseInt(text, 10, 32)
	if err != nil || id < 0 {
		return 0, usage("%q is no broker id", text)
	}
	return int32(id), nil
}

func unknownBroker(id int32) error {
	return &failure{status: exitNotFound, text: fmt.Sprintf("the cluster has no broker %d", id), advice: "kctl cluster members lists them"}
}

// open makes a client and asks nobody: whether somebody answers is what these commands are about.
func (s *session) open(c *cli.Context) (*link, error) {
	l, opts, err := s.prepare(c)
	if err != nil {
		return nil, err
	}
	if l.cl, err = kgo.NewClient(opts...); err != nil {
		return nil, usage("%s", err)
	}
	return l, nil
}

// broker is the one with an id, by the address that the cluster has for it.
func (l *link) broker(sn snapshot, id int32) (*kgo.Broker, func(), error) {
	for _, b := range sn.Brokers {
		if b.ID != id {
			continue
		}
		cl, err := kgo.NewClient(slices.Concat(l.opts, []kgo.Opt{kgo.SeedBrokers(b.Addr)})...)
		if err != nil {
			return nil, nil, err
		}
		return cl.SeedBrokers()[0], cl.Close, nil
	}
	return nil, nil, unknownBroker(id)
}

// changing connects for a command that changes something.
func (s *session) changing(c *cli.Context) (*link, context.Context, func(), error) {
	l, err := s.open(c)
	if err != nil {
		return nil, nil, nil, err
	}
	ctx, cancel := l.limited(c)
	return l, ctx, func() { cancel(); l.close() }, nil
}

func noController() error {
	return &failure{status: exitCondition, text: "the metadata log has no leader, so nothing can be changed", advice: "a majority of its voters must run: kctl cluster raft list"}
}

// refused is what a broker answered to a change.
func refused(err error, f private.Failure) error {
	if err != nil || f.Err() == nil {
		return err
	}
	status := exitFailed
	switch {
	case f.Code == 102:
		status = exitNotFound
	case f.Code == 41 || strings.Contains(f.Reason, "still has"):
		status = exitCondition
	}
	return &failure{status: status, text: f.Reason}
}
