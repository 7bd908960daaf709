#!/bin/bash
# Slurm's Epilog, as root on each node when a job has ended: gives the last checkpoint a while to
# reach the bucket before the next job, a reboot or a power-down. What is left drains on: the service
# outlives the job. It ends with 0 whatever comes: another status would have Slurm drain the node.
set -u
. "$(dirname "$(readlink -f "$0")")/common.sh"

if ! asked status --json >/dev/null 2>&1; then
    say "cachetier cannot be asked: what is dirty here waits for its next start"
elif left=$(asked flush --timeout "${CACHETIER_FLUSH_SECONDS}s" 2>&1); then
    say "all is durable"
else
    say "not all is durable after $CACHETIER_FLUSH_SECONDS s, and drains on: $(tail -n 2 <<<"$left" | tr '\n' ' ')"
fi
exit 0
