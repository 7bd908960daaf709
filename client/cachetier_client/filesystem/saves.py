"""Which save the files of this process belong to, and when a rank's part of it is sealed.

Frameworks that write files call nothing at the end of a save. So these rules decide:

* The first file of a step begins a save of it. Making the step's folder begins the next, where the
  last has been sealed, or where the file written right after it is one that the last save has
  already: every rank of a framework does both alike, so all of them move on together. So does
  making a folder inside it, if the last save has files there: else it is the rest of that save.
* Rank 0 seals when a *commit file* is closed, and no other file of the step is open.
* Every other rank seals whenever its last open file of the step closes, and follows rank 0: its
  part counts once rank 0 has sealed, and may grow until then.

Source: docs/fsspec.md.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Collection
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from cachetier_client.client import Client
from cachetier_client.default import default_client
from cachetier_client.errors import BackgroundError, InvalidRequestError, SealedError
from cachetier_client.filesystem.files import Spool, StoredFile
from cachetier_client.identity import save_ids
from cachetier_client.identity.names import checked_save_id
from cachetier_client.identity.ranks import place_of

COMMIT_VARIABLE = "CACHETIER_COMMIT_ON"
COMMITS_BY_DEFAULT = ".metadata"  # torch.distributed.checkpoint's, the last it writes
AFTER_COMMIT = (
    f"The commit file of this step is there, so its save has ended. Set {COMMIT_VARIABLE} to the "
    "file that your framework writes last (Lightning: meta.pt), or make the step's folder to save "
    "it anew."
)

StepKey = tuple[str, int]


def commit_patterns(chosen: str | None) -> tuple[str, ...]:
    """Return the patterns of commit files: those passed, or the environment's, or the default."""
    text = chosen or os.environ.get(COMMIT_VARIABLE) or COMMITS_BY_DEFAULT
    return tuple(pattern.strip() for pattern in text.split(",") if pattern.strip())


def is_commit_file(name: str, patterns: tuple[str, ...]) -> bool:
    """Return whether a file ends a save; a pattern without ``/`` is about its last segment."""
    last = name.rsplit("/", 1)[-1]
    return any(fnmatchcase(name if "/" in each else last, each) for each in patterns)


@dataclass(slots=True, eq=False)
class StepSave:
    """This rank's part of one save of a step, as far as files of this process make it."""

    run: str
    step: int
    rank: int
    ids: dict[str, Any]  # as the client's calls take them
    names: set[str] = field(default_factory=set)
    open_names: list[str] = field(default_factory=list)
    files: weakref.WeakValueDictionary[str, StoredFile] = field(
        default_factory=weakref.WeakValueDictionary
    )
    unsealed: bool = False  # something was put since the last seal
    committing: bool = False
    ended: bool = False

    def is_redone_in(self, folders: Collection[str]) -> bool:
        """Return whether it has ended, and has files in one of ``folders``."""
        inside = tuple(f"{folder}/" if folder else "" for folder in folders)
        return self.ended and any(name.startswith(inside) for name in self.names)


@dataclass(frozen=True, slots=True)
class Who:
    """What of a file system's options tells its saves from others'."""

    url: str | None = None
    rank: int | None = None
    world_size: int | None = None
    save_id: str | None = None


