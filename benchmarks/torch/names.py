"""What the ways of saving are called, where there is no torch: see ``modes.py``."""

from __future__ import annotations

SYNCED, UNSYNCED = "torch.save, fsync", "torch.save"
DIRECT = "a raw O_DIRECT write"
COPIED = "a copy, in a thread"
DCP, DCP_ASYNC = "dcp.save", "dcp.async_save"
S3 = "s3torchconnector"
OURS, OURS_ASYNC, OURS_LAZY = "ours", "ours, async", "ours, lazy"
