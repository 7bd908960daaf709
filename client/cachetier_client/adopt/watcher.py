"""Take every step that a trainer writes below a folder, soon after its save has ended.

One thread listens and looks. It never copies, so a step is linked (``bridge``) moments after it
ended, however long the copies of earlier ones take. Another adopts one step after the other.

A save has ended when its marker is there, nobody writes to any of its files, none is newer than the
marker, and nothing has happened to it for a moment. Files are looked at when the kernel tells of
them. The only timers end that moment, and warn of a save that has no marker.

Nothing of the trainer's is ever deleted or written to.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from cachetier_client.adopt.bridge import Bridge
from cachetier_client.adopt.inotify import Event, Inotify
from cachetier_client.adopt.rules import POINTERS
from cachetier_client.adopt.sources import files_of, is_being_written, save_id_of
from cachetier_client.adopt.trainer_folder import TrainerFolder
from cachetier_client.clock import Clock, SystemClock
from cachetier_client.errors import (
    CachetierClientError,
    FixCallError,
    LookAtRunError,
    OpenForWritingError,
)
from cachetier_client.results import Receipt

SETTLE_SECONDS = 1.0
WARN_SECONDS = 60.0
RETRY_SECONDS = (1.0, 2.0, 5.0, 10.0, 30.0)
LISTEN_SECONDS = 1.0  # then who adopts may have something to say
NEVER = float("inf")
_GONE = ("was deleted before it could be copied", "Have the trainer keep its checkpoints longer.")


@dataclass(frozen=True, slots=True)
class EndedSave:
    """A save that has ended: its path below the watched folder, and where to adopt it from."""

    path: str
    step: int
    source: str
    key: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a save: its receipts, or the trouble and what to do.

    ``failed``: it had ended, and is not stored, and is not tried again before it changes.
    """

    path: str
    step: int
    receipts: tuple[Receipt, ...] = ()
    trouble: str = ""
    hint: str = ""
    failed: bool = False


@dataclass(slots=True)
class _Recent:
    """A save that something happened to: when, and when to look at it."""

    at: float
    due: float
    warned: bool = False


