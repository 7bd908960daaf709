"""Restore shards: from this node if they are here and sound, else from the nearest remote."""
