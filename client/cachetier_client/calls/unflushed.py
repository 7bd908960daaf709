"""Steps that other nodes acknowledged and that are not durable: warn of them, or refuse to start.

A job that resumes without them would replace what those nodes publish later.

Source: docs/torch.md, "A job that moves".
"""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Iterable, Sequence
from dataclasses import replace

from cachetier_client.bucket_format.documents import UnflushedNote
from cachetier_client.errors import (
    CachetierClientError,
    RemoteUnavailableError,
    UnflushedStepsError,
)
from cachetier_client.results import UnflushedStep

IGNORE = "CACHETIER_IGNORE_UNFLUSHED"
NAMED_STEPS = 3
NAMED_NODES = 8

log = logging.getLogger(__name__)


@functools.lru_cache(maxsize=1024)
def warn_once(text: str) -> None:
    """Warn, but not again of the same: there are programs that ask every second."""
    log.warning("%s", text)


def is_ignored() -> bool:
    """Return whether this process is to start past steps that are not durable."""
    return os.environ.get(IGNORE, "").lower() not in ("", "0", "off", "false", "no")


def steps_in(note: UnflushedNote) -> list[UnflushedStep]:
    """Return what one node says of its steps."""
    nodes, stores = (note.host,), (note.store,)
    return [
        UnflushedStep(note.run, each.step, each.save_id, each.world_size, each.ranks, nodes, stores)
        for each in note.saves
    ]


def merged(found: Iterable[UnflushedStep]) -> list[UnflushedStep]:
    """Return the steps that several nodes told of, the newest first, each once.

    One is here, to all of them, only if each has a part of it.
    """
    steps: dict[tuple[int, str], UnflushedStep] = {}
    for each in found:
        known = steps.get((each.step, each.save_id), each)
        hosts = dict(zip(known.stores + each.stores, known.nodes + each.nodes, strict=True))
        all_have_some = known.ranks_here and each.ranks_here
        ranks_here = {*known.ranks_here, *each.ranks_here} if all_have_some else ()
        steps[each.step, each.save_id] = replace(
            known,
            nodes=tuple(hosts.values()),
            stores=tuple(hosts),
            ranks=tuple(sorted({*known.ranks, *each.ranks})),
            ranks_here=tuple(sorted(ranks_here)),
        )
    return [steps[key] for key in sorted(steps, reverse=True)]


def verdict(
    run: str | None, newer: Sequence[UnflushedStep] | None, *, found: bool, ignored: bool
) -> CachetierClientError | None:
    """Warn of ``newer`` steps that others hold; return why a strict job must not start without.

    Only a step that is whole is worth waiting for, unless all of it is on the job's own nodes.
    ``newer`` is None if nobody can say, which matters to a job that has ``found`` none itself. One
    that is told to (``ignored``) starts all the same.
    """
    if newer is None:
        text = (
            f"it cannot be read from the bucket whether other nodes hold newer steps of run {run}"
        )
        warn_once(text)
        hint = f"Call again when the bucket answers; {IGNORE}=1 starts one job all the same."
        return None if found or ignored else RemoteUnavailableError(text, hint=hint, run=run)
    for each in newer[:NAMED_STEPS]:
        warn_once(f"{described(each)}. {advice(each)}")
    for each in newer:
        if each.is_whole and not each.is_whole_here:
            if not ignored:
                hint = f"{advice(each)} {IGNORE}=1 starts one job without it."
                return UnflushedStepsError(described(each), hint=hint, run=run, step=each.step)
            log.warning("%s is set: going on without step %d", IGNORE, each.step)
            break
    return None


def described(each: UnflushedStep) -> str:
    """Say which part of a step is on which nodes."""
    whole = "all of it" if each.is_whole else f"{len(each.ranks)} of {each.world_size} ranks"
    nodes, more = ", ".join(each.nodes[:NAMED_NODES]), len(each.nodes) - NAMED_NODES
    others = f" and {more} more" if more > 0 else ""
    return f"step {each.step} of run {each.run} ({whole}) is on {nodes}{others}, and not durable"


def advice(each: UnflushedStep) -> str:
    """Say what to do about it, as a person would run it."""
    node = each.nodes[0] if len(each.nodes) == 1 else "NODE"
    gone = f"if a node will not return: `cachetier forget {node} {each.run}`."
    if not each.is_whole:
        return f"No node says that it has the rest, without which it is no step; {gone}"
    return f"Run `cachetier flush {each.run} {each.step}` there; {gone}"
