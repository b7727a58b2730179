#!/bin/bash
# Breaks one rule at a time on purpose (build tag mutant, KARST_MUTANT) and demands that a test notices: a mutant that
# survives fails the run. Each line below: mutant, package, tests that must fail.
set -u
cd "$(dirname "$0")/.."
caught=0 survived=0
check() { # check MUTANT PACKAGE TESTS
  if ! go test -tags mutant "$2" -count=1 -run "$3" >/tmp/karst-mutant.$$ 2>&1; then
    echo "$1: the tests fail without the mutant"; tail -n 20 /tmp/karst-mutant.$$; survived=$((survived + 1)); return
  fi
  if KARST_MUTANT=$1 go test -tags mutant "$2" -count=1 -run "$3" >/tmp/karst-mutant.$$ 2>&1; then
    echo "$1 survived $2 $3"; survived=$((survived + 1))
  elif grep -q '^--- FAIL\|^    --- FAIL\|^panic: ' /tmp/karst-mutant.$$; then
    echo "$1 caught by $(grep -oE -- '--- FAIL: [A-Za-z0-9_/]+' /tmp/karst-mutant.$$ | head -n 1)"; caught=$((caught + 1))
  else
    echo "$1: the run broke instead of failing"; tail -n 20 /tmp/karst-mutant.$$; survived=$((survived + 1))
  fi
}
# MUTANT PACKAGE TESTS
check M2 ./storage 'Test'
check M7 ./storage 'Test'
check M8 ./storage 'Test'
check M16 ./protocol 'Test'
rm -f /tmp/karst-mutant.$$
echo "$caught passed, $survived failed"
[ "$survived" -eq 0 ]
