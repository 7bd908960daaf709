"""``cachetier://`` for fsspec: checkpoints as files and folders, by whatever framework writes them.

A file is a shard, safe on the node once it is closed. What it is part of becomes visible once every
rank's part is sealed: ``units`` says what belongs together, ``saves`` when it is sealed.

Source: docs/fsspec.md.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import datetime
from glob import has_magic
from typing import Any

from fsspec import AbstractFileSystem
from fsspec.transaction import Transaction

from cachetier_client.calls.caller import checked_ack
from cachetier_client.calls.runs import PUT_SECONDS
from cachetier_client.client import Client
from cachetier_client.errors import InvalidRequestError, NotFoundError
from cachetier_client.filesystem.commits import Commits
from cachetier_client.filesystem.files import HeldFile, ReadFile, Spool, StoredFile, WrittenFile
from cachetier_client.filesystem.ranges import aligned, read_ranges
from cachetier_client.filesystem.saves import FileSaves, Path, Together, Who, saves_of
from cachetier_client.filesystem.tree import Entry, Tree, checked_file, missing
from cachetier_client.filesystem.units import CommitRules, Unit
from cachetier_client.identity.addresses import Address, parse
from cachetier_client.identity.places import Place, further_place
from cachetier_client.identity.presets import chosen_preset
from cachetier_client.identity.step_names import StepName
from cachetier_client.io.digests import BLOCK_BYTES
from cachetier_client.results import AckLevel

HELD_SUFFIX = ".tmp"
_COPIED_AT_ONCE = 4 << 20


class SavesTransaction(Transaction):  # type: ignore[misc]
    """Seals what was written in it at its end, each commit whole; an exception aborts them all."""

    def __init__(self, fs: CachetierFileSystem, **kwargs: Any) -> None:
        super().__init__(fs, **kwargs)
        self.together = Together()

    def complete(self, commit: bool = True) -> None:
        """End: seal, or take everything back."""
        file_system, together = self.fs, self.together
        super().complete(commit)
        file_system.end(together, commit=commit)


class CachetierFileSystem(AbstractFileSystem):  # type: ignore[misc]
    """The checkpoints of this node's cachetier as folders and files below their runs.

    Instances pickle, and work after fork and spawn. Nothing is connected before the first call.

    Args:
        service_url: As ``Client`` takes ``url``; by default the process's client is used.
        step_name: How the folders of a run's steps are called, with ``{step}`` in it; default
            ``CACHETIER_STEP_NAME``, then ``{step}``.
        preset: What ends a save: ``auto``, ``dcp``, ``lightning``, ``transformers``,
            ``safetensors`` or ``manual``; default ``CACHETIER_PRESET``, then ``auto``.
        commit_on: Patterns of the file that ends a save, separated by commas, in place of a
            preset's; default ``CACHETIER_COMMIT_ON``.
        overwrite: Whether a save may replace a published one.
        ack: How safe a file must be when ``close`` returns: ``local``, ``replicated``, ``durable``.
        timeout_seconds: Of each call on the service.
        save_id: As ``Client.put_shard`` takes it.
        rank: The same.
        world_size: The same; 1 for a program in which rank 0 alone writes.
        storage_options: fsspec's own.

    Raises:
        InvalidNameError, InvalidRequestError: An option that there is not.
    """

    protocol = "cachetier"
    root_marker = ""
    transaction_type = SavesTransaction
    cachable = True
    blocksize = 8 * BLOCK_BYTES  # what ``get`` reads at once: something for every thread

    def __init__(  # noqa: PLR0913 - options, by name
        self,
        *args: Any,
        service_url: str | None = None,
        step_name: str | None = None,
        preset: str | None = None,
        commit_on: str | None = None,
        overwrite: bool = True,
        ack: AckLevel = "local",
        timeout_seconds: float = PUT_SECONDS,
        save_id: str | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        **storage_options: Any,
    ) -> None:
        if self._cached:
            return
        super().__init__(*args, **{**storage_options, "use_listings_cache": False})
        self._step_name = step_name
        self._preset = preset
        self._commit_on = commit_on
        self._rules()  # refuses what there is not
        self._overwrite = overwrite
        self._ack = checked_ack(ack)
        self._timeout_seconds = timeout_seconds
        self._who = Who(service_url, rank, world_size, save_id)

    @property
    def client(self) -> Client:
        """The client that all calls go by."""
        return self.saves.client

    @property
    def saves(self) -> FileSaves:
        """The saves that files of this process are part of."""
        return saves_of(self._who)

    # --- reading ---------------------------------------------------------------------------------

    def ls(
        self, path: str, detail: bool = True, tree: Tree | None = None, **_kwargs: Any
    ) -> list[Any]:
        """List a folder: runs, or what is saved in one, or in a folder below."""
        entries = (tree or self._tree).entries(self._address(path))
        return entries if detail else [entry["name"] for entry in entries]

    def walk(self, path: str, *args: Any, **kwargs: Any) -> Any:
        """List all folders below one, having asked once what there is."""
        kwargs.setdefault("tree", self._tree)
        return super().walk(path, *args, **kwargs)

    def info(self, path: str, **_kwargs: Any) -> Entry:
        """Describe a folder or a file.

        Raises:
            FileNotFoundError: There is none.
        """
        return self._tree.info(self._address(path))

    def exists(self, path: str, **_kwargs: Any) -> bool:
        """Return whether it is there; unlike fsspec's own, an error is not an answer."""
        try:
            self.info(path)
        except FileNotFoundError:
            return False
        return True

    def isdir(self, path: str) -> bool:
        """Return whether it is a folder."""
        return self._type(path) == "directory"

    def isfile(self, path: str) -> bool:
        """Return whether it is a file."""
        return self._type(path) == "file"

    def checksum(self, path: str) -> int:
        """Return the CRC-64/NVME of a shard."""
        return int(self._tree.shard(self._address(path))[1].digest, 16)

    def ukey(self, path: str) -> str:
        """Return what changes when the file does: the save's id and the shard's digest."""
        commit, shard = self._tree.shard(self._address(path))
        return f"{commit.info.save_id}-{shard.digest}"

    def created(self, path: str) -> datetime:
        """Return when the save of a step began, by its node's clock."""
        return self._instant(path, "created")

    def modified(self, path: str) -> datetime:
        """Return when the save of a step was sealed, else published or begun."""
        return self._instant(path, "modified")

    def cat_file(
        self, path: str, start: int | None = None, end: int | None = None, **_kwargs: Any
    ) -> bytes:
        """Return a file's bytes, or a range of them; negative positions count from its end."""
        with self._open(self._strip_protocol(path), "rb") as file:
            size = file.size if isinstance(file, ReadFile) else self.info(path)["size"]
            first, last, _ = slice(start, end).indices(size)
            file.seek(first)
            return bytes(file.read(max(0, last - first)))

    def cat_ranges(
        self,
        paths: list[str],
        starts: Any,
        ends: Any,
        max_gap: int | None = None,  # noqa: ARG002 - whole blocks are read anyhow
        on_error: str = "return",
        **_kwargs: Any,
    ) -> list[Any]:
        """Return parts of files, each block read once; with ``on_error="return"`` errors too."""
        addresses = [checked_file(self._address(path)) for path in paths]
        bounds = aligned(starts, len(paths)), aligned(ends, len(paths))
        wanted = list(zip(addresses, *bounds, strict=True))
        found = read_ranges(self._tree, wanted, self._timeout_seconds)
        failed = [each for each in found if isinstance(each, Exception)]
        if failed and on_error != "return":
            raise failed[0]
        return found

    # --- writing ---------------------------------------------------------------------------------

    def makedirs(self, path: str, *_args: Any, **_kwargs: Any) -> None:
        """Make a folder: the next save of it may begin."""
        address = self._address(path)
        if address.run is not None:
            self.saves.make((address.run, *address.path))

    mkdir = makedirs

    def put(self, lpath: Any, rpath: Any, *args: Any, **kwargs: Any) -> None:
        """Copy local files or folders: those of one call are committed together."""
        with self._together(kwargs):
            super().put(lpath, rpath, *args, **kwargs)

    def put_file(
        self, lpath: str, rpath: str, callback: Any = None, mode: str = "overwrite", **kwargs: Any
    ) -> None:
        """Copy a local file; a folder needs no copying."""
        if os.path.isdir(lpath):
            return
        with (
            open(lpath, "rb") as source,
            self.open(rpath, "xb" if mode == "create" else "wb", **_kept(kwargs)) as target,
        ):
            if callback is not None:
                callback.set_size(os.fstat(source.fileno()).st_size)
            shutil.copyfileobj(source, target, _COPIED_AT_ONCE)
            if callback is not None:
                callback.absolute_update(target.tell())

    def copy(self, path1: Any, path2: Any, *args: Any, **kwargs: Any) -> None:
        """Copy files or folders within the tree: those of one call are committed together."""
        with self._together(kwargs):
            super().copy(path1, path2, *args, **kwargs)

    def cp_file(self, path1: str, path2: str, **kwargs: Any) -> None:
        """Copy a file, by reading and writing it; a folder needs no copying."""
        if self.isdir(path1):
            self.makedirs(path2)
            return
        with self.open(path1, "rb") as source, self.open(path2, "wb", **_kept(kwargs)) as target:
            shutil.copyfileobj(source, target, _COPIED_AT_ONCE)

    def mv(self, path1: str, path2: str, recursive: bool = False, **kwargs: Any) -> None:
        """Give a file called ``*.tmp`` its name; anything else is copied, and then removed.

        Raises:
            InvalidRequestError: It is part of a commit, which would be left without it; or would
                come to lie in itself, or in this process alone.
            FileNotFoundError: There is no such file.
        """
        key, target_path = _path(checked_file(self._address(path1))), _path(self._address(path2))
        if key == target_path:
            return
        if target_path[: len(key)] == key:
            raise InvalidRequestError(f"{path1} cannot be moved into itself, as {path2}")
        spool = self.saves.held.pop(key, None)
        if spool is None:
            if target_path[-1].endswith(HELD_SUFFIX):
                raise InvalidRequestError(
                    f"{path1} is stored; {path2} would be lost when this process ends",
                    hint=f"Move it to a name that does not end in {HELD_SUFFIX}.",
                )
            self._tree.removable([self._address(path1)], recursive=recursive)
            super().mv(path1, path2, recursive=recursive, **kwargs)
            return
        try:
            with self.open(path2, "wb") as target:
                spool.copy_to(target)
        except BaseException:
            self.saves.held[key] = spool
            raise
        spool.close()

    def rm(self, path: Any, recursive: bool = False, **_kwargs: Any) -> None:
        """Remove commits, or what this process has not finished writing; patterns are looked up.

        It takes effect at once here, and at the remotes in the background, published or not. A file
        of a commit that has others cannot be removed alone; one of an older save is left alone
        without an error while this process saves its folder again: it goes with that save.

        Raises:
            FileNotFoundError: There is no such thing.
            InvalidRequestError: It cannot be removed alone, or is a folder and not ``recursive``.
        """
        paths = [path] if isinstance(path, str | os.PathLike) else path
        named = [name for each in paths for name in self._matching(os.fspath(each))]
        addresses = [self._address(each) for each in named]
        stored = [each for each in addresses if not self.saves.drop(_path(each))]
        places = self._tree.removable(stored, recursive=recursive)
        for address in stored:
            self.saves.forget(_path(address))
        for place in places:
            with suppress(NotFoundError):  # somebody else removed it meanwhile
                seconds = self._timeout_seconds
                self.client.delete_step(place.run, place.step, timeout_seconds=seconds)

    rm_file = rm

    def seal(self, path: str) -> None:
        """Say that this rank has written all its files in a folder, whatever they are called.

        Raises:
            InvalidRequestError: This process has written nothing there, or not closed a file.
        """
        where = _path(self._address(path))
        under_way = self.saves.under_way(where)
        if not under_way and not self.saves.has_ended(where):
            raise InvalidRequestError(
                f"this process is not writing to {path}",
                hint="Seal the folder, from the process that wrote its files.",
            )
        for save in under_way:
            self.saves.seal(save)

    def end(self, together: Together, *, commit: bool) -> None:
        """Seal what ends together, or take it back."""
        for save in together.saves.values():
            if commit:
                self.saves.seal(save)
            else:
                self.saves.abort(save)

    # --- inside ----------------------------------------------------------------------------------

    @property
    def _tree(self) -> Tree:
        return Tree(self.saves, Commits(self.client, self._rules(), self._timeout_seconds))

    def _rules(self) -> CommitRules:
        preset = chosen_preset(self._preset, self._commit_on)
        return CommitRules(StepName.chosen(self._step_name), preset)

    def _address(self, path: str) -> Address:
        return parse(self._strip_protocol(os.fspath(path)))

    def _matching(self, path: str) -> list[str]:
        """Return a path, or what there is that a pattern matches: something."""
        found = self.glob(path) if has_magic(path) else [path]
        if not found:
            raise missing(self._strip_protocol(path))
        return list(found)

    def _type(self, path: str) -> str:
        try:
            return str(self.info(path)["type"])
        except FileNotFoundError:
            return ""

    def _instant(self, path: str, which: str) -> datetime:
        info = self.info(path)
        if which not in info:
            raise missing(self._strip_protocol(path))
        instant = info[which]
        assert isinstance(instant, datetime)
        return instant

    @contextmanager
    def _together(self, kwargs: dict[str, Any]) -> Iterator[None]:
        """Commit what is written inside together; inside a transaction, with that."""
        if self._intrans or "together" in kwargs:
            yield
            return
        together = kwargs["together"] = Together()
        try:
            yield
        except BaseException:
            self.end(together, commit=False)
            raise
        self.end(together, commit=True)

    def _open(
        self,
        path: str,
        mode: str = "rb",
        *_args: Any,
        autocommit: bool = True,
        together: Together | None = None,
        **_kwargs: Any,
    ) -> Any:
        if mode == "rb":
            return self._open_to_read(path)
        if mode not in ("wb", "xb", "ab"):
            raise InvalidRequestError(
                f"mode {mode!r} is not one of 'rb', 'wb', 'xb' and 'ab'",
                hint="A file is written from its beginning to its end.",
            )
        if mode == "xb" and self.exists(path):
            raise FileExistsError(f"cachetier://{path} exists already")
        before = self._open_to_read(path) if mode == "ab" and self.exists(path) else None
        if together is None and not autocommit:
            together = self.transaction.together
        file = self._open_to_write(checked_file(self._address(path)), together)
        if before is not None:  # a shard cannot grow: the next one begins as this one is
            with before:
                shutil.copyfileobj(before, file, _COPIED_AT_ONCE)
        return file

    def _open_to_read(self, path: str) -> Any:
        address = checked_file(self._address(path))
        held = self.saves.held.get(_path(address))
        if held is not None:
            return held.reader()
        options: dict[str, Any] = {"timeout_seconds": self._timeout_seconds}

        def ask(place: Place, name: str) -> ReadFile | None:
            with suppress(NotFoundError):
                reader = self.client.open_shard(place.run, place.step, name, "rb", **options)
                return ReadFile(path, reader)
            return None

        found = self._tree.commits.first(address, ask)
        if found is None:
            raise missing(path)
        return found

    def _open_to_write(self, address: Address, together: Together | None) -> WrittenFile:
        path, text = _path(address), address.text
        if path[-1].endswith(HELD_SUFFIX):
            return HeldFile(text, lambda spool: self._hold(path, spool))
        unit = self._unit(address, together)
        saves, place = self.saves, unit.place
        save = saves.enter(unit, path, overwrite=self._overwrite, together=together)
        seals = together is None
        options: dict[str, Any] = {"ack": self._ack, "timeout_seconds": self._timeout_seconds}
        try:
            writer = self.client.open_shard(place.run, place.step, unit.name, **options, **save.ids)
        except BaseException:
            saves.leave(save, path, put=False, ends=False, seals=False)
            raise

        def end(put: bool) -> None:
            saves.leave(save, path, put=put, ends=unit.ends, seals=seals)

        file = save.files[path] = StoredFile(text, writer, end)
        return file

    def _unit(self, address: Address, together: Together | None) -> Unit:
        """Return what a file is part of: where a folder has a commit without it, of another one.

        Only a lone process can tell: ranks that write different files must agree unasked.
        """
        rules = self._rules()
        unit = rules.unit_of(address, together=together is not None)
        if together is None or unit.place.alone is not None or not self.saves.is_alone:
            return unit
        place = together.places.get(unit.place)
        if place is None:
            info = self._tree.commits.at(unit.place)
            has_it = info is None or any(each.name == unit.name for each in info.shards)
            further = not has_it and info is not None and bool(info.levels)
            place = further_place(unit.place, unit.name, rules.step_name) if further else unit.place
            together.places[unit.place] = place
        return replace(unit, place=place)

    def _hold(self, path: Path, spool: Spool) -> None:
        before = self.saves.held.pop(path, None)
        self.saves.held[path] = spool
        if before is not None:
            before.close()


def _path(address: Address) -> Path:
    return (address.run or "", *address.path)


def _kept(kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return what of a call's options concerns the files that it writes."""
    return {name: kwargs[name] for name in ("together",) if name in kwargs}
