#!/bin/sh
# Three brokers on this machine, in the directory $DIR (default ./karst-cluster), until Ctrl-C. BASE is the first port.
set -eu
kctl=${KCTL:-./bin/kctl}
dir=${DIR:-./karst-cluster}
base=${BASE:-9092}
host=127.0.0.1
mkdir -p "$dir"

client() { echo $((base + ($1 - 1) * 100)); }
cluster() { echo $((base + ($1 - 1) * 100 + 1)); }
http() { echo $((base + ($1 - 1) * 100 + 2)); }
gossip() { echo $((base + ($1 - 1) * 100 + 3)); }

seeds=$host:$(gossip 1),$host:$(gossip 2),$host:$(gossip 3)
pids=
stop() {
	trap - INT TERM EXIT
	# shellcheck disable=SC2086
	kill $pids 2>/dev/null || true
	wait
}
trap stop INT TERM EXIT
for n in 1 2 3; do
	"$kctl" serve --id $n --data "$dir/$n" --listen $host:"$(client $n)" --http-addr $host:"$(http $n)" \
		--cluster-addr $host:"$(cluster $n)" --gossip-addr $host:"$(gossip $n)" \
		--bootstrap-expect 3 --join "$seeds" >"$dir/$n.out" 2>"$dir/$n.log" &
	pids="$pids $!"
	eval "pid$n=$!"
done

# fell names a broker that has ended, and why.
fell() {
	for n in 1 2 3; do
		eval "pid=\$pid$n"
		kill -0 "$pid" 2>/dev/null && continue
		why=$(sed -n 's/^error: //p' "$dir/$n.log" | tail -n 1)
		echo "broker $n has ended: ${why:-see $dir/$n.log}" >&2
		return 0
	done
	return 1
}

all=$host:$(client 1),$host:$(client 2),$host:$(client 3)
deadline=$(($(date +%s) + ${PATIENCE:-60}))
until "$kctl" cluster health --wait --brokers 3 --timeout 2s -b "$all" >/dev/null 2>&1; do
	! fell || exit 1
	if [ "$(date +%s)" -ge $deadline ]; then
		echo "the cluster did not form; the brokers' logs are $dir/*.log" >&2
		exit 1
	fi
done
! fell || exit 1
cat <<END
three brokers run: $all
  logs      $dir/1.log $dir/2.log $dir/3.log

try, in another terminal:
  $kctl cluster status -b $all
  $kctl topic create t -p 6 -r 3 -b $all
  seq 1000 | $kctl produce t -b $all
  $kctl consume t -s start --exit -o value -b $all | wc -l
  kill -9 $pid2                       # and ask again: nothing is lost, others lead
  $kctl cluster health -b $all

Ctrl-C stops them; the data stays in $dir.
END
wait
