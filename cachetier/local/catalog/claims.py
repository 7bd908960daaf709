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
    counter = sql.execute("SELECT max(seq) FROM sqlite_sequence WHERE name = 'shards'").get or 0
    query = "SELECT epoch, nonce, before FROM store_claims WHERE remote = ?"
    epoch, *nonces = sql.execute(query, (remote,)).fetchone() or ("",)
    return OwnClaim(epoch, tuple(filter(None, nonces)), counter)


def intend_claim(
    sql: apsw.Connection, remote: str, epoch: str, nonce: str, before: str, now: float
) -> None:
    """Write down what is about to be claimed over ``before``: a lost reply is then our own.

    Another epoch than before means that this directory went back in time, or was copied.
    """
    sql.execute(
        "INSERT INTO store_claims (remote, epoch, nonce, before, noticed_at) "
        "VALUES (?1, ?2, ?3, ?4, iif(?2 = '', NULL, ?5)) "
        "ON CONFLICT (remote) DO UPDATE SET nonce = excluded.nonce, before = excluded.before, "
        "noticed_at = iif(epoch = excluded.epoch, noticed_at, ?5), epoch = excluded.epoch",
        (remote, epoch, nonce, before, now),
    )


def noticed_since(sql: apsw.Connection, since: float) -> list[tuple[str, float]]:
    """Return (remote, when) of what was noticed since then."""
    query = "SELECT remote, noticed_at FROM store_claims WHERE noticed_at >= ? ORDER BY remote"
    return [(remote, at) for remote, at in sql.execute(query, (since,))]
