"""Every error of client and service, grouped by what the caller does next.

Each class has a stable ``code`` (part of the protocol: callers switch on it or on the class, never
on a message), the HTTP status that the HTTP door answers with, and a ``hint`` that says what to do.
Each error carries the run, step, rank and shard it concerns, so that one line of a log says what
failed, why, and what to do.

Source: docs/protocol.md, "Errors".
"""

from __future__ import annotations

import errno
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from cachetier_client.results import Incident


_Kind = TypeVar("_Kind")


class CachetierClientError(Exception):
    """Base of all errors, and the class of codes that this version does not know.

    Attributes:
        code: What went wrong, stable.
        http_status: What the service's HTTP door answers with.
        message: What went wrong, for people.
        hint: What to do next.
        operation: The client's call that failed, such as ``put_shard``.
        context: What it concerned, where known: run, step, rank, name, and what a program needs.
        retry_after_seconds: When repeating may help, where that is known.
    """

    code: str = "internal"
    http_status: int = 500
    hint: str = "This is a defect in cachetier: please report it with the service's log."
    retry_after_seconds: float | None = None

    def __init__(
        self,
        message: str,
        *,
        hint: str | None = None,
        code: str | None = None,
        **context: str | int | None,
    ) -> None:
        super().__init__(message)
        self.message = message
        if hint:
            self.hint = hint
        if code:
            self.code = code
        self.operation: str | None = None
        self.context: dict[str, Any] = {}
        self._add_context(context)

    @property
    def run(self) -> str | None:
        return self.context.get("run")

    @property
    def step(self) -> int | None:
        return self.context.get("step")

    @property
    def rank(self) -> int | None:
        return self.context.get("rank")

    @property
    def name(self) -> str | None:
        return self.context.get("name")

    @property
    def cause(self) -> BaseException | None:
        """The lower error behind this one, if any."""
        return self.__cause__

    def locate(
        self,
        operation: str | None = None,
        *,
        run: str | None = None,
        step: int | None = None,
        rank: int | None = None,
        name: str | None = None,
    ) -> None:
        """Fill in what is not known yet; what the service said wins."""
        self.operation = self.operation or operation
        self._add_context({"run": run, "step": step, "rank": rank, "name": name})

    def _add_context(self, context: Mapping[str, str | int | None]) -> None:
        for name, value in context.items():
            if value is not None:
                self.context.setdefault(name, value)

    def as_json(self) -> dict[str, Any]:
        """Return it as ``error_from`` reads it."""
        described = {"code": self.code, "message": self.message, "hint": self.hint}
        return {**described, "run": self.run, "step": self.step}

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle with the cause in words: exceptions go to other ranks without theirs."""
        because = f" ({_cause_of(self)})" if self.__cause__ is not None else ""
        state = {**self.__dict__, "message": self.message + because}
        return type(self), (self.message,), state

    def __str__(self) -> str:
        ids = {"run": self.run, "step": self.step, "rank": self.rank, "shard": self.name}
        words = [self.operation] if self.operation else []
        words += [f"{word}={value}" for word, value in ids.items() if value is not None]
        where = f"{' '.join(words)}: " if words else ""
        because = f" ({_cause_of(self)})" if self.__cause__ is not None else ""
        return f"{where}{sentence(self.message + because)} Next: {self.hint}"


# --- wait: nothing is wrong with the call -----------------------------------------------------


class WaitError(CachetierClientError):
    """Nothing is wrong with the call: repeat it later."""


class BackpressureError(WaitError):
    """The cache has no room for the shard."""

    code = "backpressure"
    http_status = 507
    hint = "The cache is full of bytes not yet durable. Call again later, or raise `capacity`."
    retry_after_seconds = 5.0


class DeadlineError(WaitError):
    """The call's time is over. A put may or may not have happened; repeating it is safe."""

    code = "deadline"
    http_status = 504
    hint = (
        "Raise timeout_seconds, or see what is slow: `cachetier status`, or if that hangs as well, "
        "the service's log."
    )


