#!/usr/bin/env bash
# Make sure that the servers which the tests start can be had: redis-server, PostgreSQL,
# Apache Kafka, and the browser that opens the dashboard.
# Installs what is missing from Debian (or Ubuntu) packages, starts nothing, changes nothing when all is there.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

fail() {
  echo "tools/servers/install.sh: $*" >&2
  exit 1
}

java_version() { # the major version of the java on PATH, 0 without one
  local version
  version=$(java -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p' | head -n1) || true
  echo "${version:-0}"
}

have_postgres() {
  compgen -G '/usr/lib/postgresql/*/bin/initdb' >/dev/null || command -v initdb >/dev/null
}

missing=()
command -v redis-server >/dev/null || missing+=(redis-server)
have_postgres || missing+=(postgresql)
[ "$(java_version)" -ge 17 ] || missing+=(openjdk-17-jre-headless)
command -v mvn >/dev/null || missing+=(maven)
command -v openssl >/dev/null || missing+=(openssl)
command -v chromium >/dev/null || missing+=(chromium)

as_root=()
[ "$(id -u)" -eq 0 ] || as_root=(sudo)

# A server installed from a package starts by itself. policy-rc.d is Debian's way to forbid that. One that is
# already there (containers ship one) is left alone when it forbids too, and put back as it was otherwise.
policy=/usr/sbin/policy-rc.d
kept=
forbidden=
output=
clean_up() {
  [ -z "$output" ] || rm -f "$output"
  [ -n "$forbidden" ] || return 0
  "${as_root[@]}" rm -f "$policy"
  [ -z "$kept" ] || "${as_root[@]}" mv "$kept" "$policy"
}
trap clean_up EXIT
forbid_services() {
  if [ -e "$policy" ]; then
    grep -q '^exit 101' "$policy" && return
    kept="$policy.before-dspark"
    "${as_root[@]}" mv "$policy" "$kept"
  fi
  forbidden=yes
  printf '#!/bin/sh\nexit 101\n' | "${as_root[@]}" tee "$policy" >/dev/null
  "${as_root[@]}" chmod 755 "$policy"
}

if [ ${#missing[@]} -gt 0 ]; then
  command -v apt-get >/dev/null || fail "missing ${missing[*]}, and there is no apt-get here to install them with"
  [ ${#as_root[@]} -eq 0 ] || command -v sudo >/dev/null || fail "missing ${missing[*]}: run this as root once"
  echo "installing ${missing[*]}"
  output=$(mktemp)
  apt() { # quiet unless it fails; 120 s of patience when another apt holds the lock
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq -y -o DPkg::Lock::Timeout=120 "$@" >"$output" 2>&1
  }
  forbid_services
  apt update || true # an old index may still do; the install below decides
  for package in "${missing[@]}"; do
    apt install --no-install-recommends "$package" ||
      fail "could not install $package: $(grep -m1 '^E:' "$output" || tail -n1 "$output")"
  done
fi

[ "$(java_version)" -ge 17 ] || fail "Java 17 or newer is needed for Kafka; the java on PATH is $(java_version)"
command -v redis-server >/dev/null || fail "redis-server is not on PATH although its package is installed"
have_postgres || fail "PostgreSQL's initdb was not found although its package is installed"
jars=$("$here/kafka-jars.sh" 2>&1) || fail "$jars"
echo "servers: $(redis-server --version | sed -n 's/.*v=\([0-9.]*\).*/redis \1/p')," \
  "postgresql $(ls /usr/lib/postgresql 2>/dev/null | sort -V | tail -n1), kafka $(basename "$jars")"
