"""Every error cachetier can answer with, grouped by what the caller does next.

Each class has a stable ``code`` (part of the protocol: clients switch on it), the HTTP status the
HTTP door answers with, and a ``hint`` that says what to do. A caller never has to parse a message.

Source: docs/protocol.md, "Errors".
"""

from __future__ import annotations

from typing import ClassVar


class CachetierError(Exception):
    """Base of all errors; ``context`` carries the ids (run, step, rank, name) a person needs."""

    code: ClassVar[str] = "internal"
    status: ClassVar[int] = 500
    hint: ClassVar[str] = "This is a defect in cachetier: please report it with the service's log."
    retry_after_seconds: float | None = None

    def __init__(
        self, message: str, *, hint: str | None = None, **context: str | int | None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.next_move = hint or self.hint
        self.context = {name: value for name, value in context.items() if value is not None}


# --- wait: nothing is wrong with the call; there is no room, or not yet -----------------------


class BackpressureError(CachetierError):
    code = "backpressure"
    status = 507
    hint = "The cache is full of bytes not yet durable. Call again later, or raise `capacity`."
    retry_after_seconds = 5.0


class DeadlineError(CachetierError):
    code = "deadline"
    status = 504
    hint = (
        "Raise timeout_seconds, or see what is slow: `cachetier status`, or if that hangs as well, "
        "the service's log."
    )


class NotDurableError(CachetierError):
    code = "not_durable"
    status = 504
    hint = (
        "The bytes are safe on this node and keep draining. Wait again, or see `cachetier status`."
    )


class StoppingError(CachetierError):
    code = "stopping"
    status = 503
    hint = "The service is shutting down. Call again when it is back; nothing was lost."
    retry_after_seconds = 2.0


# --- fix: the call itself is wrong ------------------------------------------------------------


class InvalidNameError(CachetierError):
    code = "invalid_name"
    status = 400
    hint = "See docs/protocol.md, 'Names', for the grammar of run, step and shard names."


class InvalidRequestError(CachetierError):
    code = "invalid_request"
    status = 400
    hint = "Correct the request and send it again."


class SizeMismatchError(CachetierError):
    code = "size_mismatch"
    status = 400
    hint = "Declare the size that is really written. Nothing was kept."


class DigestMismatchError(CachetierError):
    code = "digest_mismatch"
    status = 422
    hint = "The bytes changed on the way. Nothing was kept; send them again."


class OpenForWritingError(CachetierError):
    code = "open_for_writing"
    status = 409
    hint = "Close every descriptor and mapping of the staged file before commit. Nothing was kept."


class ConfigError(CachetierError):
    code = "config"
    status = 500
    hint = "Correct the setting and start again."


class ForbiddenError(CachetierError):
    code = "forbidden"
    status = 403
    hint = "Connect as a user in `allowed_uids`, or send the configured token."


class ProtocolMismatchError(CachetierError):
    code = "protocol_mismatch"
    status = 400
    hint = "Install matching versions of cachetier and cachetier-client."


# --- look: the state of the run is not what the caller believes -------------------------------


class NotFoundError(CachetierError):
    code = "not_found"
    status = 404
    hint = "List what there is with `cachetier ls`."


class SealedError(CachetierError):
    code = "sealed"
    status = 409
    hint = "The rank sealed other bytes. Save under a new step, or with overwrite=True."


class StepPublishedError(CachetierError):
    code = "step_published"
    status = 409
    hint = "The step is published already. Pass overwrite=True to replace it."


class SaveSupersededError(CachetierError):
    code = "save_superseded"
    status = 409
    hint = (
        "A newer save of this step has begun: this process belongs to an older one and should stop."
    )


class IncompleteError(CachetierError):
    code = "incomplete"
    status = 409
    hint = "Put the missing shards, then seal again."


class AbortedError(CachetierError):
    code = "aborted"
    status = 409
    hint = "The save was aborted or deleted. Begin a new one."


class PinnedError(CachetierError):
    code = "pinned"
    status = 409
    hint = "Somebody wants it kept. If not any more: `cachetier unpin RUN STEP`, then call again."


class LocalOnlyError(CachetierError):
    code = "local_only"
    status = 409
    hint = (
        "It is safe on this node and is not drained: `durable_every` or `supersede`. To send it, "
        "flush this very step on every node: `cachetier flush --run RUN --step STEP`."
    )


# --- give up: a person has to act -------------------------------------------------------------


class IntegrityError(CachetierError):
    code = "integrity"
    status = 500
    hint = "The stored bytes fail their checksum and were not served. Restore another step."


class FencedError(CachetierError):
    code = "fenced"
    status = 503
    hint = "A sync failed: nothing is taken or drained. Restart, flush, then replace the disk."


class CatalogDamagedError(CachetierError):
    code = "catalog_damaged"
    status = 500
    hint = "Keep the cache directory as it is and read docs/recovery.md before starting again."


class DirectoryInUseError(CachetierError):
    code = "directory_in_use"
    status = 500
    hint = "Stop that one, or choose another cache_dir."


# --- remote: classified by code at the store, decided on by the drain -------------------------


class RemoteError(CachetierError):
    """An object store did not do what it was asked."""

    code = "remote"
    status = 502
    hint = "See `cachetier status` for the remote's state."


class ThrottledError(RemoteError):
    """503 SlowDown, 429 and kin: the request was fine, the pace was not."""

    code = "remote_throttled"


class TransientError(RemoteError):
    """A reset, a time-out or a 5xx: the request may succeed again, and may have already."""

    code = "remote_transient"


class RemoteRefusedError(RemoteError):
    """403, no such bucket, expired credentials: only a person can mend it.

    Keep everything and probe.
    """

    code = "remote_refused"
    hint = "Mend the bucket, its policy or the credentials. Everything is kept; draining resumes."


class ObjectMissingError(RemoteError):
    """No object under this key."""

    code = "remote_missing"


class CopiesRefusedError(RemoteRefusedError):
    """The store does not copy ranges of its objects, or not for us: send the bytes instead."""

    code = "remote_copies_refused"
    hint = "Nothing is lost: the bytes are sent. Allow reading the bucket's objects to copy them."


class SourceChangedError(RemoteError):
    """The object to copy from is gone, or is not the version that was looked at: send the bytes."""

    code = "remote_source_changed"


class PreconditionFailedError(RemoteError):
    """A conditional write lost: someone (perhaps we ourselves, reply lost) wrote first."""

    code = "remote_precondition"


class UploadGoneError(RemoteError):
    """The multipart upload id is unknown to the store: start that upload again."""

    code = "remote_upload_gone"


class RemoteDigestError(RemoteError):
    """The store received, or returned, bytes that do not match their digest."""

    code = "remote_digest"


def error_codes() -> frozenset[str]:
    """Return the code of every kind of error: a finite list, fit for a label."""
    found, kinds = set(), [CachetierError]
    while kinds:
        kind = kinds.pop()
        found.add(kind.code)
        kinds += kind.__subclasses__()
    return frozenset(found)
