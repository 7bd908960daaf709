"""The errors of the service: those it shares with its clients, and those that only it meets.

Source: docs/protocol.md, "Errors".
"""

from __future__ import annotations

from collections.abc import Iterator

from cachetier_client.errors import *  # noqa: F403  # the service imports all of them from here
from cachetier_client.errors import (
    BackpressureError,
    CachetierClientError,
    FixCallError,
    ForbiddenError,
    GiveUpError,
    InvalidRequestError,
    NotFoundError,
    RemoteError,
    RemoteRefusedError,
    TransientError,
)

CachetierError = CachetierClientError  # the base of all, as the service calls it


class ConfigError(FixCallError):
    """A setting is wrong, or cannot be had on this machine."""

    code = "config"
    hint = "Correct the setting and start again."


class UnauthorizedError(ForbiddenError):
    """No token, or one that opens nothing."""

    http_status = 401
    hint = (
        "Set CACHETIER_TOKEN, or send `Authorization: Bearer <token>`: the owner's token is in "
        "<cache_dir>/token."
    )


_NEW_KEY = 'Take a key of this service: eval "$(cachetier s3 env)".'


class UnknownKeyError(UnauthorizedError):
    """An S3 client has a key that there is not, or not any more."""

    code = "s3_key_unknown"
    hint = _NEW_KEY


class WrongSignatureError(UnauthorizedError):
    """A request of an S3 client is signed with another secret, or was changed on its way."""

    code = "s3_signature"
    hint = _NEW_KEY


class EndedKeyError(UnauthorizedError):
    """The time of an S3 client's key is over."""

    code = "s3_key_ended"
    hint = _NEW_KEY


class CatalogDamagedError(GiveUpError):
    """The catalog cannot be trusted."""

    code = "catalog_damaged"
    hint = "Keep the cache directory as it is and read docs/recovery.md before starting again."


class DirectoryInUseError(GiveUpError):
    """Another service has the cache directory."""

    code = "directory_in_use"
    hint = "Stop that one, or choose another cache_dir."


class DiskFullError(BackpressureError):
    """The disk has no room, though `capacity` has: the room that was reserved is given back."""

    hint = "Free space on the disk, or lower `capacity`."


class CallerGoneError(InvalidRequestError):
    """The caller hung up while the service waited for them; nobody is there to read this."""

    hint = "Wait for the answer to the earlier call."


# --- remote: decided on by the drain ----------------------------------------------------------


class ClientPendingError(TransientError):
    """No client of the store is made yet, so it was asked nothing."""

    hint = "The node is very busy, or the program of the AWS configuration hangs."


class CopiesRefusedError(RemoteRefusedError):
    """The store does not copy ranges of its objects, or not for us: send the bytes instead."""

    code = "remote_copies_refused"
    hint = "Nothing is lost: the bytes are sent. Allow reading the bucket's objects to copy them."


class SourceChangedError(RemoteError):
    """The object to copy from is gone, or is not the version that was looked at: send the bytes."""

    code = "remote_source_changed"


# --- objects: what the S3 door refuses with, by S3's own codes -----------------------------------

_LOOK_AT_KEY = (
    "Look at the key: `ls` through the door, or `cachetier ls s3:<mount>`, shows what there is."
)


class NoSuchKeyError(NotFoundError):
    code = "no_such_key"
    hint = _LOOK_AT_KEY
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


class ConditionError(InvalidRequestError):
    """The condition of a put or a read does not hold."""

    code = "precondition_failed"
    s3_code = "PreconditionFailed"


class ReadOnlyMountError(CachetierError):
    code = "read_only"
    hint = "This mount takes no writes: `mode` of its [[s3_mount]] says so."
    s3_code = "AccessDenied"


def error_codes() -> frozenset[str]:
    """Return the code of every kind of error: a finite list, fit for a label."""
    return frozenset(kind.code for kind in error_kinds())


def error_kinds() -> Iterator[type[CachetierError]]:
    """Yield every kind of error, the base first."""
    kinds = [CachetierError]
    while kinds:
        kind = kinds.pop()
        yield kind
        kinds += kind.__subclasses__()
