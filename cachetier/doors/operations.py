"""The operations that every door offers, however the request came in."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from cachetier_client.identity.names import shown

from cachetier.access.access import Access
from cachetier.access.principals import Caller
from cachetier.errors import CachetierError, InvalidRequestError, NotFoundError, machine_failure
from cachetier.ingest.ingest import Ingest
from cachetier.model.objects import Mount
from cachetier.objects.base import ReadableObjects
from cachetier.reclaim.gc import Garbage
from cachetier.restore.restore import Restore
from cachetier.steps.incidents import Incidents
from cachetier.steps.operations import Checkpoints
from cachetier.steps.pending import Pending
from cachetier.steps.waits import Question, Waits
from cachetier.steps.whole_steps import WholeSteps
from cachetier.telemetry import events
from cachetier.telemetry.events import tell
from cachetier.telemetry.recent_events import RecentEvent
from cachetier.training_hints import Phases

log = logging.getLogger(__name__)

LISTED_AT_ONCE = 1000


def internal() -> CachetierError:
    """Return the error for a defect: a caller learns nothing of the service's insides."""
    return CachetierError("the service failed on this request")


def answerable(error: Exception, door: str, operation: str) -> CachetierError:
    """Return the error that a caller gets for an exception that is not ours.

    A machine that has nothing left is named. All else is a defect, and goes to the log.
    """
    failure = machine_failure(error, "the service")
    if failure is None:
        tell(log, events.REQUEST_FAILED, door=door, operation=operation, error=error)
    return failure or internal()


@dataclass(frozen=True, slots=True)
class S3Offer:
    """The settings an S3 client needs besides its key; ``url`` says where the door is.

    ``objects`` are those of the mounts. The door's buckets are as old as the node's directory,
    made at ``created_at``: a key that may list all buckets, and tells their age, few services have.
    """

    url: Callable[[], str | None] = lambda: None
    region: str = "us-east-1"
    mounts: tuple[Mount, ...] = ()
    objects: ReadableObjects | None = None
    created_at: float = 0.0

    def seen_by(self, caller: Caller) -> list[str]:
        """Return the names of the mounts that a caller has a part in."""
        return [each.name for each in self.mounts if caller.principal.sees(each.name)]

    def listed(self, wish: Mapping[str, Any]) -> dict[str, Any]:
        """Return a page of a mount's objects: see docs/protocol.md, ``objects``.

        Raises:
            NotFoundError: There is no such mount.
            RemoteError: Its bucket cannot be asked.
        """
        name, limit = wish.get("run"), wish.get("limit", LISTED_AT_ONCE)
        prefix, after = wish.get("prefix", ""), wish.get("after", "")
        mount = next((each for each in self.mounts if each.name == name), None)
        if mount is None or self.objects is None:
            hint = "`cachetier ls` names those that you have."
            raise NotFoundError(f"no mount is called {shown(name)}", hint=hint)
        if not isinstance(prefix, str) or not isinstance(after, str):
            raise InvalidRequestError("prefix and after are texts")
        if isinstance(limit, bool) or not isinstance(limit, int) or not 0 < limit <= LISTED_AT_ONCE:
            raise InvalidRequestError(f"limit is a number from 1 to {LISTED_AT_ONCE}")
        page = self.objects.list(mount, mount.prefix + prefix, "", after, limit)
        names = "key", "size_bytes", "etag", "level", "modified_at"
        objects = [{name: getattr(each, name) for name in names} for each in page.objects]
        return {"objects": objects, "next_after": page.next_after}

    def create_key(
        self,
        access: Access,
        caller: Caller,
        principal: object,
        mount: object,
        expires_seconds: float | None,
    ) -> dict[str, Any]:
        """Make a key as ``Access.create_s3_key``; return it with where it may be used.

        Raises:
            InvalidRequestError: ``mount`` is given, and the key would open none of this name.
        """
        owner = access.owner_of_key(caller, principal)
        seen = [each for each in self.mounts if owner.sees(each.name)]
        if mount is not None and all(each.name != mount for each in seen):
            raise InvalidRequestError(
                f"{owner.name} has no mount {shown(mount)}",
                hint=f"It has: {', '.join(each.name for each in seen) or 'none'}.",
            )
        key, secret = access.create_s3_key(owner, expires_seconds)
        places = [{"name": e.name, "bucket": e.bucket, "prefix": e.prefix} for e in seen]
        where = {"url": self.url(), "region": self.region, "mounts": places}
        return {**key.as_json(), "secret": secret, **where}


def _no_mounts(_wish: Mapping[str, Any]) -> dict[str, Any]:
    raise NotFoundError("this node has no mounts of the S3 door")


@dataclass(frozen=True, slots=True)
class Steering:
    """The operator's controls of the drain: see ``Drain.retry`` and ``Drain.limit_rate``.

    ``rate_limit`` is the one that was set, in bytes a second.
    """

    retry: Callable[[], None] = lambda: None
    limit_rate: Callable[[float | None], None] = lambda _rate: None
    rate_limit: Callable[[], float | None] = lambda: None


@dataclass(frozen=True, slots=True)
class Operations:
    """The node behind its doors.

    ``refuse_when_stopping`` raises StoppingError once work is no longer taken, and
    ``refuse_when_leaving`` once shards are not: what is begun may still be sealed, and flushed.
    ``putting`` counts a put that does not go through ``ingest``; ``leave`` has the node left.
    ``fell_back`` takes how many shards and bytes went past this service while it was away,
    ``failed`` which door answered with which code of an error. ``http_url`` says where the HTTP
    door is, if there is one; ``s3`` tells clients of the S3 door, ``settle``
    does what a person decides about its objects, ``steer`` what one wants of the drain.
    ``recent_events`` are the last of the log, the newest first. ``greeting`` is added to the answer
    to each client's ``hello``.
    """

    store_id: str
    access: Access
    ingest: Ingest
    restore: Restore
    whole_steps: WholeSteps
    checkpoints: Checkpoints
    waits: Waits
    incidents: Incidents
    phases: Phases
    garbage: Garbage
    status: Callable[[], dict[str, Any]]
    refuse_when_stopping: Callable[[], None]
    refuse_when_leaving: Callable[[], None]
    putting: Callable[[], AbstractContextManager[None]]
    leave: Callable[[bool], Question[Pending]]
    fell_back: Callable[[int, int], None] = lambda _shards, _size_bytes: None
    failed: Callable[[str, str], None] = lambda _door, _code: None
    http_url: Callable[[], str | None] = lambda: None
    s3: S3Offer = field(default_factory=S3Offer)
    settle: Callable[[Mapping[str, Any]], dict[str, Any]] = _no_mounts
    steer: Steering = field(default_factory=Steering)
    recent_events: Callable[[], Sequence[RecentEvent]] = tuple
    greeting: dict[str, Any] = field(default_factory=dict)
