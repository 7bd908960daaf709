"""A state that is saved while training goes on: when training may change it, and whether it has.

A snapshot is *copying* until every byte that training may change has been copied. Then it is
*copied*, and once training has come to its gate, *passed*. One that cannot be copied is *failed*:
its save ends with an error, and training goes on.

::

    copying --all copied--> copied --gate--> passed
    copying --save failed, given up, or ended without copying--> failed

Every gated tensor's version, which torch counts up at each change in place, is noted when the
snapshot begins. It is compared when the shard is about to be closed and when training passes the
gate, whichever is first, so a change that no gate held back fails the save.
"""

from __future__ import annotations

import enum
import logging
import threading
import weakref
from collections.abc import Callable, ItemsView, Iterator, ValuesView
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn

from torch import Tensor

from cachetier_client.deadline import Deadline
from cachetier_client.errors import (
    CachetierClientError,
    FixCallError,
    InvalidRequestError,
    WaitError,
)
from cachetier_client.io.ring import Ring
from cachetier_client.torch import sending
from cachetier_client.torch.devices import Copy, Passage

LOOK_SECONDS = 0.05  # how often a gate that waits sees whether there is still somebody to wait for

_log = logging.getLogger(__name__)


class SnapshotAbandonedError(WaitError):
    """Training did not wait any longer for a lazy save's copies. The save kept nothing."""

    code = "snapshot_abandoned"
    hint = "Save again later; raise gate_seconds, or see `cachetier status` for what is slow."


class StateChangedError(FixCallError):
    """Training changed a tensor while it was saved lazily. The save kept nothing."""

    code = "state_changed"
    hint = (
        "Pass the optimizer that changes it to LazyStager, or call stager.wait() before the change."
    )


class Phase(enum.Enum):
    """How far a snapshot is."""

    COPYING = enum.auto()
    COPIED = enum.auto()
    PASSED = enum.auto()
    FAILED = enum.auto()


@dataclass(frozen=True, slots=True)
class _Watched:
    """Everything whose version tells of changes to one tensor, and what it was."""

    path: tuple[object, ...]
    tensors: tuple[Tensor, ...]
    versions: tuple[int, ...]

    def has_moved(self) -> bool:
        return any(
            tensor._version != version
            for tensor, version in zip(self.tensors, self.versions, strict=True)
        )


