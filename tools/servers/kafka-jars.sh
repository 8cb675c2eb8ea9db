#!/usr/bin/env bash
# Print the folder that holds Kafka's jars; resolve them with Maven first when they are not cached.
# Safe to call from many processes at once: one resolves, the others wait, and the folder appears in one rename.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache="$here/../../.cache/kafka"
version=$(sed -n 's:.*<kafka\.version>\(.*\)</kafka\.version>.*:\1:p' "$here/pom.xml")

mkdir -p "$cache"
cache=$(cd "$cache" && pwd)
jars="$cache/$version"
if [ -d "$jars" ]; then
  echo "$jars"
  exit 0
fi

command -v mvn >/dev/null || { echo "Kafka $version: mvn is missing, so its jars cannot be resolved" >&2; exit 1; }

exec 9>"$cache/lock"
flock 9
if [ ! -d "$jars" ]; then
  partial=$(mktemp -d "$cache/partial.XXXXXX")
  trap 'rm -rf "$partial"' EXIT
  # -U: without it Maven remembers for a day that a download failed.
  if ! mvn -q -B -U -f "$here/pom.xml" dependency:copy-dependencies \
      -DoutputDirectory="$partial" -DincludeScope=runtime >"$cache/maven.log" 2>&1 9>&-; then
    said=$(grep -m1 -E '\[(ERROR|FATAL)\] *[[:alnum:]]' "$cache/maven.log" || tail -n1 "$cache/maven.log")
    echo "Kafka $version: Maven could not resolve the jars: ${said#*] }" >&2
    exit 1
  fi
  chmod 755 "$partial"
  mv -T "$partial" "$jars"
fi
echo "$jars"
