"""Bring one shard to a remote and verify it there: read, compress, cut, send, look."""