class NotDurableError(WaitError):
    """The level asked for was not reached in time; the bytes are still safe where they were."""

    code = "not_durable"
    http_status = 504
    hint = (
        "The bytes are safe on this node and keep draining. Wait again, or see `cachetier status`."
    )


class StoppingError(WaitError):
    """The service is shutting down."""

    code = "stopping"
    http_status = 503
    hint = "The service is shutting down. Call again when it is back; nothing was lost."
    retry_after_seconds = 2.0


class BusyError(WaitError):
    """The service has as many requests as it takes."""

    code = "busy"
    http_status = 503
    hint = "Call again in a moment, with fewer requests at once."
    retry_after_seconds = 1.0


class ExhaustedError(BusyError):
    """No file descriptor, or no thread, is left: to this process, to the service, or at all."""

    hint = "Raise the limit that the message names, or close what is open."


class ServiceUnavailableError(WaitError):
    """The service could not be reached, or went away during the call."""

    code = "unavailable"
    hint = "Check that `cachetier serve` runs on this node and that CACHETIER_URL names its door."


# --- fix: the call itself is wrong ------------------------------------------------------------


class FixCallError(CachetierClientError):
    """The call itself is wrong; repeating it will not help."""


class InvalidNameError(FixCallError):
    """A run, step, shard or save name is outside the grammar."""

    code = "invalid_name"
    http_status = 400
    hint = "See docs/protocol.md, 'Names', for the grammar of run, step and shard names."


class InvalidRequestError(FixCallError):
    """An argument is wrong."""

    code = "invalid_request"
    http_status = 400
    hint = "Correct the call and repeat it."


class SizeMismatchError(FixCallError):
    """Declared and real sizes differ. Nothing was kept, and nothing written."""

    code = "size_mismatch"
    http_status = 400
    hint = "Declare the size that is really written, or pass a buffer of the shard's size."


class DigestMismatchError(FixCallError):
    """The bytes changed on the way. Nothing was kept."""

    code = "digest_mismatch"
    http_status = 422
    hint = "Keep the bytes unchanged until the call returns, then put them again."


class OpenForWritingError(FixCallError):
    """A process still held the staged file at commit. Nothing was kept."""

    code = "open_for_writing"
    http_status = 409
    hint = (
        "Close every descriptor and mapping of the staged file before commit, those of a child "
        "forked during the put too. Nothing was kept; put it again."
    )


class ForbiddenError(FixCallError):
    """The service does not accept this user or token."""

    code = "forbidden"
    http_status = 403
    hint = "Connect as a user in `allowed_uids`, or send the configured token in CACHETIER_TOKEN."


class ProtocolMismatchError(FixCallError):
    """Client and service do not speak the same protocol."""

    code = "protocol_mismatch"
    http_status = 400
    hint = "Install matching versions of cachetier and cachetier-client."


class SaveIdentityError(FixCallError):
    """Nothing here names this save equally on all ranks and differently from every other save."""

    code = "save_identity"
    hint = (
        "Set CACHETIER_SAVE_ID to a value that is the same on all ranks and new for each start of "
        "the job, pass save_id=, or initialise torch.distributed before the first save."
    )


# --- look: the state of the run is not what the caller believes -------------------------------


class LookAtRunError(CachetierClientError):
    """The state of the run is not what the caller believes."""


class NotFoundError(LookAtRunError):
    """No such run, step or shard."""

    code = "not_found"
    http_status = 404
    hint = "List what there is with `cachetier ls`."


class SealedError(LookAtRunError):
    """The rank's part is sealed with other bytes."""

    code = "sealed"
    http_status = 409
    hint = "Save under a new step, or with overwrite=True."


class StepPublishedError(LookAtRunError):
    """The step is published already."""

    code = "step_published"
    http_status = 409
    hint = "The step is published already. Pass overwrite=True to replace it."


