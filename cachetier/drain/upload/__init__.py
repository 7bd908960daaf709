"""Upload one shard and verify it: read, compress, cut into upload parts, send, look."""
