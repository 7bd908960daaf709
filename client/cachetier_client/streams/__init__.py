"""A shard as a stream, in and out, and parts of many shards at once."""
