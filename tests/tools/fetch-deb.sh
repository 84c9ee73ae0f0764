#!/usr/bin/env bash
# fetch-deb.sh SUITE DEST PACKAGE...: unpack packages of another Debian suite into DEST, beside the system.
#
# Debian's newer Prometheus runs on an older Debian; installing it would upgrade half of the system.
set -euo pipefail
suite=$1 dest=$2
shift 2
sources=/etc/apt/sources.list.d/debian.sources
[ -r "$sources" ] || { echo "fetch-deb: no $sources: this is no Debian with deb822 sources" >&2; exit 1; }

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work"/{sources,lists/partial,cache/archives/partial,debs}
chmod -R a+rx "$work"
# The machine's own mirrors, with another suite; security updates have suites of their own.
awk 'BEGIN { RS = ""; ORS = "\n\n" } !/security/' "$sources" |
  sed -E "s/^Suites:.*/Suites: $suite/" >"$work/sources/suite.sources"
# Without the system's package status: it would hide older versions of what is installed.
options=(-qq
  -o Dir::Etc::sourcelist=/dev/null -o Dir::Etc::sourceparts="$work/sources"
  -o Dir::State::lists="$work/lists" -o Dir::State::status=/dev/null -o Dir::Cache="$work/cache"
  -o APT::Sandbox::User=root)
apt-get "${options[@]}" update
(cd "$work/debs" && apt-get "${options[@]}" download "$@")
mkdir -p "$dest"
for deb in "$work"/debs/*.deb; do dpkg -x "$deb" "$dest"; done
