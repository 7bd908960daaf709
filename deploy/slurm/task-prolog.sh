#!/bin/bash
# Slurm's TaskProlog, as the user before each task: what it prints as `export NAME=value` the task has.
# A value of the job's own stays.
. "$(dirname "$(readlink -f "$0")")/common.sh"
[ -n "${SLURM_JOB_ID:-}" ] || exit 0
env | grep -q '^CACHETIER_URL=' || echo "export CACHETIER_URL=$CACHETIER_URL"
[ -n "${CACHETIER_RUN:-}" ] || echo "export CACHETIER_RUN=${SLURM_JOB_NAME:-job}-${SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}"
[ -n "${CACHETIER_SERVICE_UID:-}" ] || echo "export CACHETIER_SERVICE_UID=$(id -u "$CACHETIER_USER")"
