"""Principals: who may come in, by what they are known, and what they may touch.

Nobody owns a run for having come first: what a principal may touch are the globs of its settings,
the same on each node.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

from cachetier_client.identity.names import MOUNT_MARK, base_run

from cachetier.access.roles import Need, Role, Scope
from cachetier.parsers import network_of

EVERY_RUN = ("*",)


@dataclass(frozen=True, slots=True)
class Quota:
    """The most that a principal may have at once; None: as much as there is.

    ``size_bytes`` and ``shards`` count what is not clean yet in its runs: clean copies make room.
    """

    size_bytes: int | None = None
    shards: int | None = None
    open_puts: int | None = None
    connections: int | None = None


@dataclass(frozen=True)
class Principal:
    """Somebody with a role on some runs.

    Of ``uids``, ``gids`` and ``socket`` a peer must meet each kind that is given. Without any of
    them a principal is met by its tokens alone.
    """

    name: str
    role: Role
    runs: tuple[str, ...] = EVERY_RUN
    uids: frozenset[int] = frozenset()
    gids: frozenset[int] = frozenset()
    socket: Path | None = None
    quota: Quota = field(default_factory=Quota)
    drain_weight: float = 1.0

    def sees(self, run: str) -> bool:
        """Return whether a run is any of its business, and with it the run's branches.

        A mount of the S3 door goes by its name, as if it were a run.
        """
        name = base_run(run).removeprefix(MOUNT_MARK)
        return self.sees_all or any(fnmatchcase(name, glob) for glob in self.runs)

    @property
    def sees_all(self) -> bool:
        return "*" in self.runs

    def may(self, need: Need, run: str | None) -> bool:
        """Return whether it may do what has ``need``, on ``run``."""
        if not self.role.covers(need.role):
            return False
        if need.extent is Scope.OWN:
            return True
        of_node = need.extent is Scope.NODE or run is None
        return self.sees_all if of_node else self.sees(run or "")

    def is_peer(self, socket: Path | None, uid: int, gids: Collection[int]) -> bool:
        """Return whether a process that connected to ``socket`` is this principal.

        ``socket`` is None for the one of the service, which those with one of their own do not use.
        """
        if self.socket != socket or not (self.uids or self.gids or self.socket):
            return False
        return (not self.uids or uid in self.uids) and (
            not self.gids or not self.gids.isdisjoint(gids)
        )


@dataclass(frozen=True, slots=True)
class Caller:
    """A principal, and what is known of the process or machine that speaks for it."""

    principal: Principal
    uid: int | None = None
    pid: int | None = None
    token: str | None = None
    address: str | None = None
    session: str | None = None  # of a browser, which somebody began who had the uid or the token

    @property
    def known(self) -> dict[str, int | str]:
        """The known properties of the process or machine, by name."""
        names = ("uid", "pid", "token", "address", "session")
        found = {name: getattr(self, name) for name in names}
        return {name: value for name, value in found.items() if value is not None}

    def own(self, name: str) -> str:
        """Return a name that the caller gave itself, as no other principal can have given it."""
        return f"{self.principal.name}/{name}"

    @property
    def principal_name(self) -> str:
        return self.principal.name

    @property
    def holder(self) -> str:
        """Whom limits count against: one user of the principal, or token at an address."""
        who = f"user {self.uid}" if self.uid is not None else self._source
        return f"{self.principal.name}, {who}"

    @property
    def _source(self) -> str:
        return f"{self.session or self.token} at {network_of(self.address or '')}"

    @property
    def shown(self) -> str:
        """The caller as a person reads it."""
        return self.holder if self.pid is None else f"{self.holder}, process {self.pid}"


OWNER = "owner"
ALLOWED = "allowed"
SCRAPER = Principal("scraper", Role.SCRAPE)


def principals_of(
    configured: Sequence[Principal], allowed_uids: Collection[int], admin_socket: Path | None
) -> tuple[Principal, ...]:
    """Return all principals of a service, in the order in which a peer is compared with them.

    The service's own user can do everything anyhow, by the files: it is the owner, if no principal
    of the settings claims it. Where there is an admin socket, it is an admin only there.
    """
    found = list(configured)
    own = frozenset({os.getuid()})
    if allowed_uids:
        found.append(Principal(ALLOWED, Role.WRITE, uids=frozenset(allowed_uids) - own))
    if admin_socket is not None:
        found.append(Principal(OWNER, Role.WRITE, uids=own))
    found.append(Principal(OWNER, Role.ADMIN, uids=own, socket=admin_socket))
    return tuple(found)
