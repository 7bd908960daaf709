#!/bin/sh
# Install into a virtual environment: say in a line what, count the packages meanwhile, and say how long it took.
# What the installers say goes to setup.log there, which is named if they fail. uv does it where it is there and
# finds what is wanted, else pip; with ONLY=pip just that.
#
#     tools/installing.sh .venv 'the pinned requirements' --require-hashes --requirement requirements/dev.txt
set -u
python=$1/bin/python log=$1/setup.log what=$2
shift 2

install() {
    if [ "${ONLY:-}" != pip ] && command -v uv; then
        uv pip install --python "$python" "$@" && return
        echo 'uv could not: pip tries'
    fi
    "$python" -m pip --disable-pip-version-check install "$@"
}
packages() { grep -cE '^Collecting |^Processing |^Requirement already|^ \+ ' "$log"; }

printf '==> installing %s\n' "$what"
printf '\n==> installing %s: %s\n' "$what" "$*" >>"$log"
begun=$(date +%s) before=$(packages)
install "$@" >>"$log" 2>&1 &
installer=$!
trap 'kill "$installer" 2>/dev/null; exit 130' INT TERM
while [ -t 1 ] && kill -0 "$installer" 2>/dev/null; do
    printf '\r    %d packages, %d s ' "$(($(packages) - before))" "$(($(date +%s) - begun))"
    sleep 1
done
wait "$installer"
failed=$?
[ ! -t 1 ] || printf '\r'
if [ "$failed" -ne 0 ]; then
    grep -v '^WARNING: Location' "$log" | tail -n 12 >&2
    printf 'It failed. All that was said is in %s\n' "$log" >&2
    exit "$failed"
fi
printf '    done in %d s    \n' "$(($(date +%s) - begun))"
