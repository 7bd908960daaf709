# One checkpoint there and back: put, durable, restored, compared.
step=$(date +%s)
head -c 8388608 /dev/urandom > /tmp/shard
cachetier put /tmp/shard --step "$step" --name model/rank-0 --seal
cachetier wait "$CACHETIER_RUN" "$step" --timeout 300
cachetier get /tmp/back --step "$step" --name model/rank-0
cmp /tmp/shard /tmp/back && echo "step $step is durable, and came back as it was"
