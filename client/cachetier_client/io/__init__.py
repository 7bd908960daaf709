"""Memory, files, threads between them, and the digest of each block."""
