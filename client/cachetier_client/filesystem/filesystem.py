"""``cachetier://`` for fsspec: checkpoints as folders, by whatever framework writes files.

A file is a shard, safe on the node once it is closed. Its step becomes visible once every rank's
part is sealed; when that is, ``filesystem_saves`` decides.

Source: docs/fsspec.md.
"""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from datetime import datetime
from typing import Any

from fsspec import AbstractFileSystem
from fsspec.transaction import Transaction

from cachetier_client.calls.caller import checked_ack
from cachetier_client.calls.runs import PUT_SECONDS
from cachetier_client.client import Client
from cachetier_client.errors import InvalidRequestError, NotFoundError
from cachetier_client.filesystem.files import HeldFile, ReadFile, Spool, StoredFile, WrittenFile
from cachetier_client.filesystem.ranges import aligned, read_ranges
from cachetier_client.filesystem.saves import (
    FileSaves,
    StepSave,
    Who,
    commit_patterns,
    is_commit_file,
    saves_of,
)
from cachetier_client.filesystem.tree import Entry, Tree, missing, missing_as_file, step_and_name
from cachetier_client.identity.addresses import Address, StepName, parse
from cachetier_client.io.digests import BLOCK_BYTES
from cachetier_client.results import AckLevel

HELD_SUFFIX = ".tmp"
_COPIED_AT_ONCE = 4 << 20


class StepsTransaction(Transaction):  # type: ignore[misc]
    """Seals this rank's part of every step it wrote to at its end; an exception aborts them."""

    def __init__(self, fs: CachetierFileSystem, **kwargs: Any) -> None:
        super().__init__(fs, **kwargs)
        self.saves: dict[int, StepSave] = {}

    def complete(self, commit: bool = True) -> None:
        """End: seal, or take everything back."""
        saves, file_system = list(self.saves.values()), self.fs
        super().complete(commit)
        for save in saves:
            if commit:
                file_system.saves.seal(save)
            else:
                file_system.saves.abort(save)


