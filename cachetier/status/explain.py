"""Where a step stands and what it waits for, in sentences. Pure: from what a node says of both.

What it waits for is one word, so that programs can tell: ``ranks`` to seal, ``remote``, ``window``,
``order``, ``drain``, ``nodes`` elsewhere, ``publication``, a ``person``, or nothing more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cachetier_client import StepInfo
from cachetier_client.bucket_format.publication import missing_ranks
from cachetier_client.calls.unflushed import advice, described
from cachetier_client.results import UnflushedStep
from cachetier_client.units import counted, shown_size, shown_span

from cachetier.drain.schedule.tasks import NEXT_MOVES
from cachetier.status.words import Status, are, ranks, remote_trouble, unchecked


@dataclass(frozen=True, slots=True)
class Explanation:
    """A step, explained; ``next_move`` is empty where nobody has to do anything."""

    run: str
    step: int
    state: str
    waits_for: str
    sentences: tuple[str, ...]
    next_move: str = ""


def explain(step: StepInfo, status: Status, now: float) -> Explanation:
    """Explain a step that the node, or the bucket, knows.

    Args:
        step: With its shards.
        status: The status object of the node.
        now: UTC seconds.
    """
    if step.state in _STATES:
        waits_for, says, next_move = _STATES[step.state]
        found = [says] if isinstance(says, str) else says(step, now)
    else:
        waits_for, found, next_move = _draining(step, status, now)
    sentences = [_summary(step, now), *found, *_failures(step, status, now)]
    settled = NEXT_MOVES.get(_error_of(step, status).get("code", ""))
    if settled is not None and waits_for not in ("", "ranks"):
        waits_for, next_move = "person", settled
    next_move = next_move.replace("{flush}", _flush(step))
    return Explanation(step.run, step.step, step.state, waits_for, tuple(sentences), next_move)


def explain_unknown(
    run: str, step: int, known: Collection[int], elsewhere: Sequence[UnflushedStep] = ()
) -> Explanation:
    """Explain a step that neither the node nor the bucket has; ``known`` are those of its run.

    ``elsewhere`` is what other nodes say they hold of the run.
    """
    sentences = [f"Neither this node nor S3 has step {step} of {run}."]
    held = next((each for each in elsewhere if each.step == step), None)
    if held is not None:
        sentences.append(f"Other nodes hold some: {described(held)}.")
        return Explanation(run, step, "unknown", "nodes", tuple(sentences), advice(held))
    next_move = "See all runs: cachetier ls."
    if known and step < min(known):
        sentences.append(
            f"The oldest step left is {min(known)}: it was deleted, expired by a rule of the "
            "bucket, or was never published."
        )
    elif known:
        nearest = min(known, key=lambda each: (abs(each - step), -each))
        sentences.append(f"The nearest step is {nearest}; the newest is {max(known)}.")
    if known:
        next_move = f"See the run's steps: cachetier ls {run} --level replicated."
    return Explanation(run, step, "unknown", "", tuple(sentences), next_move)


# --- where it stands -----------------------------------------------------------------------------


def _summary(step: StepInfo, now: float) -> str:
    shards = f"{counted(step.shard_count, 'shard')}, {shown_size(step.size_bytes)}"
    began = f", begun {_ago(now, step.started_at)}" if step.started_at is not None else ""
    return f"Step {step.step} of {step.run} is {step.state.replace('_', ' ')}: {shards}{began}."


def _whereabouts(step: StepInfo, now: float) -> Iterator[str]:
    """Say since when it is durable, and what of it is here."""
    if step.published_at is not None:
        after = ""
        if step.started_at is not None:
            took = shown_span(max(0.0, step.published_at - step.started_at))
            after = f" ({took} after its save began)"
        since = shown_span(max(0.0, now - step.published_at))
        yield f"It has been durable for {since}{after}."
    states = Counter(shard.state for shard in step.shards)
    here = states["clean"] + states["dirty"]
    if not here:
        yield "None of its bytes are on this node: a restore reads them from S3."
    elif states["evicted"]:
        of_node = here + states["evicted"]
        yield f"{here} of the {counted(of_node, 'shard')} of this node are here, the rest in S3."
    elif step.is_whole:
        yield "All of it is here as well, so a restore is local."
    else:
        of_ranks = f"{ranks(step.ranks)} of {step.world_size}"
        yield f"All of {of_ranks} is here as well, so their restore is local."
    if states["remote"]:
        yield f"{counted(states['remote'], 'shard')} came from other nodes, and lie in S3."
    if note := unchecked(step.state, step.checked_at, now):
        yield f"S3 could not be asked whether it was replaced or deleted since ({note})."
    if step.pinned:
        yield "It is pinned, so nothing of it is evicted."


def _missing(step: StepInfo, now: float) -> Iterator[str]:
    """Say which ranks have not sealed, of those that were seen here."""
    seen = {shard.rank for shard in step.shards} | set(step.ranks)
    missing = sorted(seen - set(step.ranks))
    since = f" for {shown_span(now - step.started_at)}" if step.started_at is not None else ""
    if missing:
        yield f"It waits{since} for {ranks(missing)} to seal."
    else:
        yield f"It waits{since} for ranks of this node that have put nothing yet."
    yield _elsewhere(step, len(seen))


def _elsewhere(step: StepInfo, here: int) -> str:
    sealed = f"{len(step.ranks)} of {counted(here, 'rank')} seen here sealed"
    elsewhere = step.world_size - here
    return f"{sealed}; {are(elsewhere, 'rank')} elsewhere." if elsewhere > 0 else f"{sealed}."


def _damage(step: StepInfo, _now: float) -> Iterator[str]:
    names = [shard.name for shard in step.shards if shard.state == "quarantined"]
    what = ", ".join(names[:3]) or "a shard"
    yield f"Bytes on this node failed their checksum and are not sent: {what}."


# --- what it waits for ---------------------------------------------------------------------------


def _draining(step: StepInfo, status: Status, now: float) -> tuple[str, list[str], str]:
    """Return what a sealed step waits for, in a word and in sentences, and the next move."""
    remote, found = status["remotes"][0], list[str]()
    if not step.dirty_bytes:
        others = len(missing_ranks(step.world_size, step.ranks))
        if others:
            found.append(f"All of this node is in S3; {are(others, 'rank')} due from other nodes.")
            move = "Look at the nodes of the others: cachetier status RUN STEP there, or top."
            return "nodes", found, move
        return (
            "publication",
            ["All of it is in S3; the drain will publish it soon."],
            "",
        )
    left = f"{shown_size(step.dirty_bytes)} of {shown_size(step.size_bytes)}"
    found.append(f"{left} are left to send; {_eta(step, status)}")
    if remote["state"] in ("unreachable", "refused"):
        found.append(f"{remote_trouble(remote, now)}.")
        return "remote", found, "cachetier doctor says what is wrong. Nothing is lost meanwhile."
    if remote["pace"].get("bytes_per_second") == 0:
        found.append("`max_rate` lets nothing through at this time of day.")
        return "window", found, f"Send it all the same: {_flush(step)}."
    if remote["state"] == "throttled":
        found.append("S3 throttles this node, which therefore sends more slowly.")
    uploading = [each for each in status["drain"]["uploading"] if _is_of(each, step)]
    if uploading:
        found.append(f"{are(len(uploading), 'shard')} on the way now.")
        return "drain", found, ""
    if before := _before(step, status):
        left = shown_size(sum(each["dirty_bytes"] for each in before))
        found.append(f"{are(len(before), 'older step')} to go first, with {left}.")
        return "order", found, f"Put it first: {_flush(step)}."
    return "drain", found, ""


def _eta(step: StepInfo, status: Status) -> str:
    mine = next((each for each in status["pending"] if _is_of(each, step)), None)
    eta = mine["eta_seconds"] if mine is not None else None
    if eta is None:
        return "the time until it is durable is not known yet."
    return f"it is durable in about {shown_span(eta)}."


def _before(step: StepInfo, status: Status) -> list[Mapping[str, Any]]:
    """Return the steps that the drain sends before this one, as status lists them in order."""
    pending = status["pending"]
    at = next((n for n, each in enumerate(pending) if _is_of(each, step)), 0)
    return [each for each in pending[:at] if each["dirty_bytes"] and each["run"] == step.run]


def _failures(step: StepInfo, status: Status, now: float) -> Iterator[str]:
    """Say what went wrong last with this step, where it is not durable yet."""
    error = _error_of(step, status)
    if error and step.state != "published":
        what = f"shard {error['name']}" if error["name"] else "it"
        again = "" if error["code"] in NEXT_MOVES else " It is tried again by itself."
        when = _ago(now, error["at"])
        why = f"({error['code']}): {error['message']}"
        yield f"The last attempt at {what} failed {when} {why}.{again}"


def _error_of(step: StepInfo, status: Status) -> Mapping[str, Any]:
    error: Mapping[str, Any] = status["drain"]["last_error"] or {}
    return error if error and _is_of(error, step) else {}


def _is_of(each: Mapping[str, Any], step: StepInfo) -> bool:
    return bool((each["run"], each["step"]) == (step.run, step.step))


def _flush(step: StepInfo) -> str:
    return f"cachetier flush {step.run} {step.step}"


def _ago(now: float, at: float) -> str:
    return f"{shown_span(max(0.0, now - at))} ago"


# --- by state -------------------------------------------------------------------------------------

# What a step in each state waits for, what is said of it, and the next move of a person; in any
# other state it is drained.
_STATES: Mapping[str, tuple[str, str | Callable[[StepInfo, float], Iterable[str]], str]] = {
    "published": ("", _whereabouts, ""),
    "replicated": ("", "A replica has it whole; the durable remote could not be asked.", ""),
    "superseded": ("", "A newer save of the step has replaced it, and nothing of it is sent.", ""),
    "refused": (
        "",
        "Another save of the step was published first; this one would need `overwrite`.",
        "",
    ),
    "deleted": (
        "",
        "It was deleted; the drain removes the rest of it when it is next free.",
        "",
    ),
    "damaged": ("person", _damage, "Save the step again, or restore another one."),
    "aborted": (
        "",
        "A rank aborted its part, so the step is never whole and is removed after a while.",
        "Save the step again.",
    ),
    "local_only": (
        "",
        "It is whole here, and a policy keeps it from S3 (docs/drain.md).",
        "Send it all the same: {flush}.",
    ),
    "open": (
        "ranks",
        _missing,
        "Check whether those ranks are alive; a step is whole only when all ranks seal.",
    ),
}
