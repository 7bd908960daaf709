"""What the scheduler looks at, read from the catalog: bounded, whatever lies there.

The reads follow one another, so each save is seen parts first: nothing is added to a sealed part.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from cachetier.drain.scheduler import SaveView
from cachetier.errors import CatalogDamagedError
from cachetier.local import queries
from cachetier.local.store import Store
from cachetier.model.checkpoint import PartState, Save, SaveState

WINDOW_SHARDS = 32


def unfinished(
    store: Store,
    blocked: Mapping[int, int],
    on_damage: Callable[[Save, CatalogDamagedError], None],
    count: int = 0,
) -> list[SaveView]:
    """Return every unfinished save with a window of its dirty shards, and what to sweep up.

    Args:
        store: Where from.
        blocked: How many shards of each save cannot be taken now; the window is wider by as many,
            so that they do not hide the others.
        on_damage: Told of a save whose rows are damaged; it must not keep the others waiting.
        count: How many items are asked for; a save that has as many shows them all, so that none of
            a later one goes between.
    """
    views = []
    window = max(WINDOW_SHARDS, count)
    for save in store.read(queries.unfinished_saves):
        try:
            views.append(_view(store, save, window + blocked.get(save.number, 0)))
        except CatalogDamagedError as error:
            on_damage(save, error)
    return [*views, *map(SaveView, store.read(queries.unswept_saves))]


def _view(store: Store, save: Save, limit: int) -> SaveView:
    if save.state is SaveState.DELETED:
        return SaveView(save)
    number = save.number
    parts = tuple(store.read(lambda sql: queries.parts_of(sql, number)))
    dirty = tuple(store.read(lambda sql: queries.dirty_shards_of(sql, number, limit)))
    has_all = len(dirty) < limit
    unsound: frozenset[int] = frozenset()
    if has_all and any(p.state is PartState.SEALED and not p.uploaded for p in parts):
        unsound = store.read(lambda sql: queries.unsound_ranks(sql, number))
    return SaveView(save, parts, dirty, has_all, unsound)
