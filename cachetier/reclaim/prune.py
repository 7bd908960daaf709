"""Keep the catalog small: forget saves that ended, and incidents, by a stated rule.

Of each run the 100 newest saves stay, and the newest that is published; of a run that has saved
nothing for 30 days only the latter and one more. Others go a day after they ended, if
``catalog.pruning`` finds that nothing needs their rows. Incidents stay for 30 days, and no more
than 10,000 of them. So the catalog is as large as a day of saving makes it, whatever was saved
before; SQLite uses the freed pages again.
"""

from __future__ import annotations

from cachetier.local.catalog import notes, saves
from cachetier.local.store import Store

DAY_SECONDS = 86_400.0
FORGET_AFTER_SECONDS = DAY_SECONDS
IDLE_SECONDS = 30 * DAY_SECONDS
KEPT_SAVES = 100
KEPT_INCIDENTS = 10_000
# What one transaction takes, and one call: a put waits for no longer than the first.
AT_ONCE = 1000
SAVES_A_ROUND = 500


def prune_catalog(store: Store, now: float) -> int:
    """Forget what there is to forget, up to a round; return how many saves went."""
    if store.fenced is not None:
        return 0
    before, idle_before = now - FORGET_AFTER_SECONDS, now - IDLE_SECONDS
    store.write(notes.forget_incidents, idle_before, KEPT_INCIDENTS, AT_ONCE)
    forgotten = 0
    for run in store.read(saves.runs):
        idle = store.read(saves.newest_at, run) < idle_before
        left = SAVES_A_ROUND - forgotten
        keep = 1 if idle else KEPT_SAVES
        for number in store.read(saves.forgettable_saves, run, before, keep, left):
            while not store.write(saves.forget_some, number, before, AT_ONCE):
                pass
            forgotten += 1
    return forgotten
