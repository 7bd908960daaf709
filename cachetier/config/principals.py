"""The settings of one principal: a table ``[[principal]]``, or JSON in ``CACHETIER_PRINCIPAL``.

Source: docs/security.md, "Who may do what".
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from pathlib import Path

from cachetier.access.principals import ALLOWED, EVERY_RUN, OWNER, SCRAPER, Principal, Quota
from cachetier.access.roles import Role
from cachetier.config.fields import record, records, required, setting
from cachetier.config.types import (
    CAPACITY,
    PATH,
    TEXT,
    UIDS,
    checked,
    listed,
    number,
    one_of,
    optional,
    refuse_share,
    whole,
)
from cachetier.parsers import capacity_of

_TAKEN = (ALLOWED, SCRAPER.name)
_NAME = re.compile(r"[a-z][a-z0-9-]{0,30}", re.ASCII)


def _checked_name(name: str) -> None:
    if not _NAME.fullmatch(name) or name in _TAKEN:
        raise ValueError(
            f"{name!r} cannot be the name of a principal: a lower-case letter first, then up to 30 "
            f"of a-z 0-9 -, and none of {', '.join(_TAKEN)}"
        )


def _checked_size(size: str) -> None:
    refuse_share(size, "the bytes of a principal are a size: '200 GB'")


@dataclass(frozen=True, kw_only=True)
class PrincipalSettings:
    """Somebody who may come in: how they are known, what they may touch, how much they may have."""

    name: str = required(checked(TEXT, _checked_name), "How errors and the audit log call it.")
    role: Role = setting(one_of(*Role), Role.WRITE, "`scrape`, `read`, `write` or `admin`.")
    runs: tuple[str, ...] = setting(
        listed(TEXT, r"[,\s]+"), EVERY_RUN, "Globs of the runs that it may touch: `team-a-*`."
    )
    uid: frozenset[int] = setting(UIDS, frozenset(), "Users that are it, at the socket.")
    gid: frozenset[int] = setting(UIDS, frozenset(), "Groups whose members are it.")
    socket: Path | None = setting(
        optional(PATH), None, "A socket of its own: who can reach it, is it."
    )
    bytes: str | None = setting(
        optional(checked(CAPACITY, _checked_size)),
        None,
        "The most that its runs have here not yet in the remote, or pinned: `200 GB`.",
    )
    shards: int | None = setting(optional(whole(1)), None, "Likewise, in shards.")
    open_puts: int | None = setting(optional(whole(1)), None, "The most puts it has begun at once.")
    connections: int | None = setting(
        optional(whole(1)), None, "The most connections and requests it has at once."
    )
    drain_weight: float = setting(
        number(above=0),
        1.0,
        "Its share of the drain beside other principals; nothing with all runs.",
    )

    def __post_init__(self) -> None:
        own = ("name", "role", "socket")
        others = [each for each in fields(self) if each.name not in own]
        plain = all(getattr(self, each.name) == each.default for each in others)
        if self.name == OWNER and not (plain and self.role is Role.ADMIN and self.socket):
            raise ValueError(f"`{OWNER}` has the role admin and a `socket`, and nothing else")

    def principal(self) -> Principal:
        size_bytes = None if self.bytes is None else capacity_of(self.bytes, 0)
        return Principal(
            self.name,
            self.role,
            runs=self.runs,
            uids=self.uid,
            gids=self.gid,
            socket=self.socket,
            quota=Quota(size_bytes, self.shards, self.open_puts, self.connections),
            drain_weight=self.drain_weight,
        )


_ONE = record(PrincipalSettings, "`name` is not set: give each principal one")
PRINCIPALS = records(_ONE, "principals", "principal")
