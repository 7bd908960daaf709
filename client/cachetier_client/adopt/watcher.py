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
from cachetier_client.adopt.inotify import FileEvent, Inotify
from cachetier_client.adopt.rules import POINTERS
from cachetier_client.adopt.sources import files_of, is_being_written, save_id_of
from cachetier_client.adopt.trainer_folder import StepFiles, TrainerFolder
from cachetier_client.clock import Clock, SystemClock
from cachetier_client.errors import (
    CachetierClientError,
    FixCallError,
    InvalidRequestError,
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
    """A save that has ended: where it is, for people, and where to adopt it from.

    ``saves`` are the paths below the watched folder that it is made of.
    """

    path: str
    step: int
    source: str
    key: str
    origin: str
    saves: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a save: its receipts, or the error and what to do.

    ``failed``: it had ended, and is not stored, and is not tried again before it changes.
    """

    path: str
    step: int | None
    receipts: tuple[Receipt, ...] = ()
    trouble: str = ""
    hint: str = ""
    failed: bool = False


@dataclass(slots=True)
class _Recent:
    """A step that something happened to: when, and when to look at it."""

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
        self._saves: dict[int, set[str]] = {}  # by their step
        self._recent: dict[int, _Recent] = {}
        self._taken: dict[int, str] = {}  # the files that were handed over last, by their save's id
        self._pending: dict[str, EndedSave] = {}
        self._warned: set[tuple[str, str]] = set()
        self._changed: queue.SimpleQueue[EndedSave] = queue.SimpleQueue()
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
            while not self._stopping.is_set() and (not once or self._has_due()):
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
                hint = "Start the watcher again: the files are kept."
                self._warn(save.path, save.step, "is not copied yet", hint, failed=True)
        if self._defect is not None:
            raise self._defect

    def stop(self) -> None:
        """Have ``run`` return; the next watcher makes the copy that is under way."""
        self._stopping.set()

    def _has_due(self) -> bool:
        soon = self._clock.monotonic() + SETTLE_SECONDS
        return any(recent.due <= soon for recent in self._recent.values())

    # --- listening -------------------------------------------------------------------------------

    def listen(self) -> None:
        """Wait until something happens, or a look is due, and note what it was."""
        due = min((recent.due for recent in self._recent.values()), default=NEVER)
        for event in self._inotify.read(min(due - self._clock.monotonic(), LISTEN_SECONDS)):
            self._note(event)
        while not self._changed.empty():
            save = self._changed.get()
            self._taken.pop(save.step, None)
            self._touch(save.saves)

    def _note(self, event: FileEvent) -> None:
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
            if not _is_text(save):
                hint = "Give it a name that any machine can read."
                self._warn_once(save, None, "skipped: its name is not UTF-8", hint, failed=False)
                continue
            step = self._folder.step_of(save)
            self._saves.setdefault(step, set()).add(save)
            before = self._recent.get(step)
            due = now if self._once else now + SETTLE_SECONDS
            self._recent[step] = _Recent(now, due, before is not None and before.warned)

    # --- looking ---------------------------------------------------------------------------------

    def look(self) -> None:
        """Look at each step that is due; hand it over if it has ended."""
        now = self._clock.monotonic()
        due = sorted((each.due, step) for step, each in self._recent.items() if each.due <= now)
        for _, step in due:
            recent, known = self._recent.pop(step), self._saves.pop(step, set())
            there = {save for save in known if os.path.lexists(self._folder.full(save))}
            shown = ", ".join(sorted(there or known))
            try:
                if saves := [save for save in there if self._folder.is_save(save)]:
                    self._saves[step] = set(saves)
                    self._look_at(step, self._folder.step_files(saves), recent, now - recent.at)
                elif not there and step not in self._taken:
                    self._warn(shown, step, *_GONE)
            except FileNotFoundError:  # deleted while we looked: the folder, or only some file
                self._touch(known)
            except InvalidRequestError as error:
                self._warn_once(shown, step, error.message, error.hint)
            except (CachetierClientError, OSError) as error:
                self._fail(shown, step, error, failed=True)

    def _look_at(self, step: int, found: StepFiles, recent: _Recent, quiet_seconds: float) -> None:
        key = save_id_of(found.origin, found.files)
        if self._taken.get(step) == key:
            return
        limit = NEVER if self._quiet_commits is None else self._quiet_commits
        if any(is_being_written(file.path) for file in found.files):
            trouble, again = "is open for writing", NEVER  # its end will be told
        elif quiet_seconds >= limit:
            if unsure := self._folder.unsure(found):
                hint = "Watch that folder itself if it holds the steps, else pass --marker."
                self._warn_once(found.shown, step, f"not taken: {unsure}", hint)
                return
            trouble, again = "", NEVER
        else:
            trouble = self._folder.unended(found)
            again = min(limit, NEVER if recent.warned else WARN_SECONDS)
        if not trouble:
            age = self._clock.now() - self._folder.changed_at(found)
            if 0 <= age < SETTLE_SECONDS and quiet_seconds < WARN_SECONDS:  # it may be going
                recent.due = self._clock.monotonic() + SETTLE_SECONDS - age
                self._recent[step] = recent
                return
            self._hold(step, found, key)
            return
        if self._once or quiet_seconds >= again:
            hint = "If it has ended, pass --marker or --quiet-commits."
            self._warn(found.shown, step, f"not taken: {trouble}", hint)
            recent.warned, again = True, limit
        recent.due = recent.at + again
        self._recent[step] = recent

    def _hold(self, step: int, found: StepFiles, key: str) -> None:
        """Link what has ended and hand it over; without links, what lies there by itself."""
        held = self._bridge.hold(found.base, key, found.files)
        if held is None and len(found.saves) > 1:
            hint = "Have the trainer write each step to a folder of its own."
            trouble = "not taken: files that lie beside others cannot be linked"
            self._warn_once(found.shown, step, trouble, hint)
            return
        if held is None and self._has_links:
            self._has_links = False
            trouble = "cannot be linked"
            self._warn(found.shown, step, trouble, "A checkpoint may be deleted before its copy.")
        self._hand_over(step, found, held or self._folder.full(found.saves[0]), key)

    def _take_kept(self) -> None:
        """Hand over what an earlier watcher linked and did not adopt."""
        for key in self._bridge.kept():
            kept = TrainerFolder(os.path.join(self._bridge.folder, key), self._folder.rules)
            if saves := set(kept.saves_below(kept.root, lambda _folder: True)):
                found = kept.step_files(list(saves))
                self._hand_over(kept.step_of(found.saves[0]), found, kept.full(found.base), key)

    def _hand_over(self, step: int, found: StepFiles, source: str, key: str) -> None:
        self._taken[step] = key
        save = EndedSave(found.shown, step, source, key, found.origin, found.saves)
        self._pending[key] = save
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
                self._fail(save.path, save.step, trouble, failed=True)
                return
            if str(trouble) != last:
                last = str(trouble)
                self._fail(save.path, save.step, trouble, failed=False)
            self._stopping.wait(next(pauses, RETRY_SECONDS[-1]))

    def _try(self, save: EndedSave) -> CachetierClientError | None:
        """Adopt a save, or have what became of it looked at; return what is wrong, if anything."""
        if not self._is_intact(save):
            self._let_go(save)
            there = any(os.path.exists(self._folder.full(each)) for each in save.saves)
            if there and not self._once:
                self._changed.put(save)
            else:
                self._warn(save.path, save.step, *_GONE, failed=True)
            return None
        try:
            receipts = self._adopt(save.source, save.step, save.origin)
        except CachetierClientError as error:
            return error
        self._let_go(save)
        self._tell(Outcome(save.path, save.step, tuple(receipts)))
        return None

    def _let_go(self, save: EndedSave) -> None:
        """Remove a save's links: it is stored, or not what it was, or can never be taken.

        Of the last its trouble is told, and no disk fills with what nobody takes.
        """
        self._pending.pop(save.key, None)
        self._bridge.release(save.key)

    def _is_intact(self, save: EndedSave) -> bool:
        """Return whether the files are those that had ended, and not rewritten through a link."""
        try:
            now = save_id_of(save.origin, files_of(save.source))
            return now.rpartition("-")[2] == save.key.rpartition("-")[2]  # of the files alone
        except OSError:
            return False

    def _warn(
        self, path: str, step: int | None, trouble: str, hint: str, *, failed: bool = False
    ) -> None:
        path, trouble, hint = map(_readable, (path, trouble, hint))
        self._tell(Outcome(path, step, (), trouble, hint, failed=failed))

    def _warn_once(
        self, path: str, step: int | None, trouble: str, hint: str, *, failed: bool = True
    ) -> None:
        """Tell of a save that is not taken before somebody does something."""
        if (path, trouble) not in self._warned:
            self._warned.add((path, trouble))
            self._warn(path, step, trouble, hint, failed=failed)

    def _fail(
        self, path: str, step: int, error: CachetierClientError | OSError, *, failed: bool
    ) -> None:
        if isinstance(error, CachetierClientError):
            self._warn(path, step, error.message, error.hint, failed=failed)
        else:
            hint = "Look at the files, and at the disk they are on."
            self._warn(path, step, str(error), hint, failed=failed)


def _is_text(path: str) -> bool:
    return not any("\udc80" <= each <= "\udcff" for each in path)


def _readable(text: str) -> str:
    """Return a text in which bytes that are no UTF-8 are shown as such."""
    return os.fsencode(text).decode(errors="backslashreplace")
