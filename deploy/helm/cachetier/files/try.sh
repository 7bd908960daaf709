# One checkpoint there and back: put, durable, restored, compared.
step=$(date +%s)
head -c 8388608 /dev/urandom > /tmp/shard
cachetier put /tmp/shard "$CACHETIER_RUN" "$step" --name model/rank-0 --seal
cachetier wait "$CACHETIER_RUN" "$step" --timeout 300s
cachetier get "$CACHETIER_RUN" "$step" /tmp/back --name model/rank-0
cmp /tmp/shard /tmp/back && echo "step $step is durable, and came back as it was"
