"""What the S3 door is refused with; each names S3's own code for it.

Errors of the rest of the service (no room, a damaged disk, a remote that is away) are mapped at the
door.
"""

from __future__ import annotations

from cachetier.errors import CachetierError, InvalidRequestError, NotFoundError

_LOOK = "Look at the key: `ls` through the door, or `cachetier ls s3:<mount>`, shows what there is."


class NoSuchKeyError(NotFoundError):
    code = "no_such_key"
    hint = _LOOK
    s3_code = "NoSuchKey"


class NoSuchBucketError(NotFoundError):
    code = "no_such_bucket"
    s3_code = "NoSuchBucket"


class NoSuchUploadError(NotFoundError):
    code = "no_such_upload"
    s3_code = "NoSuchUpload"


class InvalidPartError(InvalidRequestError):
    code = "invalid_part"
    s3_code = "InvalidPart"


class InvalidPartOrderError(InvalidRequestError):
    code = "invalid_part_order"
    s3_code = "InvalidPartOrder"


class EntityTooSmallError(InvalidRequestError):
    code = "entity_too_small"
    s3_code = "EntityTooSmall"


class PreconditionFailedError(InvalidRequestError):
    """The condition of a put or a read does not hold."""

    code = "precondition_failed"
    s3_code = "PreconditionFailed"


class ReadOnlyMountError(CachetierError):
    code = "read_only"
    hint = "This mount takes no writes: `mode` of its [[s3_mount]] says so."
    s3_code = "AccessDenied"
