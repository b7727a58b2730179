#!/bin/bash
# Runs clients in Go, C, Python, Node and Java against a broker process, then other people's test suites where they are
# at hand. Installs what it needs with the ordinary package clients: Debian's packages, PyPI, npm, Maven, Go modules.
#   scripts/interop.sh [regexp of test names]
#   SUITES=dir     the suites (default ../shared/suites beside this tree; absent: said in one line)
#   BUILD=dir      where the clients are kept (default interop/build)
set -eu
cd "$(dirname "$0")/.."
BUILD=$(mkdir -p "${BUILD:-interop/build}" && cd "${BUILD:-interop/build}" && pwd)
SUITES=${SUITES:-../shared/suites}
export KCTL=${KCTL:-$PWD/bin/kctl}
[ -x "$KCTL" ] || make build

need() { # need COMMAND PACKAGE...
  command -v "$1" >/dev/null && return
  shift
  apt-get -qq update && apt-get install -y -qq "$@" >/dev/null
}
need kcat kcat
need gcc gcc libc6-dev
need java openjdk-17-jre-headless
need mvn maven
need node nodejs npm
need python3 python3 python3-venv
export KCAT=$(command -v kcat)
# Database servers for the SQL sink, which the tests start themselves. Debian's PostgreSQL would start its own, too.
postgres_bin() { compgen -G '/usr/lib/postgresql/*/bin/initdb' | tail -n 1 | xargs -r dirname; }
if [ -z "$(postgres_bin)" ]; then
  guard=/usr/sbin/policy-rc.d
  [ -e $guard ] || { printf '#!/bin/sh\nexit 101\n' >$guard && chmod +x $guard && trap 'rm -f /usr/sbin/policy-rc.d' EXIT; }
  apt-get -qq update && apt-get install -y -qq postgresql >/dev/null
fi
export POSTGRES_BIN=$(postgres_bin)
need mariadbd mariadb-server-core mariadb-client-core
export MARIADB_SERVER=$(command -v mariadbd) MARIADB_INSTALL=$(command -v mariadb-install-db)
[ -n "$POSTGRES_BIN" ] && [ -n "$MARIADB_INSTALL" ] || { echo "PostgreSQL or MariaDB could not be installed"; exit 1; }

if [ ! -e "$BUILD/venv/.complete" ]; then
  python3 -m venv "$BUILD/venv"
  "$BUILD/venv/bin/pip" install -q --disable-pip-version-check kafka-python==3.0.12 && touch "$BUILD/venv/.complete"
fi
export PYTHON=$BUILD/venv/bin/python
if [ ! -e "$BUILD/old-venv/.complete" ]; then
  python3 -m venv "$BUILD/old-venv"
  "$BUILD/old-venv/bin/pip" install -q --disable-pip-version-check kafka-python==1.4.7 six && touch "$BUILD/old-venv/.complete"
fi
export OLD_PYTHON=$BUILD/old-venv/bin/python

mkdir -p "$BUILD/node"
cp interop/clients/*.js interop/clients/package.json "$BUILD/node/"
[ -e "$BUILD/node/node_modules/kafkajs" ] || (cd "$BUILD/node" && npm install --silent --no-audit --no-fund)
export NODE_CLIENTS=$BUILD/node

[ -e "$BUILD/jars/.complete" ] ||
  { mvn -q -B -f interop/clients/pom.xml dependency:copy-dependencies -DincludeScope=runtime -DoutputDirectory="$BUILD/jars" && touch "$BUILD/jars/.complete"; }
export KAFKA_JARS=$BUILD/jars
export OLD_KAFKA_JARS=$BUILD/old-jars
for version in 0.10.2.2 0.11.0.3 1.1.1 2.0.1; do
  [ -e "$OLD_KAFKA_JARS/$version/.complete" ] ||
    { mvn -q -B -f interop/clients/old/pom.xml -Dkafka="$version" dependency:copy-dependencies -DincludeScope=runtime -DoutputDirectory="$OLD_KAFKA_JARS/$version" &&
      touch "$OLD_KAFKA_JARS/$version/.complete"; }
done

(cd interop && CGO_ENABLED=1 go test -count=1 -timeout 15m ${1:+-run "$1"} ./...)
[ -z "${1:-}" ] || exit 0

if [ ! -d "$SUITES" ]; then
  echo "no test suites at $SUITES: skipped"
  exit 0
fi
scripts/suites.sh "$SUITES"
