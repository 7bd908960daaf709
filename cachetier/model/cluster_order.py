"""The rules of the order across nodes: notes, and what a marker waits for.

A *note* in the bucket says that a node has an *epoch*: objects that it acknowledged, and that are
not all visible yet. A *marker* may speak of what other nodes acknowledged, so it waits for the
notes of others that it found when it was acknowledged.

Source: docs/design/0030-objects.md, "Order across nodes".
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from dataclasses import asdict, dataclass

UNLISTED = "?"  # of a marker that was acknowledged while nobody could look for notes
NOTES = ".cachetier/order/"


@dataclass(frozen=True, slots=True)
class Note:
    """The contents of a note: its owner, and since when (by that node's clock, for people only)."""

    host: str
    store_id: str
    opened_at: float

    def as_bytes(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @classmethod
    def of_bytes(cls, body: bytes) -> Note:
        """Undo ``as_bytes``.

        Raises:
            ValueError: It is no note.
        """
        try:
            fields = json.loads(body)
            return cls(str(fields["host"]), str(fields["store_id"]), float(fields["opened_at"]))
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError("no note of ours") from error


def notes_prefix(prefix: str) -> str:
    """Return what the keys of a mount's notes begin with."""
    return f"{prefix}{NOTES}"


def note_name(store_id: str, epoch: str) -> str:
    return f"{store_id}-{epoch}"


def is_of_store(name: str, store_id: str) -> bool:
    return name.rpartition("-")[0] == store_id


def waits_for(names: Iterable[str], store_id: str) -> str | None:
    """Return what a marker waits for that finds the notes ``names``; None for nobody."""
    return "\n".join(sorted(name for name in names if not is_of_store(name, store_id))) or None


def names_in(waits: str | None) -> tuple[str, ...]:
    """Return the notes that a marker waits for."""
    return tuple(waits.split("\n")) if waits and waits != UNLISTED else ()


def still_waits_for(waits: str, there: Collection[str]) -> str | None:
    """Return what is left to wait for while the notes ``there`` are; a new one never joins."""
    return "\n".join(name for name in names_in(waits) if name in there) or None