class Snapshot:
    """One state on its way into a shard: what the writer and the gate know of each other.

    The first half is for training's thread; the second is for the one that saves, in ``sending``.
    """

    def __init__(self, ring: Ring, passage: Passage) -> None:
        self._ring = ring
        self._passage = passage
        self._changed = threading.Condition()
        self._phase = Phase.COPYING
        self._watched: list[_Watched] = []
        self._guarded: set[int] = set()
        self._saver: threading.Thread | None = None
        # Made again for whoever is told: an error that was raised holds on to what is being saved.
        self._failure: Callable[[], CachetierClientError] | None = None
        self._is_failure_taken = False
        self._is_over = False

    # --- training's side -------------------------------------------------------------------------

    @property
    def phase(self) -> Phase:
        """How far it is."""
        return self._phase

    @property
    def is_over(self) -> bool:
        """Whether the shard is stored, or the save has failed."""
        if self._phase is Phase.FAILED and self._saver is not None and not self._saver.is_alive():
            self._is_over = True  # it was given up, and has never come to its shard
        return self._is_over

    def watch(self, path: tuple[object, ...], tensors: tuple[Tensor, ...]) -> None:
        """Fail the save if one of ``tensors`` changes before the gate is passed."""
        tensors = tuple([each for each in tensors if not each.is_inference()])  # not counted
        versions = tuple([tensor._version for tensor in tensors])  # faster than a generator
        self._watched.append(_Watched(path, tensors, versions))

    def guard(self, alias: Tensor) -> None:
        """Have the save of ``alias``, or of a view of it, come through this snapshot."""
        self._guarded.add(alias.untyped_storage().data_ptr())
        sending.claim(alias, self)

    def wait(self, deadline: Deadline) -> bool:
        """Wait until all is copied, or give the snapshot up at the deadline.

        Returns:
            Whether all is copied. It does not raise: the save does.
        """
        with self._changed:
            while self._phase is Phase.COPYING:
                left = deadline.remaining()
                if not left:
                    seconds = f"{deadline.seconds:g} s"
                    self._give_up(f"the copies did not end within {seconds}")
                elif self._saver is not None and not self._saver.is_alive():
                    self._end_unsaved()  # its future tells why
                else:
                    self._changed.wait(min(left, LOOK_SECONDS))
            return self._phase is not Phase.FAILED

    def pass_gate(self, deadline: Deadline) -> None:
        """Let training change the state, after waiting as ``wait`` does; it does not raise."""
        copied = self.wait(deadline)
        with self._changed:
            if copied and self._phase is Phase.COPIED:
                self._passage.hold()
                self._failure = self._moved()
                self._phase = Phase.PASSED
                if self._failure is not None:
                    _log.error("a lazy save may have stored a mixed state: %s", self._failure())
            self._watched.clear()

    def wait_over(self, deadline: Deadline) -> bool:
        """Wait until the shard is stored, or the save has failed; return whether it is so."""
        with self._changed:
            while not self.is_over:
                left = deadline.remaining()
                if not left:
                    return False
                self._changed.wait(min(left, LOOK_SECONDS))
            return True

    def take_failure(self) -> CachetierClientError | None:
        """Return why the snapshot failed, if nobody has been told; once."""
        with self._changed:
            was_taken, self._is_failure_taken = self._is_failure_taken, True
            return None if was_taken or self._failure is None else self._failure()

    def drop(self) -> None:
        """Give the snapshot up: nobody will save it, or the caller knows why not."""
        with self._changed:
            if self._phase in (Phase.COPYING, Phase.FAILED):
                self._end_unsaved()

    def drop_unless_entered(self) -> None:
        """Give the snapshot up if no save has begun."""
        if self._saver is None:
            self.drop()

    # --- the save's side -------------------------------------------------------------------------

    def entered(self) -> None:
        """Note that this thread saves the state: when it ends, nobody copies any more."""
        self._saver = threading.current_thread()
        sending.enter(self)
        self.settle()

    def settle(self) -> None:
        """Wait until what was copied at once is there."""
        self._passage.settle()

    def saves_here(self) -> bool:
        """Return whether it is this thread that saves the state, not one that has looked at it."""
        return self._saver is threading.current_thread()

    def guards(self, tensor: Tensor) -> bool:
        """Return whether a tensor lies in the memory of a gated one."""
        return tensor.untyped_storage().data_ptr() in self._guarded

    @property
    def ring(self) -> Ring:
        """The blocks that the shard goes through."""
        return self._ring

    def copy_of(self, tensor: Tensor) -> Copy:
        """Return how the bytes of a gated tensor are copied."""
        copy = self._passage.copy_of(tensor)

        def while_copying(into: memoryview, at: int) -> Any:
            if self._phase is Phase.FAILED:
                self._raise_failure()
            if self._phase is not Phase.COPYING:
                raise InvalidRequestError(
                    "the staged state has been saved before: training may have changed it since",
                    hint="Save what stage() returns once, and whole; stage again to save again.",
                )
            return copy(into, at)

        return while_copying

    def all_copied(self) -> None:
        """Let training pass.

        Raises:
            SnapshotAbandonedError: It has passed already, without waiting for this.
        """
        with self._changed:
            if self._phase is Phase.FAILED:
                self._raise_failure()
            if self._phase is Phase.COPYING:
                self._set(Phase.COPIED)

    def check(self) -> None:
        """Wait for the copies under way, and see that nothing has changed what was copied.

        Raises:
            StateChangedError: Something has.
        """
        self._passage.arrive()
        with self._changed:
            self._failure = self._failure or self._moved()
            if self._failure is not None:
                self._raise_failure()

    def ended(self, error: BaseException | None) -> None:
        """Note that the shard is stored, or that the save has failed and tells of it."""
        with self._changed:
            if self._is_over:
                return  # it ended before: this is another save of the same state
            if self._phase is Phase.COPYING:
                self._phase = Phase.COPIED if error is None else Phase.FAILED
            if error is not None:
                self._is_failure_taken = True
                self._watched.clear()
            self._is_over = True
            self._changed.notify_all()

    # --- inside ----------------------------------------------------------------------------------

    def _set(self, phase: Phase) -> None:
        self._phase = phase
        if phase is Phase.FAILED:
            self._watched.clear()
        self._changed.notify_all()

    def _give_up(self, why: str) -> None:
        self._failure = partial(SnapshotAbandonedError, why)
        _log.warning("a lazy save is given up: %s", self._failure())
        self._set(Phase.FAILED)

    def _end_unsaved(self) -> None:
        self._is_over = True
        self._set(Phase.FAILED)

    def _raise_failure(self) -> NoReturn:
        self._is_failure_taken = True
        if self._failure is not None:
            raise self._failure()
        raise InvalidRequestError(
            "the staged state was given up before it was copied",
            hint="Keep what stage() returns until its save has ended, and save it once.",
        )

    def _moved(self) -> Callable[[], StateChangedError] | None:
        """Return the error for the first tensor that has changed; None once the gate is passed."""
        for each in self._watched:
            if each.has_moved():
                name = ".".join(map(str, each.path))
                return partial(StateChangedError, f"{name} was changed in place while it was saved")
        return None


class StagedState(dict[str, Any]):
    """A state whose tensors are still training's own: for a save in this process, and only once."""

    def __init__(self, state: dict[str, Any], snapshot: Snapshot) -> None:
        super().__init__(state)
        self.snapshot = snapshot
        weakref.finalize(self, snapshot.drop).atexit = False

    def items(self) -> ItemsView[str, Any]:  # type: ignore[override]
        """Return the items; who asks is who saves."""
        self.snapshot.entered()
        return super().items()

    def __iter__(self) -> Iterator[str]:
        self.snapshot.entered()
        return super().__iter__()

    def __getitem__(self, key: str) -> Any:
        self.snapshot.settle()
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        """Return a value; what was copied at once is there."""
        self.snapshot.settle()
        return super().get(key, default)

    def values(self) -> ValuesView[Any]:  # type: ignore[override]
        """Return the values; what was copied at once is there."""
        self.snapshot.settle()
        return super().values()

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        self.snapshot.drop()
        raise InvalidRequestError(
            "a state staged lazily cannot leave its process: training would change it there",
            hint="Save with AsyncCheckpointerType.THREAD, or without LazyStager.",
        )
