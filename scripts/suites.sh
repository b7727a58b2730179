#!/bin/bash
# Starts a broker and runs other people's test suites against it: scripts/suites.sh DIR [SUITE...]
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
pid=
stop() { [ -z "$pid" ] || { kill "$pid" 2>/dev/null; wait "$pid" 2>/dev/null; pid=; }; }
trap 'stop; rm -rf "$DIR"' EXIT

start() {
  "$KCTL" serve --data "$DIR/data" --listen "127.0.0.1:$PORT" --http-addr "127.0.0.1:$((PORT + 1))" --set num.partitions=4 \
    --set offsets.topic.num.partitions=4 --set group.initial.rebalance.delay.ms=0 --set group.min.session.timeout.ms=1000 >"$DIR/log" 2>&1 &
  pid=$!
  for _ in $(seq 300); do
    (: <"/dev/tcp/127.0.0.1/$PORT") 2>/dev/null && return
    sleep 0.1
  done
  cat "$DIR/log"; exit 1
}

start
export BOOTSTRAP=127.0.0.1:$PORT SERVER_PID=$pid REPLICAS=1
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
    if grep -qxE -f <(sed 's/[[:space:]]*#.*//; /^$/d' "$OPEN") <<<"$suite $name"; then
      open=$((open + 1))
    else
      failed=$((failed + 1)); echo "$line"
    fi
  done < <(grep -E '^failed[ :(]' "$DIR/out")
  echo "$suite: $closing"
  kill -0 "$pid" 2>/dev/null || { echo "the broker ended during $suite"; tail -n 50 "$DIR/log"; exit 1; }
done
echo "$open checks wait for later capabilities (interop/open-checks.txt)"
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