class SaveSupersededError(LookAtRunError):
    """A newer save of this step has begun."""

    code = "save_superseded"
    http_status = 409
    hint = (
        "A newer save of this step has begun: this process belongs to an older one and should stop."
    )


class IncompleteError(LookAtRunError):
    """Shards are missing."""

    code = "incomplete"
    http_status = 409
    hint = "Put the missing shards, then seal again."


class AbortedError(LookAtRunError):
    """The save was aborted or deleted."""

    code = "aborted"
    http_status = 409
    hint = "The save was aborted or deleted. Begin a new one."


class PinnedError(LookAtRunError):
    """The step is pinned: it stays, and is not deleted, until somebody unpins it."""

    code = "pinned"
    http_status = 409
    hint = (
        "It is pinned. If nobody needs the pin: `cachetier pin --remove RUN STEP`, then call again."
    )


class LocalOnlyError(LookAtRunError):
    """A policy of the service keeps the step on its node: it will not be durable by itself."""

    code = "local_only"
    http_status = 409
    hint = (
        "It is safe on this node and is not drained, as `durable_every` says. To send it, "
        "flush this very step on every node: `cachetier flush RUN STEP`."
    )


class UnflushedStepsError(LookAtRunError):
    """Another node acknowledged a whole step that is newer, and that is not durable yet."""

    code = "unflushed_steps"
    http_status = 409
    hint = (
        "Flush the step on the nodes named, then start again. If a node will not return: "
        "`cachetier forget NODE RUN`. CACHETIER_IGNORE_UNFLUSHED=1 starts one job without it."
    )


# --- give up: a person has to act -------------------------------------------------------------


class GiveUpError(CachetierClientError):
    """A person has to act."""


class IntegrityError(GiveUpError):
    """Stored bytes fail their checksum; they were not returned."""

    code = "integrity"
    hint = "The stored bytes fail their checksum and were not served. Restore another step."


class FencedError(GiveUpError):
    """The disk failed a sync; the service takes no more writes."""

    code = "fenced"
    http_status = 503
    hint = (
        "An fsync failed, so nothing is accepted or drained. Restart, flush, then replace the disk."
    )


class StagedIOError(GiveUpError):
    """This process could not write, or read, the file the service handed to it."""

    code = "staged_io"
    http_status = 503
    hint = "Look at the disk under the service's cache_dir and at the kernel log."


class BackgroundError(GiveUpError):
    """Something failed in the background after its call had succeeded.

    Raised by the next call, which has then done nothing, or at close. ``incidents`` tells of each
    failure.
    """

    code = "background"
    hint = "Look at `cachetier status`; what the incidents name may have to be saved again."

    def __init__(
        self,
        message: str,
        *,
        incidents: Sequence[Incident] = (),
        hint: str | None = None,
        code: str | None = None,
    ) -> None:
        super().__init__(message, hint=hint, code=code)
        self.incidents = tuple(incidents)


# --- remote: the object store, classified by code ---------------------------------------------


class RemoteError(CachetierClientError):
    """An object store did not do what it was asked."""

    code = "remote"
    http_status = 502
    hint = "See `cachetier status` for the remote's state, and call again later."


class RemoteUnavailableError(RemoteError, WaitError):
    """The object store, which this call needs, is away or slows the service down."""

    code = "remote_transient"


class RemoteRefusedError(RemoteError, GiveUpError):
    """403, no such bucket, expired credentials: only a person can mend it.

    Keep everything and probe.
    """

    code = "remote_refused"
    hint = (
        "Correct the bucket, its policy or the credentials. Everything is kept; draining resumes."
    )


class ThrottledError(RemoteUnavailableError):
    """503 SlowDown, 429 and kin: the request was fine, the pace was not."""

    code = "remote_throttled"


class TransientError(RemoteUnavailableError):
    """A reset, a time-out or a 5xx: the request may succeed again, and may have already."""


