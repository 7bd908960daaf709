"""One run of ``cachetier fsck``: check everything, and repair it if asked to.

Looking needs no lock: beside a running service the catalog is read as SQLite shows it to a second
reader. Repairing takes the directory's lock, as a service would.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from cachetier_client.clock import Clock

from cachetier.errors import CatalogDamagedError, ConfigError, DirectoryInUseError, RemoteError
from cachetier.fsck.adopt_files import FileAdopter
from cachetier.fsck.adopt_objects import ObjectAdopter
from cachetier.fsck.findings import Finding, FindingKind, FsckReport, RepairOutcome
from cachetier.fsck.local import AT_START, LocalChecks, Sleep
from cachetier.fsck.mounts import MountChecks
from cachetier.fsck.remote_checks import RemoteChecks
from cachetier.fsck.repairs import Repairs
from cachetier.fsck.row_repairs import repaired_rows
from cachetier.local.catalog import connection, saves
from cachetier.local.catalog.rows import LOST_WITH_LOG
from cachetier.local.lost_and_found import LostAndFound
from cachetier.local.recovery import CATALOG_NAME, lock_directory, open_store
from cachetier.local.repair import check_queries
from cachetier.local.repair.open_catalog import begin_anew, viewed
from cachetier.local.store import Store
from cachetier.model.names import DURABLE
from cachetier.remote.bucket import Remote
from cachetier.remote.mounted import MountBuckets
from cachetier.restore.fill import Room
from cachetier.restore.mounted import MountedObjects
from cachetier.restore.replica_choice import Replicas
from cachetier.restore.restore import Restore

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class FsckOptions:
    """The scope of a check, and whether to repair.

    ``data`` reads every local byte; ``run`` names the only run to look at; ``adopt`` takes files of
    ``lost+found`` back that the catalog cannot account for; ``rebuild`` does so with a new catalog.
    ``mounts`` are the buckets of the S3 door's mounts; None asks none of them.
    """

    data: bool = False
    run: str | None = None
    repair: bool = False
    adopt: bool = False
    rebuild: bool = False
    mounts: MountBuckets | None = None

    @property
    def changes(self) -> bool:
        return self.repair or self.adopt or self.rebuild


def fsck(  # noqa: PLR0913 - what is checked, and who hears of it
    cache_dir: Path,
    remotes: Sequence[Remote],
    clock: Clock,
    options: FsckOptions,
    *,
    capacity_bytes: int,
    found: Callable[[FsckReport], None] = lambda _report: None,
    say: Say = lambda _line: None,
    sleep: Sleep = time.sleep,
    report: FsckReport | None = None,
) -> FsckReport:
    """Check a cache directory, and repair it.

    Args:
        cache_dir: The directory of the cache.
        remotes: The durable one first; none to look at this node only.
        clock: For ages.
        options: See there.
        capacity_bytes: What may be used when bytes are fetched again.
        found: Called with what was found, before anything is repaired.
        say: Called with a line about each repair before it is tried.
        sleep: Seam for tests.
        report: What is filled in and returned, for who watches how far it is.

    Raises:
        ConfigError: There is no cache.
        DirectoryInUseError: A service runs, and something is to be repaired.
    """
    if not (cache_dir / "data").is_dir():
        raise ConfigError(
            f"there is no cache in {cache_dir}", hint="Name the service's own: --cache-dir."
        )
    report = report or FsckReport()
    with _held(cache_dir, report, options):
        report.findings += _looked(cache_dir, remotes, options, report, sleep)
        found(report)
        if options.changes:
            report.outcomes += _repaired(
                cache_dir, remotes, clock, options, report.findings, capacity_bytes, say
            )
    return report


@contextmanager
def _held(cache_dir: Path, report: FsckReport, options: FsckOptions) -> Iterator[None]:
    """Hold the directory's lock, or find out that a service does."""
    try:
        lock = lock_directory(cache_dir)
    except DirectoryInUseError as error:
        if options.changes:
            raise DirectoryInUseError(
                f"a service is running on {cache_dir}",
                hint="Stop it to repair; without --repair fsck looks beside the running service.",
            ) from error
        report.online = True
        yield
        return
    try:
        yield
    finally:
        os.close(lock)


def _looked(
    cache_dir: Path,
    remotes: Sequence[Remote],
    options: FsckOptions,
    report: FsckReport,
    sleep: Sleep,
) -> Iterator[Finding]:
    if not report.online and connection.is_log_lost(cache_dir / CATALOG_NAME):
        message = "acknowledged commits were lost with its log"
        yield Finding(FindingKind.LOG_LOST, message)
    try:
        with viewed(cache_dir, alone=not report.online) as view:
            here = LocalChecks(
                view, cache_dir, report, data=options.data, run=options.run, sleep=sleep
            )
            yield from here.all()
            of_mounts = MountChecks(view, report, run=options.run)
            yield from of_mounts.local()
            for remote in remotes:
                try:
                    yield from RemoteChecks(view, remote, report, run=options.run).all()
                except RemoteError as error:
                    report.unanswered.append(f"{remote.name}: {error.message}")
            if options.mounts is not None:
                yield from of_mounts.remote(options.mounts)
    except CatalogDamagedError as error:
        report.unreadable = True
        message = f"{error.message}; {error.hint}"
        yield Finding(FindingKind.CATALOG_DAMAGED, message)


