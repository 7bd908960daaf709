"""What the S3 door is refused with; each names S3's own code for it.

Errors of the rest of the service (no room, a damaged disk, a remote that is away) are mapped at the
door.
"""

from __future__ import annotations

from cachetier.errors import (
    ConditionError,
    EntityTooSmallError,
    InvalidPartError,
    InvalidPartOrderError,
    NoSuchBucketError,
    NoSuchKeyError,
    NoSuchUploadError,
    ReadOnlyMountError,
)

__all__ = [
    "EntityTooSmallError",
    "InvalidPartError",
    "InvalidPartOrderError",
    "NoSuchBucketError",
    "NoSuchKeyError",
    "NoSuchUploadError",
    "ConditionError",
    "ReadOnlyMountError",
]
