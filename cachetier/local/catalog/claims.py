"""What this cache directory claims of its store id at each remote, and what it found out by that.

The functions that write run inside a transaction (``Store.write``).

Source: docs/design/0019-store-claims.md.
"""

from __future__ import annotations

from dataclasses import dataclass

import apsw


@dataclass(frozen=True, slots=True)
class OwnClaim:
    """The claim on a store id at one remote, as this catalog knows it.

    Attributes:
        epoch: Which life of the disk it is; empty for the first.
        nonces: What the document may bear that this catalog knows of: the last that was written
            down, and the one before, as the last may never have got there.
        counter: The highest version of a shard, ever: a catalog that goes back falls behind.
    """

    epoch: str = ""
    nonces: tuple[str, ...] = ()
    counter: int = 0


def own_claim(sql: apsw.Connection, remote: str) -> OwnClaim:
    """Return the claim as it was written down last."""
    query = "SELECT seq FROM sqlite_sequence WHERE name = 'shards'"
    found = sql.execute(query).fetchone()
    counter = int(found[0]) if found else 0
    row = sql.execute(
        "SELECT epoch, nonce, before FROM store_claims WHERE remote = ?", (remote,)
    ).fetchone()
    if row is None:
        return OwnClaim(counter=counter)
    return OwnClaim(row[0], tuple(nonce for nonce in row[1:] if nonce), counter)


def intend_claim(sql: apsw.Connection, remote: str, epoch: str, nonce: str, before: str) -> None:
    """Write down what is about to be claimed over ``before``: a lost reply is then our own."""
    sql.execute(
        "INSERT INTO store_claims (remote, epoch, nonce, before) VALUES (?, ?, ?, ?) "
        "ON CONFLICT (remote) DO UPDATE SET epoch = excluded.epoch, nonce = excluded.nonce, "
        "before = excluded.before",
        (remote, epoch, nonce, before),
    )


def begin_epoch(sql: apsw.Connection, remote: str, epoch: str, now: float) -> None:
    """Write down that this directory went back in time, or was copied: it begins anew."""
    intend_claim(sql, remote, epoch, "", "")
    sql.execute("UPDATE store_claims SET noticed_at = ? WHERE remote = ?", (now, remote))


def noticed_since(sql: apsw.Connection, since: float) -> list[tuple[str, float]]:
    """Return (remote, when) of what was noticed since then."""
    query = "SELECT remote, noticed_at FROM store_claims WHERE noticed_at >= ? ORDER BY remote"
    return [(remote, at) for remote, at in sql.execute(query, (since,))]