def _repaired(
    cache_dir: Path,
    remotes: Sequence[Remote],
    clock: Clock,
    options: FsckOptions,
    findings: Sequence[Finding],
    capacity_bytes: int,
    say: Say,
) -> Iterator[RepairOutcome]:
    loss = _loss_in(findings, rebuild=options.rebuild)
    lost = loss is not None
    try:
        if options.rebuild:
            yield from _begun_anew(cache_dir, findings, clock.now(), say)
        elif options.repair:
            durable, now = remotes[0].bucket if remotes else None, clock.now()
            yield from repaired_rows(cache_dir, durable, findings, now, say, log_may_be_lost=lost)
            for finding in findings:
                if finding.kind in AT_START:
                    say(f"repair {finding.where}: {AT_START[finding.kind]}")
        store = open_store(cache_dir, capacity_bytes, clock, log_may_be_lost=lost).store
    except CatalogDamagedError as error:
        yield from _left(findings, error)
        return
    restore = _restore_of(store, remotes, options.mounts, clock)
    made_up = False
    try:
        if options.repair:
            mending = Repairs(store, cache_dir, list(remotes), restore, clock, options.mounts)
            yield from mending.all(findings, say)
        if options.adopt or lost:
            adopters = _adopters(store, cache_dir, remotes, options.mounts, clock)
            made_up = yield from _taken_back(store, adopters, loss, clock.now(), say)
    finally:
        if restore is not None:
            restore.close()
        store.close()
    if made_up:
        connection.remove_mark(cache_dir / CATALOG_NAME)


def _loss_in(findings: Sequence[Finding], *, rebuild: bool) -> Finding | None:
    """Return the finding that acknowledged commits are lost, or are about to be."""
    kinds = (FindingKind.LOG_LOST, *((FindingKind.CATALOG_DAMAGED,) if rebuild else ()))
    return next((finding for finding in findings if finding.kind in kinds), None)


def _adopters(
    store: Store,
    cache_dir: Path,
    remotes: Sequence[Remote],
    mounts: MountBuckets | None,
    clock: Clock,
) -> Sequence[FileAdopter | ObjectAdopter]:
    """Return who takes files back; nobody where no remote is asked."""
    if not remotes:
        return ()
    files = FileAdopter(store, cache_dir, remotes[0].bucket, clock)
    return files, ObjectAdopter(store, LostAndFound(cache_dir), mounts, clock)


def _taken_back(
    store: Store,
    adopters: Sequence[FileAdopter | ObjectAdopter],
    loss: Finding | None,
    now: float,
    say: Say,
) -> Generator[RepairOutcome, None, bool]:
    """Take back files that the catalog cannot account for; return whether ``loss`` is made up for.

    What lay in the catalog alone cannot be: an incident of each run says so.
    """
    if loss is not None and _is_damaged(store):
        yield RepairOutcome(loss, False, "what is left of the catalog is damaged: add --rebuild")
        return False
    if not adopters:
        assert loss is not None, "--adopt asks the remote"
        yield RepairOutcome(loss, False, "the remote is asked for each file: leave out --local")
        return False
    for adopter in adopters:
        yield from adopter.all(say)
    if loss is None:
        return False
    if any(adopter.unanswered for adopter in adopters):
        yield RepairOutcome(loss, False, "the remote did not answer: repair again once it does")
        return False
    store.write(saves.report_lost_log, now)
    yield RepairOutcome(loss, True, f"files are taken back; {LOST_WITH_LOG}")
    return True


def _is_damaged(store: Store) -> bool:
    try:
        return bool(store.read(check_queries.complaints))
    except CatalogDamagedError:
        return True


def _begun_anew(
    cache_dir: Path, findings: Sequence[Finding], now: float, say: Say
) -> Iterator[RepairOutcome]:
    """Put an empty catalog in the place of a damaged one.

    Raises:
        ConfigError: The catalog is sound: what lies in it alone would be lost.
    """
    kinds = [finding.kind for finding in findings]
    damaged = [finding for finding in findings if finding.kind is FindingKind.CATALOG_DAMAGED]
    if not damaged and FindingKind.LOG_LOST in kinds:
        return  # that was done by who was killed at it, or is not needed
    if not damaged:
        raise ConfigError(
            "the catalog is sound: nothing is rebuilt",
            hint="Leave out --rebuild; --repair mends what is wrong.",
        )
    say("rebuild: begin a new catalog, and keep the old one beside it")
    kept = begin_anew(cache_dir, now)
    for finding in damaged:
        yield RepairOutcome(finding, True, f"begun again; what was left of it is kept as {kept}")


def _left(findings: Sequence[Finding], error: CatalogDamagedError) -> Iterator[RepairOutcome]:
    """Say of each problem that the catalog stands in the way."""
    for finding in findings:
        if finding.is_problem:
            yield RepairOutcome(finding, False, f"{error.message}; {error.hint}")


def _restore_of(
    store: Store, remotes: Sequence[Remote], mounts: MountBuckets | None, clock: Clock
) -> Restore | None:
    if not remotes:
        return None
    durable, *replicas = remotes
    return Restore(
        store,
        durable.bucket,
        clock,
        remote=DURABLE,
        replicas=Replicas(replicas),
        room=Room(lambda: None),
        mounted=MountedObjects(store, mounts, clock) if mounts is not None else None,
    )
