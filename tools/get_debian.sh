#!/bin/sh
# Have a program for some of the tests: that of the machine, else Debian's packages, unpacked into a
# folder of ours. Nothing is installed and nothing started, so no root is needed. Where that is not
# possible the tests that need it say so and are skipped.
#
#     tools/get_debian.sh .venv/prometheus prometheus prometheus
#     tools/get_debian.sh .venv/slurm slurmctld-wlm slurmctld+ slurmd+ slurm-client+
#     tools/get_debian.sh .venv/xfs mkfs.xfs xfsprogs libinih1 liburcu8
#     tools/get_debian.sh .venv/chromium chromium-headless-shell chromium-headless-shell+
#
# Of a package with a plus all that it needs, and the machine has not, is unpacked too.
set -eu
folder=$1 program=$2
shift 2
PATH=$PATH:$folder/usr/bin:$folder/usr/sbin:$folder/sbin:/usr/sbin:/sbin
if command -v "$program" >/dev/null; then exit 0; fi

give_up() {
    echo "    no $program ($1): the tests that need it are skipped" >&2
    exit 0
}
command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null || give_up 'no apt-get here: install it'

echo "==> unpacking Debian's $program, for the tests"
apt="apt-get -qq -o Acquire::Retries=2 -o Acquire::http::Timeout=30"
fetch() {
    packages=
    for package in "$@"; do
        case $package in
            *+) packages="$packages $($apt -s install --no-install-recommends "${package%+}" | sed -n 's/^Inst \([^ ]*\).*/\1/p')" ;;
            *) packages="$packages $package" ;;
        esac
    done
    $apt download $packages
}
rm -rf "$folder" && mkdir -p "$folder" && cd "$folder"
if ! fetch "$@" >/dev/null 2>&1; then
    # The machine's lists are missing or old, and may not be ours to renew.
    mkdir -p lists/partial cache/archives/partial
    apt="$apt -o Dir::State::lists=$PWD/lists -o Dir::Cache=$PWD/cache -o APT::Sandbox::User="
    $apt update >apt.log 2>&1 && fetch "$@" >>apt.log 2>&1 \
        || give_up "apt-get: $(tail -n 1 apt.log)"
fi
for package in *.deb; do
    dpkg-deb --extract "$package" . || give_up 'a package cannot be unpacked'
done
rm -rf ./*.deb lists cache apt.log etc var usr/share
