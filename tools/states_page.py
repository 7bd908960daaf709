"""The diagrams of docs/states.md, from the tables of ``cachetier.model.lifecycle``."""

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
from tools.pages import DOCS, with_parts

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
    """Return the page with a diagram of each kind of row."""
    parts = {noun: _diagram(events) for events, (noun, _) in TABLES.items()}
    return {PAGE: with_parts(PAGE, parts)}


def _diagram(events: type[RowEvent]) -> str:
    lines = "\n".join(f"    {line}" for line in _arrows(events))
    return f"```mermaid\nstateDiagram-v2\n{lines}\n```"


def _arrows(events: type[RowEvent]) -> Iterator[str]:
    """Yield the arrows between two states, each with all events that go along it."""
    for state, made_by in _BEGINNINGS[events].items():
        yield f"[*] --> {state}: {made_by}"
    labels: dict[tuple[RowState, RowState], list[RowEvent]] = {}
    for event, moves in TABLES[events][1].items():
        for before, reached in moves.items():
            if before is not reached:
                labels.setdefault((before, reached), []).append(event)
    for (before, reached), along in labels.items():
        yield f"{before} --> {reached}: {', '.join(along)}"
