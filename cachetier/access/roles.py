"""The one table of what an operation needs; every door asks it by the operation's name.

Source: docs/security.md, "Roles".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, StrEnum


class Role(StrEnum):
    """A role; each may do everything that the roles before it may do."""

    SCRAPE = "scrape"
    READ = "read"
    WRITE = "write"
    ADMIN = "admin"

    def covers(self, other: Role) -> bool:
        return _ORDER.index(self) >= _ORDER.index(other)


_ORDER = tuple(Role)


class Scope(Enum):
    """The kind of thing that an operation is about.

    ``RUN``: the run that it names. ``NODE``: all runs, whatever it names. ``RUN_OR_NODE``: the run
    that it names, or all. ``OWN``: only what the caller has a part in, so that its answer is cut
    down to that.
    """

    RUN = "run"
    NODE = "node"
    RUN_OR_NODE = "run or node"
    OWN = "own"


@dataclass(frozen=True, slots=True)
class Need:
    """The role and extent an operation needs; ``audited``: the audit log lists its successes."""

    role: Role
    extent: Scope
    audited: bool = False


_READ_RUN = Need(Role.READ, Scope.RUN)
_WRITE_RUN = Need(Role.WRITE, Scope.RUN, audited=True)
_HINT = Need(Role.WRITE, Scope.OWN)  # of a rank, about itself
_ADMIN = Need(Role.ADMIN, Scope.NODE, audited=True)

OPERATIONS: Mapping[str, Need] = {
    "put": _WRITE_RUN,
    "begin": Need(Role.WRITE, Scope.RUN),
    # What is staged belongs to the connection that was let begin it.
    "extend": Need(Role.WRITE, Scope.OWN),
    "commit": Need(Role.WRITE, Scope.OWN, audited=True),
    "abort": Need(Role.WRITE, Scope.OWN),
    "seal": _WRITE_RUN,
    "abort_rank": _WRITE_RUN,
    "delete_shard": _WRITE_RUN,
    "delete_step": _WRITE_RUN,
    "pin": _WRITE_RUN,
    "unpin": _WRITE_RUN,
    "flush": Need(Role.WRITE, Scope.RUN_OR_NODE, audited=True),
    "open": Need(Role.READ, Scope.RUN, audited=True),
    "restore_step": Need(Role.READ, Scope.RUN, audited=True),
    "arrived": Need(Role.READ, Scope.RUN),
    "read_block": Need(Role.READ, Scope.RUN, audited=True),
    "verify": _READ_RUN,
    "wait": _READ_RUN,
    "steps": _READ_RUN,
    "branches": _READ_RUN,
    "latest": _READ_RUN,
    "unflushed": _READ_RUN,
    "step": _READ_RUN,
    "objects": _READ_RUN,  # of a mount, which is what a run is elsewhere
    "runs": Need(Role.READ, Scope.OWN),
    "pins": Need(Role.READ, Scope.OWN),
    "incidents": Need(Role.READ, Scope.OWN),
    "whoami": Need(Role.SCRAPE, Scope.OWN),
    "status": Need(Role.READ, Scope.NODE),
    "metrics": Need(Role.SCRAPE, Scope.NODE),
    # Of the S3 door, where a mount is what a run is elsewhere.
    "s3_buckets": Need(Role.READ, Scope.OWN),
    "s3_get": Need(Role.READ, Scope.RUN, audited=True),
    "s3_head": _READ_RUN,
    "s3_list": _READ_RUN,
    "s3_put": _WRITE_RUN,
    "s3_delete": _WRITE_RUN,
    "s3_delete_objects": Need(Role.WRITE, Scope.RUN),  # each key of it is an ``s3_delete``
    "s3_upload": _WRITE_RUN,
    "s3_settle": _WRITE_RUN,
    "s3_key_create": Need(Role.READ, Scope.OWN, audited=True),  # for others: an admin
    "phase": _HINT,
    "fallback": _HINT,
    "collect": _ADMIN,
    "forget": _ADMIN,
    "leave": _ADMIN,
    "drain_retry": _ADMIN,
    "drain_rate": _ADMIN,
    "link_create": Need(Role.READ, Scope.OWN, audited=True),  # a session shows runs and events
    "token_create": _ADMIN,
    "token_list": Need(Role.ADMIN, Scope.NODE),
    "token_revoke": _ADMIN,
}
