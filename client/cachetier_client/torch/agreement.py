"""The agreement of all ranks at a restart: the newest step that every one of them can restore.

No collective is entered: see ``cachetier_client.torch.rounds``. A rank that fails, that has ended
or that never comes ends the call for all ranks, with one error that names it, by the deadline.

Calls on one process group are made in the same order on all its ranks, as collectives are.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from typing import Any, Literal, SupportsIndex, TypeVar, cast, get_args

import torch.distributed as dist

from cachetier_client.bucket_format import publication
from cachetier_client.calls.unflushed import is_ignored, merged, verdict
from cachetier_client.client import Client
from cachetier_client.clock import SystemClock
from cachetier_client.deadline import Deadline
from cachetier_client.default import default_client
from cachetier_client.errors import InvalidRequestError, NotDurableError, RemoteError, error_from
from cachetier_client.identity.names import checked_step
from cachetier_client.identity.ranks import place_of
from cachetier_client.results import Level, StepInfo, UnflushedStep
from cachetier_client.torch.rounds import AgreementError, GroupStore, RankGroup, Round

RestorableLevel = Literal["any", "local", "replicated", "durable"]
AGREE_SECONDS = 60.0
WAIT_SECONDS = 600.0
_LOOK_SECONDS = 2.0  # how long a rank waits at its service before it looks after the others
_T = TypeVar("_T")
_Saved = tuple[int, str, int, tuple[int, ...]]  # step, save id, world size, ranks there

__all__ = ["AgreementError", "agree", "latest_common_step", "wait_for_step"]


def latest_common_step(
    run: str | None = None,
    *,
    process_group: dist.ProcessGroup | None = None,
    level: RestorableLevel = "any",
    client: Client | None = None,
    timeout_seconds: float = AGREE_SECONDS,
    strict: bool = False,
) -> int | None:
    """Return the newest step of a run that every rank can restore; the same on all ranks.

    A newer step that other nodes acknowledged, and that is not durable yet, is named in the log at
    level warning.

    Args:
        run: Default: ``CACHETIER_RUN``.
        process_group: Whose ranks; default all. Without torch.distributed this process is alone.
        level: ``any``: each rank can restore all of the step through its own node, because all
            parts are on that node or because a remote has the step. ``durable``, ``replicated``:
            that remote has it. ``local``: every part is on the node of a rank of this group,
            and each rank's node has sealed its own. See docs/torch.md, "Restart".
        client: Default: the process's own.
        timeout_seconds: Whole call.
        strict: Refuse to go without such a step that is whole, unless all of it is on the nodes of
            this group. ``CACHETIER_IGNORE_UNFLUSHED=1``, on any rank, starts all the same.

    Returns:
        The step; None if there is none.

    Raises:
        UnflushedStepsError: ``strict``, and there is such a step; the same on all ranks.
        RemoteUnavailableError: ``strict``, there is no step, and nobody can say whether another
            node holds one; the same on all ranks.
        AgreementError: A rank could not look, or did not come; the same on all ranks.
    """
    if level not in get_args(RestorableLevel):
        raise InvalidRequestError(
            f"level={level!r} is not one of {', '.join(get_args(RestorableLevel))}",
            hint="Pass one of these.",
        )
    asked = f"latest_common_step(run={run!r}, level={level!r}, strict={strict})"
    with _round(asked, process_group, timeout_seconds) as (round_, deadline):
        used = client or default_client()
        mine = _known(used, run, level, deadline)
        agreed = round_.answer(mine, lambda every: _verdict(every, run, level, strict=strict))
    if agreed["refused"] is not None:
        raise error_from(agreed["refused"])
    return cast("int | None", agreed["step"])


def wait_for_step(
    run: str | None,
    step: SupportsIndex,
    level: Level = "durable",
    *,
    process_group: dist.ProcessGroup | None = None,
    client: Client | None = None,
    timeout_seconds: float = WAIT_SECONDS,
) -> None:
    """Return on all ranks once a step has a level at every rank's node.

    Args:
        run: None: ``CACHETIER_RUN``.
        step: Training step.
        level: What ``Client.wait`` takes.
        process_group: Whose ranks; default all.
        client: Default: the process's own.
        timeout_seconds: Whole call.

    Raises:
        AgreementError: On one rank it will not get there, or not in time, or a rank did not come;
            the same on all ranks, and as soon as one knows.
    """
    number = checked_step(step)
    asked = f"wait_for_step(run={run!r}, step={number}, level={level!r})"
    with _round(asked, process_group, timeout_seconds) as (round_, deadline):
        used = client or default_client()
        while True:
            try:
                seconds = min(_LOOK_SECONDS, deadline.for_service())
                used.wait(run, number, level, timeout_seconds=seconds)
                break
            except NotDurableError:
                round_.look()
                if deadline.for_service() < _LOOK_SECONDS / 10:
                    raise
        round_.answer(None, lambda _: None)


def agree(
    value: Callable[[], _T],
    *,
    process_group: dist.ProcessGroup | None = None,
    name: str = "agree",
    timeout_seconds: float = AGREE_SECONDS,
) -> list[_T]:
    """Compute something on each rank, and return what all of them have, by rank.

    Args:
        value: Returns something that JSON can carry (a tuple comes back as a list). It should
            keep a deadline of its own, shorter than ``timeout_seconds``.
        process_group: Whose ranks; default all.
        name: What this is about, for the error. Calls of different names may overtake each other,
            from several threads for instance; those of one name are matched by their order.
        timeout_seconds: Whole call.

    Raises:
        AgreementError: ``value`` raised on a rank, or a rank did not come; the same on all ranks.
    """
    with _round(name, process_group, timeout_seconds, name=f"agree/{name}") as (round_, _):
        return cast("list[_T]", round_.answer(value(), lambda every: every))


# --- one round ---------------------------------------------------------------------------------


@contextmanager
def _round(
    question: str,
    process_group: dist.ProcessGroup | None,
    timeout_seconds: float,
    *,
    name: str = "steps",
) -> Iterator[tuple[Round | _Alone, Deadline]]:
    """Hold a round of the group; what is raised inside is told to all of it."""
    group, clock = _group(process_group), SystemClock()
    deadline = Deadline(timeout_seconds, clock)
    if len(group.ranks) == 1:
        yield _Alone(), deadline
        return
    round_ = Round(group, question, deadline, clock, name)
    round_.begin()
    try:
        yield round_, deadline
    except BaseException as error:
        if round_.is_over:
            raise  # the round's own end, which the others know
        if isinstance(error, Exception):
            raise round_.fail(error) from error
        with suppress(AgreementError):
            round_.fail(error)
        raise


class _Alone:
    """The round of a process without others."""

    def look(self) -> None:
        """Nobody else can have failed."""

    def answer(self, mine: Any, combine: Callable[[list[Any]], Any]) -> Any:
        return combine([mine])


def _group(process_group: dist.ProcessGroup | None) -> RankGroup:
    if not (dist.is_available() and dist.is_initialized()):
        return _group_of_one()
    if dist.get_rank(process_group) < 0:
        raise InvalidRequestError(
            "this rank is not in the process group", hint="Call it on the group's ranks alone."
        )
    ranks = tuple(dist.get_process_group_ranks(process_group))
    # The default group's store, as every group has it; the keys name the group's ranks.
    store: GroupStore = dist.distributed_c10d._get_default_store()
    return RankGroup(ranks, dist.get_rank(), store)


def _group_of_one() -> RankGroup:
    world_size = place_of(os.environ).world_size
    if world_size > 1:
        raise InvalidRequestError(
            f"this is one of {world_size} ranks, and torch.distributed is not initialised",
            hint="Call torch.distributed.init_process_group() first.",
        )
    return RankGroup((0,), 0, None)


# --- which steps -------------------------------------------------------------------------------


def _restorable(
    client: Client, run: str | None, level: RestorableLevel, deadline: Deadline
) -> list[_Saved]:
    """Return what this rank can restore at a level, one save for each step."""
    found: dict[int, StepInfo] = {}
    if level in ("any", "local"):
        here: Level = "local" if level == "local" else "memory"
        for info in client.steps(run, here, timeout_seconds=deadline.for_service()):
            if level == "local" or info.is_whole:
                found[info.step] = info
    if level != "local":
        remote: Level = "durable" if level == "durable" else "replicated"
        for info in client.steps(run, remote, timeout_seconds=deadline.for_service()):
            found.setdefault(info.step, info)
    return [_saved(info) for info in found.values()]


def _known(
    client: Client, run: str | None, level: RestorableLevel, deadline: Deadline
) -> dict[str, Any]:
    """Return what this rank can restore, and what other nodes hold that is not durable.

    ``elsewhere`` is None if that cannot be read. At ``local`` only a rank that finds nothing on its
    node asks the bucket.
    """
    found = _restorable(client, run, level, deadline) if level == "local" else []
    elsewhere: list[Any] | None = [] if found else None
    if elsewhere is None:
        with suppress(RemoteError):
            seconds = deadline.for_service()
            elsewhere = list(map(asdict, client.unflushed(run, timeout_seconds=seconds)))
    if level != "local":  # afterwards: what became durable meanwhile is in one of both
        found = _restorable(client, run, level, deadline)
    return {"saves": found, "elsewhere": elsewhere, "ignored": is_ignored()}


def _verdict(
    every: list[dict[str, Any]], run: str | None, level: RestorableLevel, *, strict: bool
) -> Any:
    """Return the step of all ranks, and the error that all of them raise; warn of other steps."""
    step, save_id = _newest([each["saves"] for each in every], level)
    heard = [each["elsewhere"] for each in every if each["elsewhere"] is not None]
    steps = merged(
        UnflushedStep.from_reply(described) for replies in heard for described in replies
    )
    newer = [each for each in steps if each.is_newer(step, save_id)] if heard else None
    ignored = any(each["ignored"] for each in every)
    refused = verdict(run, newer, found=step is not None, ignored=ignored)
    return {"step": step, "refused": refused.as_json() if strict and refused else None}


def _saved(info: StepInfo) -> _Saved:
    return info.step, info.save_id, info.world_size, info.ranks


def _newest(every: list[list[_Saved]], level: RestorableLevel) -> tuple[int | None, str]:
    """Return the newest step of which all ranks have the same save, and that save.

    At ``local`` the ranks together must have all parts.
    """
    saves = [{(step, save): (world, ranks) for step, save, world, ranks in each} for each in every]
    common = set(saves[0]).intersection(*saves[1:])
    for step, save in sorted(common, reverse=True):
        found = [each[step, save] for each in saves]
        there = {rank for _, ranks in found for rank in ranks}
        if level != "local" or publication.is_whole(found[0][0], there):
            return step, save
    return None, ""
