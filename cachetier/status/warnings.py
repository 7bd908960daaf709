"""The warnings of a node: each names a choice or a finding that weakens a promise."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from cachetier_client.units import counted, shown_size, shown_span

from cachetier.errors import SaveSupersededError, StepPublishedError
from cachetier.local.catalog import copies, figures, notes, saves
from cachetier.local.catalog.connection import SPARE_FILES
from cachetier.local.catalog.rows import LOG_LOST
from cachetier.local.files.data_files import inodes_of
from cachetier.local.lost_and_found import KEPT_SECONDS, LostAndFound
from cachetier.local.store import Store
from cachetier.model.names import DURABLE, is_hidden
from cachetier.model.policy import Policy
from cachetier.remote.settings import RemoteSettings
from cachetier.status.snapshot import NodeSnapshot, RemoteProgress

NOTICED_SECONDS = 7 * 86_400.0
SKIPPED_STEPS = 3  # so many in a row are no accident
PINNED_SHARE = 0.5
NAMED_STEPS = 3
FEW_INODES = 1000
FEW_INODES_SHARE = 0.05


@dataclass(frozen=True, slots=True)
class Machine:
    """The findings of start-up, which do not change while the service runs."""

    cache_dir: str
    filesystem: str
    disk: dict[str, bool]
    sqlite_version: str
    remotes: tuple[RemoteSettings, ...]  # the durable one first
    when_full: str
    policy: Policy
    started_at: float
    exposure_objective_seconds: float


def warnings_of(store: Store, machine: Machine, node: NodeSnapshot, now: float) -> list[str]:
    """Return one sentence for each."""
    remotes = zip(machine.remotes, node.remotes, strict=True)
    return [
        *(text for each in remotes for text in _of_remote(*each)),
        *_of_disk(machine),
        *_of_inodes(machine),
        *_of_room(store),
        *_of_losses(store, machine, now),
        *_of_steps(store, machine.policy, node),
        *_of_replaced(store, now),
        *_of_bucket(store),
        *_of_claims(store, now),
    ]


def _of_remote(remote: RemoteSettings, progress: RemoteProgress) -> Iterator[str]:
    if not remote.conditional_writes:
        where = "" if remote.role == "durable" else f" at {remote.name}"
        what = f"`unconditional` is assumed{where}: two nodes that save one step may"
        yield f"{what} overwrite each other"
    if given_up := progress.pending.given_up:
        what = f"replica {remote.name} never gets {counted(given_up, 'step')}: bytes left this node"
        yield f"{what} before they were sent there; `required = true` would keep them"


def _of_claims(store: Store, now: float) -> list[str]:
    return [
        f"the cache directory is older than remote {remote}, or another node has a copy of it "
        f"(noticed {shown_span(now - at)} ago): see docs/recovery.md; nothing is overwritten"
        for remote, at in store.look(notes.noticed_since, now - NOTICED_SECONDS)
    ]


def _of_disk(machine: Machine) -> Iterator[str]:
    if machine.filesystem in ("tmpfs", "ramfs"):
        yield "the cache is in memory: nothing survives the loss of power"
    if not machine.disk.get("direct_io", False):
        yield "the disk refuses O_DIRECT: puts go through the page cache, slower"
    if not machine.disk.get("attributes", False):
        yield "the disk keeps no extended attributes: a lost catalog could not be rebuilt"


def _of_inodes(machine: Machine) -> list[str]:
    try:
        inodes = inodes_of(Path(machine.cache_dir))
    except OSError:
        return []
    if inodes is None or inodes[0] >= min(FEW_INODES, FEW_INODES_SHARE * inodes[1]):
        return []
    full = "the disk is full: " if inodes[0] <= SPARE_FILES else ""
    found = (
        f"{full}{inodes[0]} of {inodes[1]} inodes left. Without one no put of more than 64 KiB is "
        "taken before a clean shard goes; remove small files: docs/runbooks/write-errors.md"
    )
    return [found]


def _of_room(store: Store) -> Iterator[str]:
    space, reserve = store.space, store.reserve
    yield from store.open_files.refusals()
    if space.disk_is_full:
        yield (
            f"the disk is full at {shown_size(space.limit_bytes)} of "
            f"{shown_size(space.capacity_bytes)}: others fill it. Clean shards are evicted "
            "first, then `when_full` decides about puts; free space, or lower `capacity`: "
            "docs/runbooks/write-errors.md"
        )
    if reserve is not None and reserve.is_low:
        yield (
            f"{shown_size(reserve.left_bytes)} are left of the catalog's reserve: the disk is full."
            " Without it nothing is drained or evicted; free space: docs/runbooks/write-errors.md"
        )


def _of_steps(store: Store, policy: Policy, node: NodeSnapshot) -> Iterator[str]:
    every = policy.durable_every
    if every > 1:
        runs = store.look(saves.never_durable_runs, every, SKIPPED_STEPS)
        yield from (
            f"durable_every {every} divides no step of {run}: none is drained"
            for run in runs
            if not is_hidden(run)
        )
    capacity_bytes, totals = node.service.capacity_bytes, node.totals
    if totals.pins.size_bytes > PINNED_SHARE * capacity_bytes:
        yield (
            f"pinned steps take {shown_size(totals.pins.size_bytes)} of "
            f"{shown_size(capacity_bytes)}: `cachetier pin --list`, then `pin --remove` some"
        )
    if totals.unwanted.shards:
        unwanted = shown_size(totals.unwanted.size_bytes)
        yield (
            f"{unwanted} of {_named(totals.unwanted_saves)} are not drained: another save of "
            "the step was published first. They are removed after a day; "
            "`cachetier prune` collects them now"
        )


def _of_losses(store: Store, machine: Machine, now: float) -> Iterator[str]:
    lost_at = store.look(notes.newest_incident_at, LOG_LOST)
    if lost_at is not None and now - lost_at < KEPT_SECONDS:
        yield (
            f"the node lost its catalog's log, {shown_span(now - lost_at)} ago: shards of up to "
            "64 KiB, evicted ones, and seals, may be lost. Compare `cachetier ls RUN STEP` with "
            "what was saved"
        )
    aside = list(LostAndFound(Path(machine.cache_dir)).all())
    if aside:
        size = shown_size(sum(file.size_bytes for file in aside))
        yield (
            f"lost+found holds {counted(len(aside), 'file')}, {size}, that no row names: "
            "`cachetier fsck` says what they are. Files that are not needed are removed after a "
            "day, the rest after 30"
        )


def _of_replaced(store: Store, now: float) -> list[str]:
    codes = SaveSupersededError.code, StepPublishedError.code
    messages = store.look(figures.replaced_elsewhere, codes, now - NOTICED_SECONDS)
    named = _first(messages, "; ")
    return [f"steps of this node were replaced by another node's save: {named}"] if named else []


def _of_bucket(store: Store) -> list[str]:
    saves = store.look(copies.saves_to_send_again, DURABLE)
    named = _named([(save.run, save.step) for save in saves])
    what = "went missing in the bucket and are sent again: find out who deletes there"
    return [f"objects of {named} {what}"] if saves else []


def _named(saves: Sequence[tuple[str, int]]) -> str:
    return _first([f"{run}/{step}" for run, step in saves], ", ")


def _first(found: Sequence[str], between: str) -> str:
    more = len(found) - NAMED_STEPS
    return between.join(found[:NAMED_STEPS]) + (f" and {more} more" if more > 0 else "")
