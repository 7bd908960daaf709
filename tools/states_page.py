"""The tables of docs/states.md, from the tables of ``cachetier.model.lifecycle``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from cachetier.model.lifecycle import (
    TABLES,
    CopyEvent,
    CopyState,
    ObjectEvent,
    ObjectState,
    PartEvent,
    PartState,
    RowEvent,
    RowState,
    SaveEvent,
    SaveState,
    ShardEvent,
    ShardState,
)
from tools.pages import DOCS, table, with_parts

PAGE = DOCS / "states.md"

# The states in which rows begin, by what makes them.
_BEGINNINGS: Mapping[type[RowEvent], Mapping[RowState, str]] = {
    SaveEvent: {
        SaveState.OPEN: "first put or seal",
        SaveState.LOCAL_ONLY: "first put or seal, by policy",
        SaveState.PUBLISHED: "read at the durable remote",
        SaveState.REPLICATED: "read at a replica",
        SaveState.OBJECTS: "first put into a mount",
    },
    CopyEvent: {
        CopyState.OPEN: "the save begins, or the replica is new",
        CopyState.PUBLISHED: "read at the replica",
    },
    PartEvent: {
        PartState.OPEN: PartEvent.PUT,
        PartState.SEALED: PartEvent.SEAL,
        PartState.ABORTED: PartEvent.ABORT,
    },
    ShardEvent: {
        ShardState.DIRTY: "commit",
        ShardState.EVICTED: "commit at a remote, or read there",
    },
    ObjectEvent: {ObjectState.DIRTY: "put or deletion"},
}


def documents() -> dict[Path, str]:
    """Return the page with a table of each kind of row."""
    parts = {
        noun: table(("event", "from", "to"), _moves(events)) for events, (noun, _) in TABLES.items()
    }
    return {PAGE: with_parts(PAGE, parts)}


def _moves(events: type[RowEvent]) -> Iterator[tuple[str, str, str]]:
    """Yield what makes a row, then each event with the states that it changes and the next one."""
    for state, made_by in _BEGINNINGS[events].items():
        yield made_by, "", f"*{state}*"
    for event, moves in TABLES[events][1].items():
        changed: dict[RowState, list[str]] = {}
        for before, reached in moves.items():
            if before is not reached:
                changed.setdefault(reached, []).append(before)
        for reached, states in changed.items():
            yield event, ", ".join(states), f"*{reached}*"
