#!/bin/bash
# Starts a broker, or three as one cluster, and runs other people's test suites against it:
#   [REPLICAS=3] scripts/suites.sh DIR [SUITE...]
# A check that fails must stand in interop/open-checks.txt, with the capability that it waits for; everything else that
# fails, fails the run.
set -u
cd "$(dirname "$0")/.."
SUITES=$(cd "$1" && pwd); shift
[ $# -gt 0 ] || set -- cases.sh hostile.py kcat.sh
KCTL=${KCTL:-$PWD/bin/kctl}
OPEN=$PWD/interop/open-checks.txt
DIR=$(mktemp -d)
PORT=${PORT:-29092}
export REPLICAS=${REPLICAS:-1}
pids=()
stop() { [ ${#pids[@]} -eq 0 ] || { kill "${pids[@]}" 2>/dev/null; wait "${pids[@]}" 2>/dev/null; pids=(); }; }
trap 'stop; rm -rf "$DIR"' EXIT

at() { echo "127.0.0.1:$((PORT + ($1 - 1) * 10 + $2))"; } # at BROKER LISTENER: 0 for clients, 1 HTTP, 2 the cluster, 3 gossip

# start NODE [FLAG...]
start() {
  local n=$1; shift
  "$KCTL" serve --id "$n" --data "$DIR/data$n" --listen "$(at "$n" 0)" --http-addr "$(at "$n" 1)" "$@" --set num.partitions=4 \
    --set offsets.topic.num.partitions=4 --set group.initial.rebalance.delay.ms=0 --set group.min.session.timeout.ms=1000 >"$DIR/log$n" 2>&1 &
  pids+=($!)
}

BOOTSTRAP=$(at 1 0)
if [ "$REPLICAS" = 1 ]; then
  start 1
else
  for n in $(seq 2 "$REPLICAS"); do BOOTSTRAP=$BOOTSTRAP,$(at "$n" 0); done
  for n in $(seq "$REPLICAS"); do
    start "$n" --cluster-addr "$(at "$n" 2)" --gossip-addr "$(at "$n" 3)" --bootstrap-expect "$REPLICAS" --join "$(at 1 3),$(at 2 3)"
  done
fi
"$KCTL" cluster health --wait --brokers "$REPLICAS" --timeout 60s -b "$BOOTSTRAP" >"$DIR/health" 2>&1 || { cat "$DIR/health" "$DIR"/log*; exit 1; }
export BOOTSTRAP SERVER_PID=${pids[0]}

known() { grep -qxE -f <(sed 's/[[:space:]]*#.*//; /^$/d' "$OPEN") <<<"$1"; }
passed=0 failed=0 open=0
for suite in "$@"; do
  case $suite in *.py) run=(python3 "$SUITES/$suite") ;; *) run=("$SUITES/$suite") ;; esac
  echo "== $suite"
  "${run[@]}" >"$DIR/out" 2>&1
  closing=$(tail -n 1 "$DIR/out")
  [[ $closing =~ ([0-9]+)\ passed ]] || { tail -n 20 "$DIR/out"; echo "$suite did not end with its closing line"; failed=$((failed + 1)); continue; }
  passed=$((passed + BASH_REMATCH[1]))
  while IFS= read -r line; do
    name=${line#failed: }; name=${name#failed (as Apache Kafka does): }; name=${name%%: *}
    if known "$suite $name" || { [ "$REPLICAS" -gt 1 ] && known "several: $suite $name"; }; then
      open=$((open + 1))
    else
      failed=$((failed + 1)); echo "$line"
    fi
  done < <(grep -E '^failed[ :(]' "$DIR/out")
  echo "$suite: $closing"
  for n in $(seq "$REPLICAS"); do
    kill -0 "${pids[n - 1]}" 2>/dev/null || { echo "broker $n ended during $suite"; tail -n 50 "$DIR/log$n"; exit 1; }
  done
done
echo "$open checks wait for later capabilities (interop/open-checks.txt)"
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