class CachetierFileSystem(AbstractFileSystem):  # type: ignore[misc]
    """Steps of this node's cachetier as folders ``run/step``, and their shards as files.

    Instances pickle, and work after fork and spawn. Nothing is connected before the first call.

    Args:
        service_url: As ``Client`` takes ``url``; by default the process's client is used.
        step_name: How folders of steps are called, with ``{step}`` in it; default
            ``CACHETIER_STEP_NAME``, then ``{step}``.
        commit_on: Patterns of the files that end a save, separated by commas; default
            ``CACHETIER_COMMIT_ON``, then those of ``torch.distributed.checkpoint``.
        overwrite: Whether a save may replace a published step.
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
    transaction_type = StepsTransaction
    cachable = True
    blocksize = 8 * BLOCK_BYTES  # what ``get`` reads at once: something for every thread

    def __init__(  # noqa: PLR0913 - options, by name
        self,
        *args: Any,
        service_url: str | None = None,
        step_name: str | None = None,
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
        if step_name is not None:
            StepName(step_name)
        self._step_name = step_name
        self._commit_on = commit_on
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

    def ls(self, path: str, detail: bool = True, **_kwargs: Any) -> list[Any]:
        """List a folder: runs, the whole steps of a run, or the shards of a step."""
        entries = self._tree.entries(self._address(path))
        return entries if detail else [entry["name"] for entry in entries]

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
        step, shard = self._tree.shard(self._address(path))
        return f"{step.save_id}-{shard.digest}"

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
        addresses = [self._address(path) for path in paths]
        bounds = aligned(starts, len(paths)), aligned(ends, len(paths))
        wanted = list(zip(addresses, *bounds, strict=True))
        found = read_ranges(self._tree, wanted, self._timeout_seconds)
        failed = [each for each in found if isinstance(each, Exception)]
        if failed and on_error != "return":
            raise failed[0]
        return found

    # --- writing ---------------------------------------------------------------------------------

    def makedirs(self, path: str, *_args: Any, **_kwargs: Any) -> None:
        """Make a step's folder, or one inside: the next save of it may begin."""
        address = self._address(path)
        if address.run is not None and address.step is not None:
            self.saves.make(address.run, address.step, address.name or "")

    mkdir = makedirs

    def put_file(
        self, lpath: str, rpath: str, callback: Any = None, mode: str = "overwrite", **_kwargs: Any
    ) -> None:
        """Copy a local file; a folder needs no copying."""
        if os.path.isdir(lpath):
            return
        with (
            open(lpath, "rb") as source,
            self.open(rpath, "xb" if mode == "create" else "wb") as target,
        ):
            if callback is not None:
                callback.set_size(os.fstat(source.fileno()).st_size)
            shutil.copyfileobj(source, target, _COPIED_AT_ONCE)
            if callback is not None:
                callback.absolute_update(target.tell())

    def mv(self, path1: str, path2: str, **_kwargs: Any) -> None:
        """Give a file called ``*.tmp`` its name: it becomes a shard.

        Raises:
            InvalidRequestError: It is a shard already, whose name cannot change.
            FileNotFoundError: It was not written by this process.
        """
        key = step_and_name(self._address(path1), path1)
        spool = self.saves.held.pop(key, None)
        if spool is None:
            if not key[2].endswith(HELD_SUFFIX) and self.exists(path1):
                raise InvalidRequestError(
                    f"{path1} is a shard, whose name cannot change",
                    hint=f"Write it under its final name, or as *{HELD_SUFFIX} first.",
                )
            raise missing(self._strip_protocol(path1))
        try:
            with self.open(path2, "wb") as target:
                spool.copy_to(target)
        except BaseException:
            self.saves.held[key] = spool
            raise
        spool.close()

    def rm(self, path: Any, recursive: bool = False, **_kwargs: Any) -> None:
        """Remove steps, or what this process has not finished writing.

        A stored shard cannot be removed alone. One of an older save is left alone without an error
        while this process saves its step anew: it goes with that save.

        Raises:
            FileNotFoundError: There is no such thing.
            InvalidRequestError: It cannot be removed alone.
        """
        for each in [path] if isinstance(path, str | os.PathLike) else path:
            plain = self._strip_protocol(os.fspath(each))
            address = self._address(plain)
            if address.name is not None:
                self._remove_file(plain, *step_and_name(address, plain))
            else:
                self._remove_step(plain, address, recursive=recursive)

    rm_file = rm

    def seal(self, path: str) -> None:
        """Say that this rank has written all its files of a step, whatever they are called.

        Raises:
            InvalidRequestError: This process has written nothing to it, or not closed a file.
        """
        address = self._address(path)
        under_way = self.saves.under_way(address.run, address.step)
        if under_way is None:
            raise InvalidRequestError(
                f"this process is not writing to {path}",
                hint="Seal the step's folder, from the process that wrote its files.",
            )
        self.saves.seal(under_way)

    # --- inside ----------------------------------------------------------------------------------

    @property
    def _tree(self) -> Tree:
        return Tree(self.saves, StepName.chosen(self._step_name), self._timeout_seconds)

    def _address(self, path: str) -> Address:
        return parse(self._strip_protocol(os.fspath(path)), StepName.chosen(self._step_name))

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

    def _open(
        self,
        path: str,
        mode: str = "rb",
        *_args: Any,
        autocommit: bool = True,
        **_kwargs: Any,
    ) -> Any:
        if mode == "rb":
            return self._open_to_read(path)
        if mode not in ("wb", "xb"):
            raise InvalidRequestError(
                f"mode {mode!r} is none of 'rb', 'wb' and 'xb'",
                hint="A shard is written once, from its beginning to its end.",
            )
        if mode == "xb" and self.exists(path):
            raise FileExistsError(f"cachetier://{path} is there already")
        return self._open_to_write(path, seals=autocommit)

    def _open_to_read(self, path: str) -> Any:
        run, step, name = step_and_name(self._address(path), path)
        held = self.saves.held.get((run, step, name))
        if held is not None:
            return held.reader()
        with missing_as_file(path):
            options: dict[str, Any] = {"timeout_seconds": self._timeout_seconds}
            return ReadFile(path, self.client.open_shard(run, step, name, "rb", **options))

    def _open_to_write(self, path: str, *, seals: bool) -> WrittenFile:
        run, step, name = step_and_name(self._address(path), path)
        if name.endswith(HELD_SUFFIX):
            return HeldFile(path, lambda spool: self._hold((run, step, name), spool))
        saves = self.saves
        save = saves.enter(run, step, name, overwrite=self._overwrite)
        commits = is_commit_file(name, commit_patterns(self._commit_on))
        try:
            writer = self.client.open_shard(
                run, step, name, ack=self._ack, timeout_seconds=self._timeout_seconds, **save.ids
            )
        except BaseException:
            saves.leave(save, name, put=False, commits=False, seals=False)
            raise
        if not seals:
            self.transaction.saves[id(save)] = save

        def end(put: bool) -> None:
            saves.leave(save, name, put=put, commits=commits, seals=seals)

        file = save.files[name] = StoredFile(path, writer, end)
        return file

    def _hold(self, key: tuple[str, int, str], spool: Spool) -> None:
        before = self.saves.held.pop(key, None)
        self.saves.held[key] = spool
        if before is not None:
            before.close()

    def _remove_file(self, path: str, run: str, step: int, name: str) -> None:
        if self.saves.drop(run, step, name):
            return
        if not self.exists(path):
            raise missing(path)
        raise InvalidRequestError(
            f"cachetier://{path} cannot be removed without its step",
            hint="Remove the step: fs.rm('cachetier://run/1000', recursive=True).",
        )

    def _remove_step(self, path: str, address: Address, *, recursive: bool) -> None:
        if address.run is None or address.step is None or not recursive:
            raise InvalidRequestError(
                f"cachetier://{path} is not removed just so",
                hint="Remove steps one by one: fs.rm('cachetier://run/1000', recursive=True).",
            )
        self._tree.info(address)
        self.saves.forget(address.run, address.step)
        with suppress(NotFoundError):  # only its folder was made
            seconds = self._timeout_seconds
            self.client.delete_step(address.run, address.step, timeout_seconds=seconds)
