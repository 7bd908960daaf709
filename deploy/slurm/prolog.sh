#!/bin/bash
# Slurm's Prolog, as root on each node before a job's first step: no job begins on a node that
# cannot keep its checkpoints. A status other than 0 has Slurm drain the node and requeue the job,
# held unless SchedulerParameters has nohold_on_prolog_fail.
set -u
. "$(dirname "$(readlink -f "$0")")/common.sh"

if [ -n "$CACHETIER_UNIT" ] && ! systemctl is-active --quiet "$CACHETIER_UNIT"; then
    say "starts $CACHETIER_UNIT"
    systemctl start "$CACHETIER_UNIT" || true
fi
ends=$((SECONDS + CACHETIER_READY_SECONDS))
while :; do
    found=$(asked status --json 2>&1)
    if grep -Eq '"state": ?"ready"' <<<"$found"; then exit 0; fi
    if [ "$SECONDS" -ge "$ends" ]; then break; fi
    sleep 1
done
why=$(grep -Eom1 '"(state|message)": ?"[^"]*"' <<<"$found" || tail -n 1 <<<"$found")
say "cachetier is not ready after $CACHETIER_READY_SECONDS s: $why"
echo "cachetier is not ready on this node: $why"  # in slurmd's log
exit 1
