"""Which save the files of this process belong to, and when a rank's part of it is sealed.

Frameworks that write files call nothing at the end of a save. So these rules decide:

* A file that is a commit of its own is saved again each time that it is written.
* The first file of a folder's commit begins a save of it. Making the folder begins the next, where
  the last has been sealed, or where the file written right after it is one that the last save has
  already: every rank of a framework does both alike, so all of them move on together. So does
  making a folder inside it, if the last save has files there: else it is the rest of that save.
* Rank 0 seals when the file that ends the save is closed, and no other file of it is open.
* Every other rank seals whenever its last open file of the save closes, and follows rank 0: its
  part counts once rank 0 has sealed, and may grow until then.
* Files that end together begin a save of their own, and are sealed when all of them are there.

Source: docs/fsspec.md.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from cachetier_client.client import Client
from cachetier_client.default import default_client
from cachetier_client.errors import BackgroundError, InvalidRequestError, SealedError
from cachetier_client.filesystem.files import Spool, StoredFile
from cachetier_client.filesystem.units import Unit
from cachetier_client.identity import save_ids
from cachetier_client.identity.names import checked_save_id
from cachetier_client.identity.places import Place
from cachetier_client.identity.presets import COMMIT_VARIABLE
from cachetier_client.identity.ranks import place_of

AFTER_COMMIT = (
    f"The file that ends this save is there. Set {COMMIT_VARIABLE} to the one that your framework "
    "writes last (Lightning: meta.pt), or make the folder to save it again."
)

Key = tuple[str, int]  # run, or branch of it, and step: as places have them
Path = tuple[str, ...]


@dataclass(slots=True, eq=False)
class StepSave:
    """This rank's part of one save, as far as files of this process make it."""

    place: Place
    ids: dict[str, Any]  # as the client's calls take them
    paths: set[Path] = field(default_factory=set)
    open_paths: list[Path] = field(default_factory=list)
    files: weakref.WeakValueDictionary[Path, StoredFile] = field(
        default_factory=weakref.WeakValueDictionary
    )
    unsealed: bool = False  # something was put since the last seal
    committing: bool = False
    ended: bool = False

    def is_redone_in(self, made: Collection[Path]) -> bool:
        """Return whether it has ended, and has files in one of the folders ``made``."""
        return self.ended and any(_is_in(path, folder) for path in self.paths for folder in made)


@dataclass(frozen=True, slots=True)
class Who:
    """The options of a file system that tell its saves from others'."""

    url: str | None = None
    rank: int | None = None
    world_size: int | None = None
    save_id: str | None = None


@dataclass(slots=True)
class Together:
    """Saves that end together: those of a transaction, or of one call that writes several files."""

    saves: dict[Key, StepSave] = field(default_factory=dict)
    places: dict[Place, Place] = field(default_factory=dict)  # where a folder's files go


