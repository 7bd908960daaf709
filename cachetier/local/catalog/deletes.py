"""What deletes saves and shards here; the shards come back, for their files to go.

Each function runs inside a transaction (``Store.write``).
"""

from __future__ import annotations

import apsw

from cachetier.errors import NotFoundError, SealedError
from cachetier.local.catalog import gc_queries, pins, puts, queries, statements
from cachetier.model.checkpoint import OPEN_STATES, SaveState
from cachetier.model.shard import Shard

_REPLACED = (SaveState.SUPERSEDED, SaveState.REFUSED)


def delete_step(sql: apsw.Connection, run: str, step: int) -> list[Shard]:
    """Delete every save of a step here; the drain then deletes it remotely.

    Raises:
        PinnedError: The step is pinned.
    """
    pins.refuse_pinned(sql, run, step)
    saves = queries.saves_of(sql, run, step)
    return [shard for save in saves for shard in delete_save(sql, save.number)]


def delete_incomplete(sql: apsw.Connection, number: int) -> list[Shard] | None:
    """Delete a save that was ended in the bucket.

    None if it is pinned, or was completed here meanwhile.
    """
    return delete_save(sql, number) if gc_queries.is_unwanted(sql, number) else None


def delete_replaced(sql: apsw.Connection, number: int) -> list[Shard] | None:
    """Delete a save that another one replaced, with its objects; None if it counts again."""
    save = queries.save_by_number(sql, number)
    return delete_save(sql, number) if save is not None and save.state in _REPLACED else None


def delete_local_only(sql: apsw.Connection, number: int) -> list[Shard]:
    """Forget a local-only save; nothing happens to one that is wanted or pinned by now.

    Remotely nothing is deleted: another node may have let the step go on.
    """
    save = statements.require_save(sql, number)
    if save.state is not SaveState.LOCAL_ONLY or pins.is_pinned(sql, save.run, save.step):
        return []
    shards = delete_save(sql, number)
    sql.execute("DELETE FROM replications WHERE save = ?", (number,))
    sql.execute("UPDATE saves SET location = NULL WHERE number = ?", (number,))
    return shards


def delete_save(sql: apsw.Connection, number: int) -> list[Shard]:
    """Delete a save, here and then, by the drains, from every remote."""
    shards = _delete_shards(sql, number)
    sql.execute("DELETE FROM parts WHERE save = ?", (number,))
    statements.set_save_state(sql, number, SaveState.DELETED)
    # An empty location is one that nobody here knows: whoever deletes looks for it there.
    sql.execute(
        "INSERT INTO replications (save, remote, state, location) "
        "SELECT ?, name, 'deleted', '' FROM replicas WHERE true "
        "ON CONFLICT (save, remote) DO UPDATE SET state = 'deleted', due = 1, "
        "location = coalesce(location, '')",
        (number,),
    )
    return shards


def delete_superfluous_shards(sql: apsw.Connection, number: int) -> list[Shard]:
    """Drop the shards of a save that was superseded or refused; the save is remembered."""
    save = statements.require_save(sql, number)
    return _delete_shards(sql, number) if save.state in _REPLACED else []


def delete_shard(sql: apsw.Connection, run: str, step: int, name: str) -> Shard:
    """Remove one shard of an unsealed part.

    Raises:
        NotFoundError: There is none.
        SealedError: Its rank sealed.
    """
    shard = queries.visible_shard(sql, run, step, name)
    if shard is None:
        raise NotFoundError(f"no shard {name} in step {step}", run=run, step=step, name=name)
    save = statements.require_save(sql, shard.save)
    if puts.is_final(sql, save.number, shard.rank) or save.state not in OPEN_STATES:
        raise SealedError(
            f"shard {name} belongs to a sealed part",
            hint="Delete the whole step instead.",
            run=run,
            step=step,
            name=name,
        )
    statements.delete_shard(sql, shard.version)
    return shard


def _delete_shards(sql: apsw.Connection, number: int) -> list[Shard]:
    shards = queries.shards_of(sql, number)
    sql.execute("DELETE FROM shards WHERE save = ?", (number,))
    return shards
