"""Every error a call can raise, grouped by what the caller does next.

Each class has the protocol's ``code`` and a ``hint``; each error carries the run, step, rank and
shard it concerns, so that one line of a log says what failed, why, and what to do. Switch on
classes or on ``code``, never on messages.

Source: docs/protocol.md, "Errors".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from cachetier_client.results import Incident


_Kind = TypeVar("_Kind")


class CachetierClientError(Exception):
    """Base of all errors of this library, and the class of codes that this version does not know.

    Attributes:
        code: What went wrong, stable.
        message: What went wrong, for people.
        hint: What to do next.
        operation: The call that failed, such as ``put_shard``.
        run, step, rank, name: What it concerned, where known.
        retry_after_seconds: When repeating may help, where the service said so.
    """

    code: str = "internal"
    hint: str = "This is a defect in cachetier: please report it with the service's log."

    def __init__(self, message: str, *, hint: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        if hint:
            self.hint = hint
        if code:
            self.code = code
        self.operation: str | None = None
        self.run: str | None = None
        self.step: int | None = None
        self.rank: int | None = None
        self.name: str | None = None
        self.retry_after_seconds: float | None = None

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
        self.run = self.run if self.run is not None else run
        self.step = self.step if self.step is not None else step
        self.rank = self.rank if self.rank is not None else rank
        self.name = self.name if self.name is not None else name

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
        return f"{where}{_sentence(self.message + because)} Next: {self.hint}"


# --- wait: nothing is wrong with the call -----------------------------------------------------


class WaitError(CachetierClientError):
    """Nothing is wrong with the call: repeat it later."""


class BackpressureError(WaitError):
    """The cache has no room for the shard."""

    code = "backpressure"
    hint = "The cache is full of bytes not yet durable. Call again later, or raise `capacity`."


class DeadlineError(WaitError):
    """The call's time is over. A put may or may not have happened; repeating it is safe."""

    code = "deadline"
    hint = (
        "Raise timeout_seconds, or see what is slow: `cachetier status`, or if that hangs as well, "
        "the service's log."
    )


class NotDurableError(WaitError):
    """The level asked for was not reached in time; the bytes are still safe where they were."""

    code = "not_durable"
    hint = "The bytes are safe on this node and keep draining. Wait again, or see its status."


class StoppingError(WaitError):
    """The service is shutting down."""

    code = "stopping"
    hint = "The service is shutting down. Call again when it is back; nothing was lost."


class BusyError(WaitError):
    """The service has as many requests as it takes."""

    code = "busy"
    hint = "Call again in a moment, with fewer calls at once."


class ServiceUnavailableError(WaitError):
    """The service could not be reached, or went away during the call."""

    code = "unavailable"
    hint = "Check that `cachetier serve` runs on this node and that CACHETIER_URL names its door."


class RemoteUnavailableError(WaitError):
    """The object store, which this call needs, is away or slows the service down."""

    code = "remote_transient"
    hint = "See `cachetier status` for the remote's state, and call again later."


# --- fix: the call itself is wrong ------------------------------------------------------------


class FixCallError(CachetierClientError):
    """The call itself is wrong; repeating it will not help."""


class InvalidNameError(FixCallError):
    """A run, step, shard or save name is outside the grammar."""

    code = "invalid_name"
    hint = "See docs/protocol.md, 'Names', for the grammar of run, step and shard names."


class InvalidRequestError(FixCallError):
    """An argument is wrong."""

    code = "invalid_request"
    hint = "Correct the call."


class SizeMismatchError(FixCallError):
    """Declared and real sizes differ. Nothing was kept, and nothing written."""

    code = "size_mismatch"
    hint = "Declare the size that is really written, or pass a buffer of the shard's size."


class DigestMismatchError(FixCallError):
    """The bytes changed on the way. Nothing was kept."""

    code = "digest_mismatch"
    hint = "Keep the buffer unchanged until the call returns, then put it again."


class OpenForWritingError(FixCallError):
    """A process still held the staged file at commit. Nothing was kept."""

    code = "open_for_writing"
    hint = "A process inherited the staged file: a child forked during the put? Put it again."


class ForbiddenError(FixCallError):
    """The service does not accept this user or token."""

    code = "forbidden"
    hint = "Connect as a user in `allowed_uids`, or send the configured token in CACHETIER_TOKEN."


class ProtocolMismatchError(FixCallError):
    """Client and service do not speak the same protocol."""

    code = "protocol_mismatch"
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
    hint = "List what there is with `cachetier ls`."


class SealedError(LookAtRunError):
    """The rank's part is sealed with other bytes."""

    code = "sealed"
    hint = "This rank's part is sealed with other bytes. Save a new step, or with overwrite=True."


class StepPublishedError(LookAtRunError):
    """The step is published already."""

    code = "step_published"
    hint = "The step is published already. Pass overwrite=True to replace it."


class SaveSupersededError(LookAtRunError):
    """A newer save of this step has begun."""

    code = "save_superseded"
    hint = "A newer save of this step has begun: this process is of an older one and should stop."


class IncompleteError(LookAtRunError):
    """Shards are missing."""

    code = "incomplete"
    hint = "Put the missing shards, then seal again."


class AbortedError(LookAtRunError):
    """The save was aborted or deleted."""

    code = "aborted"
    hint = "The save was aborted or deleted. Begin a new one."


class PinnedError(LookAtRunError):
    """The step is pinned: it stays, and is not deleted, until somebody unpins it."""

    code = "pinned"
    hint = "Somebody wants it kept. If not any more, call unpin(run, step) first."


class LocalOnlyError(LookAtRunError):
    """A policy of the service keeps the step on its node: it will not be durable by itself."""

    code = "local_only"
    hint = "The step is safe on its node. To send it to S3, call flush(run, step) on every node."


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
    hint = "The disk failed a sync: the service takes no more writes. Replace the disk, restart."


class RemoteRefusedError(GiveUpError):
    """The object store refuses the service."""

    code = "remote_refused"
    hint = "Mend the bucket, its policy or the credentials. All is kept and draining resumes."


class StagedIOError(GiveUpError):
    """This process could not write, or read, the file the service handed to it."""

    code = "staged_io"
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
    if isinstance(after, int | float):
        error.retry_after_seconds = float(after)
    return error


def inherited() -> InvalidRequestError:
    """Return the error for a stream or checkpoint used in a forked child."""
    return InvalidRequestError(
        "this belongs to the parent process",
        hint="Open streams and checkpoints in the process that uses them.",
    )


def _kept(value: Any, kind: type[_Kind]) -> _Kind | None:
    return value if isinstance(value, kind) else None


def _sentence(text: str) -> str:
    return text if text.endswith((".", "!", "?")) else f"{text}."


def _cause_of(error: BaseException) -> str:
    cause = error.__cause__
    return f"{type(cause).__name__}: {cause}"
