# `make run` starts a broker, `make test` tests it. Both need Go and make, nothing else.
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
COMMIT  ?= $(shell git rev-parse --short=12 HEAD 2>/dev/null || echo unknown)
DATE    ?= $(shell git log -1 --format=%cI 2>/dev/null || echo unknown)
LDFLAGS  = -s -w -X main.version=$(VERSION) -X main.commit=$(COMMIT) -X main.date=$(DATE)
TOOL     = go tool -modfile=internal/tools/go.mod
FUZZTIME ?= 5s

export CGO_ENABLED ?= 0

SEEDS ?= 3000

.PHONY: all build man run cluster clustertest test check lint race fuzz sim chaos mutants crash groupload ostest bench interop generate clean

all: build

build: bin/kctl

bin/kctl: FORCE
	@go build -trimpath -ldflags '$(LDFLAGS)' -o $@ ./cmd/kctl
FORCE:

run: build ## a broker on 127.0.0.1:9092, data in ./karst-data
	@./bin/kctl serve

cluster: build ## three brokers on loopback until Ctrl-C, data in ./karst-cluster
	@scripts/cluster.sh

man: build ## man pages into build/man
	@./bin/kctl man --dir build/man

test: ## everything that needs Go alone
	go test -timeout 20m $$(go list ./... | grep -v /test/)
	go test -timeout 20m -p 1 ./test/...

check: lint test ## what a commit should pass

lint: ## vet, staticcheck, formatting, dead code
	go vet ./...
	go vet -tags ostest ./test/process ./test/chaos
	@out=$$($(TOOL) gofumpt -l $$(git ls-files '*.go' | grep -v '\.pb\.go$$')); test -z "$$out" || { echo "gofumpt: $$out"; exit 1; }
	$(TOOL) staticcheck ./...
	@out=$$($(TOOL) deadcode -test -filter '^github.com/karstlog/karst' ./...); test -z "$$out" || { echo "$$out"; exit 1; }

# Tests that walk through every crash point or flipped bit on one goroutine have nothing for the race detector to find.
ENUMERATIONS = TestEveryFlippedBit|TestEveryOperationFailsOnce|TestCrashAtEveryOperation|TestDirectoriesSurviveACrashAtEveryOperation|TestEveryDirectoryOperationFailsOnce|TestSimulation|TestLeadersDieWhileTheInSyncSetChanges|TestLostDisks|TestLastReplicaStanding|TestSyncedRecordsSurvivePowerCuts|TestDeletedRecords

# Tests of whole processes run a binary that is built without it.
race: ## the tests under the race detector (needs a C compiler)
	CGO_ENABLED=1 go test -race -timeout 20m -skip '$(ENUMERATIONS)' $$(go list ./... | grep -v /test/)

fuzz: ## every fuzz target for FUZZTIME
	@scripts/fuzz.sh $(FUZZTIME)

sim: ## a cluster under a seed, SEEDS times: crashes, cuts, lost power and disks; SEED=n replays one and tells all
	@go test -count=1 -timeout 20m -v -run TestSimulation ./internal/sim -args $(if $(SEED),-seed=$(SEED),-seeds=$(SEEDS) -first=$(or $(FIRST),1))

mutants: ## each rule broken on purpose must fail a test
	@scripts/mutants.sh

crash: build ## kill -9 under load and power cuts of a disk in memory, again and again; nothing acknowledged may be missing
	go test -count=1 -timeout 20m -run 'TestPowerCutLeavesASyncedPrefix|TestLogEqualsItsModel|TestCompactionShowsTheFinalState' ./storage -rapid.checks=2000
	go test -count=1 -timeout 20m -v -run TestKill ./test/crash -args -rounds=50

ROUNDS ?= 3
CHAOS ?= 40s

chaos: build ## clusters of processes: kills, stops, restarts; as root also cut networks, with nft and ip. ROUNDS, CHAOS=duration
	KCTL=$(CURDIR)/bin/kctl go test -count=1 -v -timeout 60m ./test/chaos -args -rounds=$(ROUNDS)
	KCTL=$(CURDIR)/bin/kctl go test -count=1 -v -timeout 60m -tags ostest -run TestOS ./test/chaos -args -rounds=$(ROUNDS) -duration=$(CHAOS)

clustertest: build ## clusters of processes under kill -9, SIGSTOP, restarts and moves, in many rounds
	KCTL=$(CURDIR)/bin/kctl go test -count=1 -timeout 60m -v -run 'TestOneCluster|TestKillOfEveryRole|TestStoppedBroker|TestRolling|TestAllKilled|TestClusterScript' ./test/process -args -rounds=20

GROUPS ?= 200
MEMBERS ?= 5
STEADY ?= 60s

groupload: build ## GROUPS groups of MEMBERS members on three brokers, each member a client with sockets: nothing moves for STEADY
	KCTL=$(CURDIR)/bin/kctl go test -count=1 -timeout 60m -v -run TestManyGroupsStayStable ./test/process -args -groups=$(GROUPS) -members=$(MEMBERS) -steady=$(STEADY)

ostest: ## full disks, failing syncs, few descriptors, system calls; as root, with strace
	go test -count=1 -timeout 20m -tags ostest -run TestOS ./test/process

bench: ## the benchmarks beside the code
	go test -run '^$$' -bench . -benchmem ./...

interop: build ## clients in Go, C, Python, Node and Java, and other people's test suites
	@scripts/interop.sh

generate: ## protobuf code; needs protoc on PATH
	go generate ./...

clean:
	rm -rf bin build
