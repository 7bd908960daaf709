"""The scheduler's input, read from the state of one remote: bounded, whatever lies there.

The reads follow one another, so each save is seen parts first: nothing is added to a sealed part.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from cachetier.drain.schedule.object_order import MountView, goes_in_parts
from cachetier.drain.schedule.scheduler import SaveView
from cachetier.errors import CatalogDamagedError
from cachetier.local.catalog import copies, objects, saves, shards
from cachetier.local.catalog.shards import ALL, beside_small_of, small_of
from cachetier.model.checkpoint import Save
from cachetier.model.composing import contents_of_twins
from cachetier.model.lifecycle import DRAINED_SAVES, PartState
from cachetier.model.packs import Member, Packable, next_pack

if TYPE_CHECKING:
    from cachetier.drain.serve.remote_state import RemoteState
    from cachetier.local.store import Store

WINDOW_SHARDS = 32
PACKABLE_SHARDS = 256

NamesInFlight = Callable[[int], Collection[str]]


def unfinished(
    store: Store,
    remote_state: RemoteState,
    blocked: Mapping[int, int],
    on_damage: Callable[[Save, CatalogDamagedError], None],
    count: int = 0,
    *,
    beside_packs: NamesInFlight | None = None,
    copying: bool = False,
) -> list[SaveView]:
    """Return every unfinished save with a window of the shards to send, and what to sweep up.

    Args:
        store: Where from.
        remote_state: What the remote has of it.
        blocked: How many shards of each save cannot be taken now; the window is wider by as many,
            so that they do not hide the others.
        on_damage: Called with a save whose rows are damaged; it must not keep the others waiting.
        count: How many items are asked for; a save that has as many shows them all, so that none of
            a later one goes between.
        beside_packs: Where small shards of sealed ranks go in packs, and are shown rank by rank:
            names of a save's shards that are on their way already.
        copying: The remote copies for us: it is shown which shards have the same bytes.
    """
    views = []
    window = max(WINDOW_SHARDS, count)
    for save in remote_state.unfinished():
        try:
            limit = window + blocked.get(save.number, 0)
            view = _view(store, remote_state, save, limit, beside_packs=beside_packs)
            views.append(_with_twins(store, remote_state, view) if copying else view)
        except CatalogDamagedError as error:
            on_damage(save, error)
    return views


def mounts_to_show(
    store: Store,
    remote_state: RemoteState,
    mounts: Collection[str],
    blocked: Mapping[int, int],
    on_damage: Callable[[Save, CatalogDamagedError], None],
    count: int,
) -> list[SaveView]:
    """Return what each of ``mounts`` has to show, by a window of its oldest versions.

    For the rest see ``unfinished``.
    """
    views = []
    for run, number in store.read(objects.mount_saves).items():
        save = store.read(saves.save_by_number, number)
        if save is None or run not in mounts:
            continue
        limit = max(WINDOW_SHARDS, count) + blocked.get(number, 0)
        try:
            unshown = tuple(store.read(objects.objects_to_show, number, limit))
            large = [each for each in unshown if goes_in_parts(each)]
            sent = store.read(objects.sent_ahead, large, remote_state.remote)
            held = store.read(objects.is_held, number)
        except CatalogDamagedError as error:
            on_damage(save, error)
        else:
            views.append(SaveView(save, mount=MountView(unshown, sent, held)))
    return views


def _view(
    store: Store,
    remote_state: RemoteState,
    save: Save,
    limit: int,
    *,
    beside_packs: NamesInFlight | None,
) -> SaveView:
    if save.state not in DRAINED_SAVES:
        return SaveView(save)
    number = save.number
    parts = tuple(remote_state.parts(number))
    sealed = [part.rank for part in parts if part.state is PartState.SEALED]
    packable = _packable(remote_state, number, sealed, beside_packs(number)) if beside_packs else ()
    shard_filter = beside_small_of([each.rank for each in packable]) if packable else ALL
    dirty = tuple(remote_state.wanted(number, limit, shard_filter))
    has_all = len(dirty) < limit
    unsound: frozenset[int] = frozenset()
    if has_all and any(p.state is PartState.SEALED and not p.uploaded for p in parts):
        unsound = store.read(shards.unsound_ranks, number)
    return SaveView(save, parts, dirty, has_all, unsound, packable)


def _with_twins(store: Store, remote_state: RemoteState, view: SaveView) -> SaveView:
    """Show in ``view`` what several of its shards have in common and the remote has not yet."""
    number, remote = view.save.number, remote_state.remote
    missing = frozenset(
        twins
        for twins in contents_of_twins(view.dirty)
        if not store.read(copies.has_content, number=number, twins=twins, remote=remote)
    )
    return replace(view, twins=missing)


def _packable(
    remote_state: RemoteState, number: int, ranks: Sequence[int], busy: Collection[str]
) -> tuple[Packable, ...]:
    """Return those of ``ranks`` that have small shards to send; their size is the least it is."""
    found = []
    for rank in ranks:
        wanted = remote_state.wanted(number, PACKABLE_SHARDS + len(busy), small_of(rank))
        small = [shard for shard in wanted if shard.name not in busy]
        if small:
            members = next_pack(map(Member.of, small))
            size_bytes = sum(member.size_bytes for member in members)
            found.append(Packable(rank, size_bytes, small[0].committed_at))
    return tuple(found)
