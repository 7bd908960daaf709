"""Reads of the catalog for who completes the seals of clients that went past this service."""

from __future__ import annotations

import apsw

from cachetier.local.catalog import queries
from cachetier.model.checkpoint import Save

_GROWING = "(parts.state = 'open' OR (parts.state = 'sealed' AND parts.follows))"


def unsealed_parts(sql: apsw.Connection) -> list[tuple[Save, int]]:
    """Return (save, rank) of each part that may still grow here, by arrival."""
    return _parts(sql, _GROWING)


def sealed_parts(sql: apsw.Connection) -> list[tuple[Save, int]]:
    """Return (save, rank) of each sealed part of a save that is not published, by arrival."""
    return _parts(sql, "parts.state = 'sealed' AND NOT parts.follows")


def _parts(sql: apsw.Connection, which: str) -> list[tuple[Save, int]]:
    query = (
        "SELECT parts.save, parts.rank FROM parts JOIN saves ON saves.number = parts.save "
        f"WHERE saves.state IN ('open', 'local_only') AND {which} ORDER BY parts.save, parts.rank"
    )
    found = []
    rows: list[tuple[int, int]] = list(sql.execute(query))
    for number, rank in rows:
        save = queries.save_by_number(sql, number)
        if save is not None:
            found.append((save, rank))
    return found
