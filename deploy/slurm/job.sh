#!/bin/bash
# A job that saves through the node's cachetier, is told 300 s before its end, and goes on where it was. Of the 300 s
# the flush below has 240, and the requeue the rest. Where jobs are preempted, the partition's GraceTime is 300 as well.
#SBATCH --job-name=llama
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=8
#SBATCH --time=24:00:00           # then it is requeued, not ended
#SBATCH --requeue                 # also when a node fails, or a prolog does
#SBATCH --open-mode=append
#SBATCH --signal=B:USR1@300
export CACHETIER_RUN=llama        # the same in every requeue: it resumes what the last one saved
leave() {                         # each node flushes its part of the newest step; then back into the queue
    srun --overlap --ntasks="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 sh -c '
        step=$(cachetier ls "$CACHETIER_RUN" --latest --level local) &&
            cachetier flush "$CACHETIER_RUN" "$step" --timeout 240s'
    scontrol requeue "$SLURM_JOB_ID"
}
trap leave USR1
# Each node brings the newest step to its disk before ranks ask for it; as peers (docs/remotes.md) S3 sends it once.
srun --ntasks="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 cachetier restore "$CACHETIER_RUN" --timeout 10m || true
srun python train.py &
training=$!
wait "$training"; status=$?       # the signal ends this wait, after the trap
[ "$status" -le 128 ] || { wait "$training"; status=$?; }
exit "$status"
