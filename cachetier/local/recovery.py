"""Open a cache directory: start-up is recovery, whether the last stop was clean or a power cut.

1. Take the directory's lock, or refuse: two services on one directory would lose data.
2. Sync everything that is there: whoever copied it, as a backup is restored, may not have.
3. Refuse a catalog that is damaged, newer, missing where there was one, without the log that held
   its last commits, or of another store.
4. Files no row names: unmarked ones were never acknowledged and go; marked ones go to
   ``lost+found``.
5. Rows whose file is missing or has the wrong size: clean ones become evicted, dirty ones
   quarantined; those of files in memory, which a reboot takes, name no bytes any more.

Every step may be cut short and run again.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from cachetier_client.clock import Clock

from cachetier.errors import CatalogDamagedError, ConfigError, DirectoryInUseError
from cachetier.local.catalog import connection, figures, shards
from cachetier.local.catalog.committer import Committer
from cachetier.local.catalog.connection import Reserve
from cachetier.local.catalog.rows import IncidentRecord
from cachetier.local.files.data_files import (
    MEMORY_NAME,
    DiskFiles,
    Files,
    memory_folder,
    sync_directory,
    sync_filesystem,
    write_synced,
)
from cachetier.local.files.filesystem import VOLATILE, mount_under
from cachetier.local.files.permissions import narrow, refuse_exposed, unfollowed
from cachetier.local.files.space import Space
from cachetier.local.lost_and_found import LostAndFound
from cachetier.local.store import OnDiskError, Store
from cachetier.model.lifecycle import ShardState
from cachetier.model.names import STORE_ID_NAME
from cachetier.model.policy import DRAIN_ALL, Policy
from cachetier.model.shard import Shard, in_memory

CATALOG_NAME = "catalog.db"


@dataclass(frozen=True, slots=True)
class Recovered:
    """The result of start-up: the store, and what recovery changed."""

    store: Store
    rubbish_files: int
    set_aside_files: int
    lost_shards: int
    forgotten: tuple[Shard, ...] = ()  # those of the lost that were in memory only


def lock_directory(cache_dir: Path) -> int:
    """Take the directory for this process; the descriptor holds it until the process ends.

    The lock is the directory's own: a file in it could be removed, and made again for a second.

    Raises:
        DirectoryInUseError: Another service has it.
        ConfigError: Somebody else could change what is in it.
    """
    _make_directory(cache_dir)
    descriptor = os.open(cache_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        refuse_exposed(cache_dir, os.geteuid())
        _lock(descriptor, cache_dir)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def refuse_in_use(cache_dir: Path) -> None:
    """Refuse a directory that another service has now, and change nothing.

    Raises:
        DirectoryInUseError: Another service has it.
    """
    try:
        descriptor = os.open(cache_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return  # a start makes it, or says why it cannot
    try:
        _lock(descriptor, cache_dir)
    finally:
        os.close(descriptor)


def _lock(descriptor: int, cache_dir: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise DirectoryInUseError(f"another cachetier serves {cache_dir}") from None


def lock_memory(cache_dir: Path, directory: Path | None) -> int | None:
    """Take the folder in memory of a locked ``cache_dir``; make it if ``directory`` is given.

    ``cache_dir`` keeps its path, so that whoever opens the one finds the other.

    Returns:
        The descriptor that holds the lock; None if there is no such folder.

    Raises:
        ConfigError: ``directory`` is not in memory, or another one still holds shards.
        DirectoryInUseError: The service of a copied ``cache_dir`` has it.
    """
    folder = memory_folder(cache_dir)
    is_there = folder is not None and folder.is_dir()
    if directory is None:
        return lock_directory(folder) if folder is not None and is_there else None
    if folder is None or folder.parent != directory:
        if folder is not None and is_there:
            raise ConfigError(
                f"shards in memory are in {folder}, and `memory` names {directory}",
                hint=f"Start with {folder.parent}, flush and stop; then remove {folder}.",
            )
        folder = directory / f"cachetier-{secrets.token_hex(8)}"
    kind = mount_under(directory).kind
    if kind not in VOLATILE:
        raise ConfigError(
            f"{directory} of `memory` is on {kind}, not in memory",
            hint="Mount a tmpfs there, or leave it out: /dev/shm is one on most machines.",
        )
    descriptor = lock_directory(folder)
    write_synced(cache_dir / MEMORY_NAME, f"{folder}\n")
    return descriptor


def _make_directory(cache_dir: Path) -> None:
    """Create the directory and those above it, so that their names survive the loss of power."""
    above = cache_dir.absolute().parent
    if not above.is_dir():
        _make_directory(above)
    cache_dir.mkdir(mode=0o700, exist_ok=True)
    with contextlib.suppress(PermissionError):  # not ours to read, so not ours to create either
        sync_directory(above)


def open_store(
    cache_dir: Path,
    capacity_bytes: int,
    clock: Clock,
    *,
    files: Files | None = None,
    vfs: str | None = None,
    policy: Policy = DRAIN_ALL,
    on_fence: Callable[[str], None] = lambda _reason: None,
    on_disk_error: OnDiskError = lambda _operation: None,
    log_may_be_lost: bool = False,
    memory_bytes: int = 0,
) -> Recovered:
    """Open the store of a locked ``cache_dir``, creating it if it is new.

    ``memory_bytes`` is the budget of its folder in memory, see ``lock_memory``.

    ``on_disk_error`` hears which operation of the disk failed: ``write``, ``sync`` or ``catalog``.
    ``log_may_be_lost`` is for who repairs that: its mark stays, so that a start refuses until then.

    Raises:
        CatalogDamagedError: The catalog may have lost acknowledged shards; a person decides.
        FencedError: The disk failed a sync of what is there.
    """
    narrow(cache_dir)
    if files is None:
        disk = DiskFiles(cache_dir)
        disk.prepare()
        files = disk
    sync_filesystem(cache_dir)
    catalog_path = cache_dir / CATALOG_NAME
    _refuse_lost_catalog(catalog_path, files)
    connection.check_log(catalog_path, may_be_lost=log_may_be_lost)
    writer = connection.open_writer(catalog_path, clock.now(), vfs)
    try:
        store_id = connection.store_id_of(writer)
        _check_store_id(cache_dir, store_id)
        reader = connection.open_reader(catalog_path, vfs)
        looker = connection.open_reader(catalog_path, vfs)
    except BaseException:
        connection.abandon(writer)
        raise
    reserve = Reserve(catalog_path, capacity_bytes)
    committer = Committer(writer, on_fence, lambda: on_disk_error("catalog"), reserve)
    space = Space(capacity_bytes)
    store = Store(store_id, files, committer, (reader, looker), space, clock, policy, on_disk_error)
    store.memory = Space(memory_bytes)
    try:
        return _reconciled(store, LostAndFound(cache_dir), clock)
    except BaseException:
        store.close()
        raise


def _refuse_lost_catalog(catalog_path: Path, files: Files) -> None:
    if catalog_path.exists():
        return
    if _store_id_path(catalog_path.parent).exists() or any(True for _ in files.all()):
        raise CatalogDamagedError(
            f"{catalog_path.name} is missing; it held or named acknowledged shards"
        )


def _store_id_path(cache_dir: Path) -> Path:
    return cache_dir / STORE_ID_NAME


def _check_store_id(cache_dir: Path, store_id: str) -> None:
    """Tie catalog and data together: a catalog moved beside other data files would disown them.

    The id is written once the catalog is synced, so wherever there is one, there was a catalog.
    """
    refuse_other_store(cache_dir, store_id)
    path = _store_id_path(cache_dir)
    if not path.exists():
        write_synced(path, f"{store_id}\n")


def refuse_other_store(cache_dir: Path, store_id: str) -> None:
    """Refuse a catalog that is not of the store whose data files these are.

    Raises:
        CatalogDamagedError: It is so.
    """
    found = store_id_in(cache_dir)
    if found not in (None, store_id):
        raise CatalogDamagedError(f"the catalog is of store {store_id}, the data files of {found}")


def store_id_in(cache_dir: Path) -> str | None:
    """Return the id of the store whose data files these are; None where nothing says it."""
    try:
        with open(_store_id_path(cache_dir), opener=unfollowed) as file:
            return file.read().strip()
    except FileNotFoundError:
        return None


def _reconciled(store: Store, lost_and_found: LostAndFound, clock: Clock) -> Recovered:
    files = store.read(lambda sql: list(shards.files(sql)))
    named = {file_id: (version, size) for file_id, version, size in files}
    rubbish = aside = 0
    for file_id, size_bytes in list(store.files.all()):
        expected = named.get(file_id)
        if expected is not None:
            if expected[1] == size_bytes:
                del named[file_id]
        elif store.files.identity(file_id) is None:
            store.files.remove(file_id)
            rubbish += 1
        else:
            store.files.set_aside(file_id)
            aside += 1
    forgotten = []
    for file_id, (version, _size) in named.items():
        lost = _report_lost(store, version, file_id, clock)
        if lost is not None and lost.in_memory and lost.state is ShardState.DIRTY:
            forgotten.append(lost)
    memory = {v: size for file_id, v, size in files if in_memory(file_id) and file_id not in named}
    store.in_memory.extend(sorted(memory))
    memory_bytes = sum(memory.values())
    store.memory.account(memory_bytes)
    local_bytes = store.read(figures.local_bytes) - memory_bytes
    store.space.account(local_bytes + lost_and_found.size_bytes())
    return Recovered(store, rubbish, aside, len(named), tuple(forgotten))


def _report_lost(store: Store, version: int, file_id: str, clock: Clock) -> Shard | None:
    """A row without its bytes is an incident; a clean one still has them remotely."""
    shard = store.read(shards.shard_by_version, version)
    if shard is None or (shard.state is ShardState.QUARANTINED and not shard.in_memory):
        return None
    what = f"the data file {file_id} of shard {shard.name} is missing or has another size"
    if shard.in_memory:
        what = f"shard {shard.name} was in memory only, which the machine lost"
    incident = IncidentRecord(
        code="integrity",
        message=what,
        hint="Restore the step from its remote, or save it again.",
        **shard.context,
    )
    gone = shard.in_memory
    before = store.write(shards.record_damage, version, incident, clock.now(), gone=gone)
    if gone or before.state is ShardState.CLEAN:
        store.files.remove(file_id)  # it may be there, with another size
    return before
