#!/bin/bash
# Runs every fuzz target of the tree for the given time: scripts/fuzz.sh 10s
set -eu
cd "$(dirname "$0")/.."
time=${1:-5s}
grep -rlE '^func Fuzz' --include='*_test.go' . | xargs -n1 dirname | sort -u | while read -r dir; do
  grep -hoE '^func Fuzz[A-Za-z0-9_]+' "$dir"/*_test.go | sed 's/func //' | sort -u | while read -r target; do
    echo "== $dir $target"
    go test "$dir" -run '^$' -fuzz "^$target\$" -fuzztime "$time" -fuzzminimizetime 5x -parallel 2 >/tmp/karst-fuzz.$$ 2>&1 </dev/null ||
      { cat /tmp/karst-fuzz.$$; rm -f /tmp/karst-fuzz.$$; exit 1; }
    tail -n 2 /tmp/karst-fuzz.$$ | head -n 1
  done
done
rm -f /tmp/karst-fuzz.$$