class ObjectMissingError(RemoteError):
    """No object under this key."""

    code = "remote_missing"


class PreconditionFailedError(RemoteError):
    """A conditional write lost: someone (perhaps we ourselves, reply lost) wrote first."""

    code = "remote_precondition"


class UploadGoneError(RemoteError):
    """The multipart upload id is unknown to the store: start that upload again."""

    code = "remote_upload_gone"


class RemoteDigestError(RemoteError):
    """The store received, or returned, bytes that do not match their digest."""

    code = "remote_digest"


_BY_CODE: dict[str, type[CachetierClientError]] = {
    kind.code: kind
    for group in (WaitError, FixCallError, LookAtRunError, GiveUpError)
    for kind in group.__subclasses__()
}
_BY_CODE |= dict.fromkeys(("remote", "remote_throttled"), RemoteUnavailableError)
_BY_CODE["catalog_damaged"] = GiveUpError


def error_for(code: str) -> type[CachetierClientError]:
    """Return the class for a protocol code; the base for one this version does not know."""
    return _BY_CODE.get(code, CachetierClientError)


def error_from(described: Mapping[str, Any]) -> CachetierClientError:
    """Build the error that a service described in a reply or a problem document."""
    code = str(described.get("code") or "internal")
    message = str(described.get("message") or described.get("detail") or code)
    hint = described.get("hint")
    error = error_for(code)(message, hint=hint if isinstance(hint, str) else None, code=code)
    error.locate(
        run=_kept(described.get("run"), str),
        step=_kept(described.get("step"), int),
        rank=_kept(described.get("rank"), int),
        name=_kept(described.get("name"), str),
    )
    after = described.get("retry_after_seconds")
    error.retry_after_seconds = float(after) if isinstance(after, int | float) else None
    return error


_MACHINE: dict[int | None, tuple[type[CachetierClientError], str, str]] = {
    errno.EMFILE: (
        ExhaustedError,
        "{} has no file descriptor left",
        "Raise its limit (`ulimit -n`, systemd's LimitNOFILE), or close what it has open.",
    ),
    errno.ENFILE: (
        ExhaustedError,
        "{} gets no file descriptor: the machine has no file descriptor left",
        "Raise the sysctl fs.file-max, or end what holds so many files.",
    ),
    errno.EIO: (
        StagedIOError,
        "{} cannot go on: the disk fails (Input/output error)",
        "Look at the disk under the service's cache_dir and at the kernel log; replace the disk.",
    ),
    None: (
        ExhaustedError,
        "{} can start no thread: no thread or process is left to it",
        "Raise its limit: pids.max of the container or pod, systemd's TasksMax, `ulimit -u`.",
    ),
}


def machine_failure(error: BaseException, who: str) -> CachetierClientError | None:
    """Return the error for a machine that has no descriptor, thread or disk left for ``who``.

    None: it is something else.
    """
    if isinstance(error, OSError):
        found = _MACHINE.get(error.errno) if error.errno is not None else None
    else:
        no_thread = isinstance(error, RuntimeError) and "start new thread" in str(error)
        found = _MACHINE[None] if no_thread else None
    if found is None:
        return None
    kind, message, hint = found
    return kind(message.format(who), hint=hint)


def inherited() -> InvalidRequestError:
    """Return the error for a stream or checkpoint used in a forked child."""
    return InvalidRequestError(
        "this belongs to the parent process",
        hint="Open streams and checkpoints in the process that uses them.",
    )


def _kept(value: Any, kind: type[_Kind]) -> _Kind | None:
    return value if isinstance(value, kind) else None


def sentence(text: str) -> str:
    """Return a message with its full stop, so that another sentence may follow it."""
    return text if text.endswith((".", "!", "?")) else f"{text}."


def _cause_of(error: BaseException) -> str:
    cause = error.__cause__
    return f"{type(cause).__name__}: {cause}"
