#!/bin/sh
# Have prometheus and promtool for the tests of metrics, rules and dashboards: those of the machine,
# else Debian's package, unpacked into a folder of ours. Nothing is installed and nothing started,
# so no root is needed. Where that is not possible the tests that need them say so and are skipped.
#
#     tools/get_prometheus.sh .venv/prometheus
set -eu
folder=$1
PATH=$PATH:$folder/usr/bin
if command -v prometheus >/dev/null && command -v promtool >/dev/null; then exit 0; fi

give_up() {
    echo "    no prometheus ($1): the tests that need it are skipped" >&2
    exit 0
}
command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null || give_up 'no apt-get here: install it'

echo '==> unpacking Debian'\''s prometheus, for the tests'
apt="apt-get -qq -o Acquire::Retries=2 -o Acquire::http::Timeout=30"
rm -rf "$folder" && mkdir -p "$folder" && cd "$folder"
if ! $apt download prometheus >/dev/null 2>&1; then
    # The machine's lists are missing or old, and may not be ours to renew.
    mkdir -p lists/partial cache/archives/partial
    apt="$apt -o Dir::State::lists=$PWD/lists -o Dir::Cache=$PWD/cache -o APT::Sandbox::User="
    $apt update >apt.log 2>&1 && $apt download prometheus >>apt.log 2>&1 \
        || give_up "apt-get: $(tail -n 1 apt.log)"
fi
dpkg-deb --extract prometheus_*.deb . || give_up 'the package cannot be unpacked'
rm -rf prometheus_*.deb lists cache apt.log etc lib var usr/share
