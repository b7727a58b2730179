#!/bin/bash
# Breaks one rule at a time on purpose (build tag mutant, KARST_MUTANT) and demands that a test notices: a mutant that
# survives fails the run. Each line at the end: mutant, package, tests of which one must fail.
set -u
cd "$(dirname "$0")/.."
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
caught=0 survived=0
check() { # check MUTANT PACKAGE TESTS
  local binary=$dir/${2//\//_}.test
  touch "$dir/began"
  [ -x "$binary" ] || go test -c -tags mutant -o "$binary" "$2" || { survived=$((survived + 1)); return; }
  if ! (cd "$2" && "$binary" -test.run "$3" >"$dir/out" 2>&1); then
    echo "$1: the tests fail without the mutant"; tail -n 20 "$dir/out"; survived=$((survived + 1))
  elif (cd "$2" && KARST_MUTANT=$1 "$binary" -test.failfast -test.run "$3" >"$dir/out" 2>&1); then
    echo "$1 survived $2 $3"; survived=$((survived + 1))
  elif grep -qE '^ *--- FAIL|^panic: ' "$dir/out"; then
    echo "$1 caught by $(grep -oE -- '--- FAIL: [A-Za-z0-9_/]+' "$dir/out" | head -n 1)"; caught=$((caught + 1))
  else
    echo "$1: the run broke instead of failing"; tail -n 20 "$dir/out"; survived=$((survived + 1))
  fi
  # What a property test writes down of a failure that was wanted is of no use to the next run.
  find "$2/testdata/rapid" -type f -newer "$dir/began" -delete 2>/dev/null
  find "$2/testdata/rapid" -type d -empty -delete 2>/dev/null
}
check M1 ./cluster/replica 'TestWithFsync'
check M1 ./internal/sim 'TestSimulation'
check M2 ./storage 'TestWhatWasToldSyncedSurvivesThePowerCut'
check M3 ./group 'Test'
check M3 ./group/coordinator 'TestCommitIsAnsweredAndShownAfterTheHighWatermark'
check M4 ./internal/sim 'TestSimulation'
check M5 ./internal/sim 'TestLeadersDieWhileTheInSyncSetChanges'
check M6 ./internal/sim 'TestLostDisks'
check M12 ./internal/sim 'TestSimulation'
check M13 ./internal/sim 'TestLastReplicaStanding'
check M8 ./txn 'TestSimulation'
check M9 ./txn 'TestSimulation'
check M11 ./txn 'TestSimulation'
check M14 ./txn 'TestSimulation'
check M7 ./storage 'Damage|Flip|TestRecovery'
check M8 ./storage 'Producer|Duplicate|Snapshot'
check M10 ./group 'Test'
check M10 ./group/coordinator 'TestCommitOfAnOldGenerationIsRefused'
check M15 ./storage 'TestTombstonesStay|TestCleanKeepsTheLast|TestCompactionShows'
check M16 ./protocol 'TestParkedRequestKeepsItsBytes'
echo "$caught passed, $survived failed"
[ "$survived" -eq 0 ]
