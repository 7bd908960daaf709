"""The saves of one writer, one for each thread: where it goes, this rank's role, and its part.

A save does all its calls in one thread. Two saves may be under way at a time, in two threads, when
``dcp.async_save`` is called again before the first has ended.
"""

from __future__ import annotations

import contextlib
import threading
from dataclasses import dataclass

from cachetier_client.checkpoints import Checkpoint
from cachetier_client.deadline import Deadline
from cachetier_client.errors import CachetierClientError, InvalidRequestError
from cachetier_client.torch.dcp import StepStorage
from cachetier_client.torch.plans import forget_assignment


@dataclass(slots=True)
class TorchSave:
    """One save of one rank; ``part`` is there from the first byte to the seal."""

    where: tuple[str, int]
    rank: int | None = None
    collectives: bool = True
    coordinates: bool = True
    is_set_up: bool = False
    has_ended: bool = False
    part: Checkpoint | None = None

    def abort(self) -> None:
        """Take back what this rank put, if it is not sealed."""
        self.has_ended = True
        part, self.part = self.part, None
        if part is not None:
            with contextlib.suppress(CachetierClientError):  # an incomplete step does no harm
                part.abort()


class TorchSaves:
    """The saves under way. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._by_thread: dict[threading.Thread, TorchSave] = {}

    def begin(self, where: tuple[str, int]) -> None:
        """Have this thread's next save go to a step."""
        self._replace(TorchSave(where))

    def set_up(self, storage: StepStorage) -> TorchSave:
        """Return this thread's save, which begins now; to ``storage``'s step if none was named."""
        with self._lock:
            save = self._by_thread.get(threading.current_thread())
        if save is None or save.is_set_up:
            save = TorchSave(storage.where)
            self._replace(save)
        save.is_set_up = True
        forget_assignment()
        return save

    def current(self) -> TorchSave:
        """Return this thread's save."""
        with self._lock:
            save = self._by_thread.get(threading.current_thread())
        if save is None:
            raise InvalidRequestError("no save was begun", hint="Save with dcp.save.")
        return save

    def close(self, deadline: Deadline) -> None:
        """Wait for saves under way in other threads; take back what is unfinished then."""
        with self._lock:
            saves = dict(self._by_thread)
        for thread, save in saves.items():
            under_way = save.is_set_up and not save.has_ended
            if under_way and thread is not threading.current_thread():
                thread.join(deadline.remaining())
        with self._lock:
            self._by_thread.clear()
        for save in saves.values():
            save.abort()

    def _replace(self, save: TorchSave) -> None:
        """Begin a save here, and take back what ended ones have left: another rank failed then."""
        here = threading.current_thread()
        with self._lock:
            over = [at for at in self._by_thread if at is here or not at.is_alive()]
            ended = [self._by_thread.pop(at) for at in over]
            self._by_thread[here] = save
        for each in ended:
            each.abort()