class Watcher:
    """Adopts what ends in a folder, until ``stop``.

    Args:
        folder: What the trainer writes to.
        adopt: Called as ``adopt(source, step, origin)``; returns receipts once they are safe.
        tell: Hears what became of each save, from either thread.
        quiet_commits: A save has ended, too, when nothing happened to it for so many seconds.
        clock: Seam for tests.
        inotify: Seam for tests.
    """

    def __init__(
        self,
        folder: TrainerFolder,
        adopt: Callable[[str, int, str], list[Receipt]],
        tell: Callable[[Outcome], None],
        *,
        quiet_commits: float | None = None,
        clock: Clock | None = None,
        inotify: Inotify | None = None,
    ) -> None:
        self._folder = folder
        self._adopt = adopt
        self._tell = tell
        self._quiet_commits = quiet_commits
        self._clock = clock or SystemClock()
        self._inotify = inotify or Inotify()
        self._bridge = Bridge(folder.root)
        self._recent: dict[str, _Recent] = {}
        self._taken: dict[str, str] = {}  # the files that were handed over last, by their save's id
        self._pending: dict[str, EndedSave] = {}
        self._changed: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._ended: queue.SimpleQueue[EndedSave | None] = queue.SimpleQueue()
        self._stopping = threading.Event()
        self._defect: BaseException | None = None
        self._once = self._has_links = True

    def run(self, *, once: bool = False) -> None:
        """Adopt what is there and what comes; ``once``: return when what has ended is adopted.

        Raises:
            OSError: The folder cannot be watched.
        """
        self._once = once
        adopter = threading.Thread(target=self._adopt_all, name="cachetier-adopt", daemon=True)
        adopter.start()
        try:
            self._take_kept()
            self._note_all()
            self.look()
            while not (once or self._stopping.is_set()):
                self.listen()
                self.look()
            if once:
                self._ended.put(None)
                adopter.join()
        finally:
            self._ended.put(None)
            self._stopping.set()
            self._inotify.close()
            self._bridge.close()
            for save in list(self._pending.values()):
                self._warn(save.path, "is not copied yet", "Watch again: it is kept.", failed=True)
        if self._defect is not None:
            raise self._defect

    def stop(self) -> None:
        """Have ``run`` return; the next watcher makes the copy that is under way."""
        self._stopping.set()

    # --- listening -------------------------------------------------------------------------------

    def listen(self) -> None:
        """Wait until something happens, or a look is due, and note what it was."""
        due = min((recent.due for recent in self._recent.values()), default=NEVER)
        for event in self._inotify.read(min(due - self._clock.monotonic(), LISTEN_SECONDS)):
            self._note(event)
        while not self._changed.empty():
            path = self._changed.get()
            self._taken.pop(path, None)
            self._touch([path])

    def _note(self, event: Event) -> None:
        if event.path is None:
            self._note_all()
        elif event.is_folder:  # files may have come before the watch: what is there is looked at
            self._touch(self._folder.saves_below(event.path, self._inotify.add))
        elif os.path.basename(event.path) in POINTERS:
            beside = os.path.dirname(event.path)
            self._touch(self._folder.saves_below(beside, self._inotify.add))
        elif (save := self._folder.save_at(event.path, is_folder=False)) is not None:
            self._touch([save])

    def _note_all(self) -> None:
        """Watch all folders, and look at everything: events may have been lost."""
        if not os.path.isdir(self._folder.root):
            raise FileNotFoundError(2, "there is no such folder", self._folder.root)
        self._touch(self._folder.saves_below(self._folder.root, self._inotify.add))

    def _touch(self, saves: Iterable[str]) -> None:
        now = self._clock.monotonic()
        for save in saves:
            before = self._recent.get(save)
            due = now if self._once else now + SETTLE_SECONDS
            self._recent[save] = _Recent(now, due, before is not None and before.warned)

    # --- looking ---------------------------------------------------------------------------------

    def look(self) -> None:
        """Look at each save that is due; hand it over if it has ended."""
        now = self._clock.monotonic()
        for path in [path for path, recent in self._recent.items() if recent.due <= now]:
            recent = self._recent.pop(path)
            try:
                self._look_at(path, recent, now - recent.at)
            except FileNotFoundError:  # deleted while we looked: the folder, or only some file
                if os.path.exists(self._folder.full(path)):
                    self._touch([path])
                elif path not in self._taken:
                    self._warn(path, *_GONE)
            except (CachetierClientError, OSError) as error:
                self._fail(path, error, failed=True)

    def _look_at(self, path: str, recent: _Recent, quiet_seconds: float) -> None:
        files = files_of(self._folder.full(path))
        key = save_id_of(path, files)
        if self._taken.get(path) == key:
            return
        limit = NEVER if self._quiet_commits is None else self._quiet_commits
        if any(is_being_written(file.path) for file in files):
            trouble, again = "is open for writing", NEVER  # its end will be told
        elif quiet_seconds >= limit:
            trouble, again = "", NEVER
        else:
            trouble = self._folder.unmarked(path, files)
            again = min(limit, NEVER if recent.warned else WARN_SECONDS)
        if not trouble:
            held = self._bridge.hold(path, key, files)
            if held is None and self._has_links:
                self._has_links = False
                self._warn(path, "cannot be linked", "A checkpoint may be deleted before its copy.")
            self._hand_over(path, held or self._folder.full(path), key)
            return
        if self._once or quiet_seconds >= again:
            hint = "If it has ended, pass --marker or --quiet-commits."
            self._warn(path, f"not taken: {trouble}", hint)
            recent.warned, again = True, limit
        recent.due = recent.at + again
        self._recent[path] = recent

    def _take_kept(self) -> None:
        """Hand over what an earlier watcher linked and did not adopt."""
        for key in self._bridge.kept():
            kept = TrainerFolder(os.path.join(self._bridge.folder, key), self._folder.rules)
            for path in kept.saves_below(kept.root, lambda _folder: True):
                self._hand_over(path, kept.full(path), key)

    def _hand_over(self, path: str, source: str, key: str) -> None:
        self._taken[path] = key
        save = self._pending[key] = EndedSave(path, self._folder.step_of(path), source, key)
        self._ended.put(save)

    # --- adopting --------------------------------------------------------------------------------

    def _adopt_all(self) -> None:
        """Adopt in the order of their ends, so that of two saves of a step the later one counts."""
        try:
            while (save := self._ended.get()) is not None and not self._stopping.is_set():
                self._adopt_one(save)
        except BaseException as error:
            if not self._stopping.is_set():
                self._defect = error
                self.stop()

    def _adopt_one(self, save: EndedSave) -> None:
        """Adopt a save, however long it takes, or say why not."""
        pauses, last = iter(RETRY_SECONDS), ""
        while (trouble := self._try(save)) is not None and not self._stopping.is_set():
            hopeless = isinstance(trouble, FixCallError | LookAtRunError)
            hopeless = hopeless and not isinstance(trouble, OpenForWritingError)
            if hopeless:
                self._let_go(save)
            if hopeless or self._once:
                self._pending.pop(save.key, None)
                self._fail(save.path, trouble, failed=True)
                return
            if str(trouble) != last:
                last = str(trouble)
                self._fail(save.path, trouble, failed=False)
            self._stopping.wait(next(pauses, RETRY_SECONDS[-1]))

    def _try(self, save: EndedSave) -> CachetierClientError | None:
        """Adopt a save, or have what became of it looked at; return what is wrong, if anything."""
        if not self._is_intact(save):
            self._let_go(save)
            if os.path.exists(self._folder.full(save.path)) and not self._once:
                self._changed.put(save.path)
            else:
                self._warn(save.path, *_GONE, failed=True)
            return None
        try:
            receipts = self._adopt(save.source, save.step, save.path)
        except CachetierClientError as error:
            return error
        self._let_go(save)
        self._tell(Outcome(save.path, save.step, tuple(receipts)))
        return None

    def _let_go(self, save: EndedSave) -> None:
        """Remove a save's links: it is stored, or not what it was, or can never be taken.

        Of the last its trouble is told, and no disk fills with what nobody takes.
        """
        self._bridge.release(save.key)
        self._pending.pop(save.key, None)

    def _is_intact(self, save: EndedSave) -> bool:
        """Return whether the files are those that had ended, and not rewritten through a link."""
        try:
            return save_id_of(save.path, files_of(save.source)) == save.key
        except OSError:
            return False

    def _warn(self, path: str, trouble: str, hint: str, *, failed: bool = False) -> None:
        self._tell(Outcome(path, self._folder.step_of(path), (), trouble, hint, failed=failed))

    def _fail(self, path: str, error: CachetierClientError | OSError, *, failed: bool) -> None:
        if isinstance(error, CachetierClientError):
            self._warn(path, error.message, error.hint, failed=failed)
        else:
            hint = "Look at the files, and at the disk they are on."
            self._warn(path, str(error), hint, failed=failed)
