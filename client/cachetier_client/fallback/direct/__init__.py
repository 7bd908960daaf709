"""Save straight to the bucket while the service is away: same keys, same rules, same documents.

What lies there afterwards cannot be told from what a drain sends. Only awscrt is needed, for
credentials, signatures and checksums.

Source: docs/guarantees.md.
"""