class FileSaves:
    """The saves that files of this process are part of. Thread-safe."""

    def __init__(self, who: Who) -> None:
        self._who = who
        self._lock = threading.RLock()
        self._saves: dict[Key, StepSave] = {}
        self._counts: dict[Key, int] = {}
        self._made: set[Path] = set()
        self._fresh: set[Path] = set()  # folders made since the last file in them
        self.held: dict[Path, Spool] = {}

    @property
    def client(self) -> Client:
        """The client that all calls go by; a closed one is replaced."""
        return default_client() if self._who.url is None else _client_at(self._who.url)

    @property
    def is_alone(self) -> bool:
        """Whether this process is the only rank."""
        return place_of(os.environ, self._who.rank, self._who.world_size).world_size == 1

    def renew_lock(self) -> None:
        """Forget who held the lock: in a forked child that thread does not exist."""
        self._lock = threading.RLock()

    # --- folders ---------------------------------------------------------------------------------

    def make(self, folder: Path) -> None:
        """Note that a folder was made: a save of it may begin."""
        with self._lock:
            self._made.add(folder)
            self._fresh.add(folder)

    def is_made(self, folder: Path) -> bool:
        """Return whether this process made a folder, or anything in it."""
        with self._lock:
            paths = [*self._made, *(p for save in self._saves.values() for p in save.paths)]
        return any(len(folder) < len(each) and _is_in(each, folder) for each in paths) or (
            folder in self._made
        )

    def forget(self, path: Path) -> bool:
        """Forget what was removed; return whether there was anything.

        A file written there later begins another save.
        """
        with self._lock:
            gone = [save for save in self._saves.values() if _is_in(save.place.parts, path)]
            for save in gone:
                del self._saves[save.place.run, save.place.step]
            made = {each for each in self._made if _is_in(each, path)}
            self._made -= made
            self._fresh -= made
            held = [self.held.pop(each) for each in list(self.held) if _is_in(each, path)]
        for spool in held:
            spool.close()
        for save in gone:
            for file in list(save.files.values()):
                file.abort()
        return bool(gone or made or held)

    # --- files -----------------------------------------------------------------------------------

    def under_way(self, path: Path) -> list[StepSave]:
        """Return the saves that files at a path, or in it, are being written to."""
        with self._lock:
            saves = [save for save in self._saves.values() if not save.ended]
        return [save for save in saves if any(_is_in(each, path) for each in save.paths)]

    def has_ended(self, path: Path) -> bool:
        """Return whether this process has committed files at a path, or in it."""
        with self._lock:
            saves = [save for save in self._saves.values() if save.ended]
        return any(_is_in(each, path) for save in saves for each in save.paths)

    def drop(self, path: Path) -> bool:
        """Drop a file that is not stored yet; return whether nothing is left to be removed.

        That is so, too, of an older save's while its folder is saved again: it goes with that save.
        """
        held = self.held.pop(path, None)
        if held is not None:
            held.close()
            return True
        with self._lock:
            saves = [save for save in self._saves.values() if not save.ended]
        for save in saves:
            writing = save.files.get(path)
            if writing is not None and not writing.closed:
                writing.abort()
                return True
        again = [save for save in saves if save.place.name_of(path) and save.place.alone is None]
        return bool(again) and not any(path in save.paths for save in again)

    def enter(
        self, unit: Unit, path: Path, *, overwrite: bool, together: Together | None
    ) -> StepSave:
        """Return the save that a new file belongs to; ``leave`` must follow.

        Raises:
            SealedError: It has ended.
            SaveIdentityError: Nothing names it equally on all ranks.
        """
        key = unit.place.run, unit.place.step
        with self._lock:
            save = self._saves.get(key) if together is None else together.saves.get(key)
            if unit.place.alone is not None:  # says nothing of its folder's save
                save = None
            else:
                made = {each for each in self._fresh if _is_in(each, unit.place.folder)}
                self._fresh -= made
                if save is not None and made and (path in save.paths or save.is_redone_in(made)):
                    save = None
            if save is not None and save.ended:
                error = SealedError("the save has ended", hint=AFTER_COMMIT)
                error.locate("open", run=key[0], step=key[1], name=unit.name)
                raise error
            if save is None:
                save = self._saves[key] = self._begin(unit.place, overwrite=overwrite)
                if together is not None:
                    together.saves[key] = save
            save.paths.add(path)
            save.open_paths.append(path)
            return save

    def leave(self, save: StepSave, path: Path, *, put: bool, ends: bool, seals: bool) -> None:
        """Take note that a file was closed, and seal the part if that is what it ended.

        Args:
            save: What ``enter`` returned.
            path: The file's.
            put: It became a shard; else it was aborted.
            ends: It is the file that ends the save.
            seals: Whether to seal at all: what ends together is sealed together.
        """
        with self._lock:
            save.open_paths.remove(path)
            save.unsealed |= put
            save.committing |= put and ends
            rank = save.ids["rank"]
            idle = not save.open_paths and seals and not save.ended
            final = idle and save.committing and rank == 0
            due = final or (idle and save.unsealed and rank != 0)
        if due:
            self.seal(save, follows=not final)

    def seal(self, save: StepSave, *, follows: bool = False) -> None:
        """Seal this rank's part; for good unless it ``follows``.

        Raises:
            InvalidRequestError: A file of it is still open.
            BackgroundError: It is sealed, but something put earlier failed since.
        """
        with self._lock:
            if save.open_paths and not follows:
                names = sorted(path[-1] for path in save.open_paths)
                raise InvalidRequestError(
                    f"{', '.join(names[:5])} of {save.place.path} is still being written",
                    hint="Close every file before the save is sealed.",
                )
            save.unsealed = False
        try:
            self._seal(save, follows=follows)
        except BackgroundError:  # of something else: no reason to leave this unsealed
            self._seal(save, follows=follows)
            raise

    def _seal(self, save: StepSave, *, follows: bool) -> None:
        try:
            self.client.seal(save.place.run, save.place.step, **save.ids, follows=follows)
        except BaseException:
            save.unsealed = True
            raise
        save.ended |= not follows

    def abort(self, save: StepSave) -> None:
        """Take back what this rank has put in a save; does nothing once it has ended."""
        with self._lock:
            if save.ended:
                return
            self._saves.pop((save.place.run, save.place.step), None)
        for file in list(save.files.values()):
            file.abort()
        self.client.checkpoint(save.place.run, save.place.step, **save.ids).abort()

    def _begin(self, place: Place, *, overwrite: bool) -> StepSave:
        if place.alone is not None:  # of this process, whoever else saves
            ids = {"rank": 0, "world_size": 1, "save_id": save_ids.THIS_PROCESS.new_id()}
            return StepSave(place, {**ids, "overwrite": overwrite})
        who = place_of(os.environ, self._who.rank, self._who.world_size)
        key = place.run, place.step
        count = self._counts[key] = self._counts.get(key, 0) + 1
        given = self._who.save_id
        save_id = given or save_ids.THIS_PROCESS.derive(os.environ, who)
        if given is None or count > 1:
            save_id = checked_save_id(f"{save_id}-f{count}")
        ids = {"rank": who.rank, "world_size": who.world_size, "save_id": save_id}
        return StepSave(place, {**ids, "overwrite": overwrite})


def _is_in(path: Path, folder: Path) -> bool:
    """Return whether a path is ``folder``, or lies in it."""
    return path[: len(folder)] == folder


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
