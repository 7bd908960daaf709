"""Data files on the node's disk, the room they take, and those that no row names."""
