"""Take shards in: admit, stage, check, commit; or send one straight to the remote."""