class FileSaves:
    """The saves that files of this process are part of. Thread-safe."""

    def __init__(self, who: Who) -> None:
        self._who = who
        self._lock = threading.RLock()
        self._steps: dict[StepKey, StepSave] = {}
        self._counts: dict[StepKey, int] = {}
        self._made: set[StepKey] = set()
        self._fresh: dict[StepKey, set[str]] = {}  # folders made since the last file, "" the step's
        self.held: dict[tuple[str, int, str], Spool] = {}

    @property
    def client(self) -> Client:
        """The client that all calls go by; a closed one is replaced."""
        return default_client() if self._who.url is None else _client_at(self._who.url)

    def renew_lock(self) -> None:
        """Forget who held the lock: in a forked child that thread does not exist."""
        self._lock = threading.RLock()

    # --- folders ---------------------------------------------------------------------------------

    def make(self, run: str, step: int, folder: str = "") -> None:
        """Note that the step's folder, or one inside it, was made: a save of it may begin."""
        with self._lock:
            self._made.add((run, step))
            self._fresh.setdefault((run, step), set()).add(folder)

    def is_made(self, run: str, step: int | None = None) -> bool:
        """Return whether this process made the folder of a step, or of any step of a run."""
        with self._lock:
            known = self._made | self._steps.keys()
        return (run, step) in known if step is not None else any(run == each for each, _ in known)

    def forget(self, run: str, step: int) -> None:
        """Forget a step that was removed; a file written to it later begins another save."""
        with self._lock:
            save = self._steps.pop((run, step), None)
            self._made.discard((run, step))
            self._fresh.pop((run, step), None)
            for key in [key for key in self.held if key[:2] == (run, step)]:
                self.held.pop(key).close()
        for file in list(save.files.values()) if save else ():
            file.abort()

    # --- files -----------------------------------------------------------------------------------

    def under_way(self, run: str | None, step: int | None) -> StepSave | None:
        """Return the save of a step that files are being written to, if any."""
        if run is None or step is None:
            return None
        with self._lock:
            save = self._steps.get((run, step))
        return save if save is not None and not save.ended else None

    def drop(self, run: str, step: int, name: str) -> bool:
        """Drop a file that is not stored yet; return whether nothing is left to be removed.

        That is so, too, of an older save's while the step is saved anew: it goes with that save.
        """
        held = self.held.pop((run, step, name), None)
        save = self.under_way(run, step)
        writing = save.files.get(name) if save is not None else None
        if held is not None:
            held.close()
        elif writing is not None and not writing.closed:
            writing.abort()
        else:
            return save is not None and name not in save.names
        return True

    def enter(self, run: str, step: int, name: str, *, overwrite: bool) -> StepSave:
        """Return the save that a new file belongs to; ``leave`` must follow.

        Raises:
            SealedError: It has ended.
            SaveIdentityError: Nothing names it equally on all ranks.
        """
        key = run, step
        with self._lock:
            save = self._steps.get(key)
            made = self._fresh.pop(key, ())
            if save is not None and made and (name in save.names or save.is_redone_in(made)):
                save = None
            if save is not None and save.ended:
                error = SealedError("the step's save has ended", hint=AFTER_COMMIT)
                error.locate("open", run=run, step=step, rank=save.rank, name=name)
                raise error
            if save is None:
                save = self._steps[key] = self._begin(run, step, overwrite=overwrite)
            save.names.add(name)
            save.open_names.append(name)
            return save

    def leave(self, save: StepSave, name: str, *, put: bool, commits: bool, seals: bool) -> None:
        """Take note that a file was closed, and seal the part if that is what it ended.

        Args:
            save: What ``enter`` returned.
            name: The file's.
            put: It became a shard; else it was aborted.
            commits: It is a commit file.
            seals: Whether to seal at all: a transaction does so itself.
        """
        with self._lock:
            save.open_names.remove(name)
            save.unsealed |= put
            save.committing |= put and commits
            idle = not save.open_names and seals and not save.ended
            final = idle and save.committing and save.rank == 0
            due = final or (idle and save.unsealed and save.rank != 0)
        if due:
            self.seal(save, follows=not final)

    def seal(self, save: StepSave, *, follows: bool = False) -> None:
        """Seal this rank's part; for good unless it ``follows``.

        Raises:
            InvalidRequestError: A file of it is still open.
            BackgroundError: It is sealed, but something put earlier failed since.
        """
        with self._lock:
            if save.open_names and not follows:
                raise InvalidRequestError(
                    f"{', '.join(sorted(save.open_names)[:5])} of the step is still being written",
                    hint="Close every file before the step is sealed.",
                )
            save.unsealed = False
        try:
            self._seal(save, follows=follows)
        except BackgroundError:  # of something else: no reason to leave this unsealed
            self._seal(save, follows=follows)
            raise

    def _seal(self, save: StepSave, *, follows: bool) -> None:
        try:
            self.client.seal(save.run, save.step, **save.ids, follows=follows)
        except BaseException:
            save.unsealed = True
            raise
        save.ended |= not follows

    def abort(self, save: StepSave) -> None:
        """Take back what this rank has put in a save; does nothing once it has ended."""
        with self._lock:
            if save.ended:
                return
            self._steps.pop((save.run, save.step), None)
        for file in list(save.files.values()):
            file.abort()
        self.client.checkpoint(save.run, save.step, **save.ids).abort()

    def _begin(self, run: str, step: int, *, overwrite: bool) -> StepSave:
        place = place_of(os.environ, self._who.rank, self._who.world_size)
        count = self._counts[run, step] = self._counts.get((run, step), 0) + 1
        given = self._who.save_id
        save_id = given or save_ids.THIS_PROCESS.derive(os.environ, place)
        if given is None or count > 1:
            save_id = checked_save_id(f"{save_id}-f{count}")
        ids = {
            "rank": place.rank,
            "world_size": place.world_size,
            "save_id": save_id,
            "overwrite": overwrite,
        }
        return StepSave(run, step, place.rank, ids)


# --- of this process -----------------------------------------------------------------------------

_lock = threading.RLock()
_all: dict[Who, FileSaves] = {}
_clients: dict[str, Client] = {}


def saves_of(who: Who) -> FileSaves:
    """Return the saves of this process that ``who`` takes part in."""
    with _lock:
        return _all.setdefault(who, FileSaves(who))


def _client_at(url: str) -> Client:
    """Return the client for ``url``: one, whatever the other options are."""
    with _lock:
        client = _clients.get(url)
        if client is None or client.closed:
            client = _clients[url] = Client(url)
        return client


def _after_fork() -> None:
    global _lock
    _lock = threading.RLock()
    for each in _all.values():
        each.renew_lock()


os.register_at_fork(after_in_child=_after_fork)
