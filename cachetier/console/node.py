"""The page of a node: exposure first, then what flows, what waits, and what is wrong.

All of it is made of the status object and of rates between two of them, as ``cachetier top`` is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cachetier_client.identity.names import MOUNT_MARK
from cachetier_client.units import counted, shown_size, shown_span

from cachetier.status.rates import Rates
from cachetier.status.words import danger, held_back, long_span, remote_state, worst

Status = Mapping[str, Any]

PENDING_ROWS = 12
GOOD, NEAR, BAD = "good", "near", "bad"
REMOTE_TONES = {"ok": GOOD, "throttled": NEAR, "unasked": ""}


@dataclass(frozen=True, slots=True)
class Exposure:
    """What losing this node would cost, in a sentence; ``details`` stand below it."""

    sentence: str
    tone: str
    details: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Tile:
    """One figure with its unit, and a line below it; ``share`` is drawn as a bar."""

    label: str
    value: str
    note: str = ""
    tone: str = ""
    share: float | None = None


@dataclass(frozen=True, slots=True)
class RemoteRow:
    name: str
    state: str
    tone: str
    rate: str
    pending: str
    eta: str
    held_back: str


@dataclass(frozen=True, slots=True)
class RunRow:
    """A run; ``exposed`` is empty where nothing is at stake, or nobody may know."""

    run: str
    exposed: str = ""
    tone: str = ""
    durable_step: str = ""
    saved: str = ""
    dirty: str = ""


@dataclass(frozen=True, slots=True)
class PendingRow:
    run: str
    step: int
    state: str
    size: str
    share: float
    eta: str


@dataclass(frozen=True, slots=True)
class CodecRow:
    """What was decided for a run, and why."""

    run: str
    decision: str
    why: str


def exposure_of(status: Status) -> Exposure:
    """Say what losing the node now would cost."""
    seconds, name = worst(dict(status))
    objective = status["exposure_objective_seconds"]
    details = []
    if seconds:
        is_mount = name.startswith(MOUNT_MARK)
        what = "writes" if is_mount else "training"
        sentence = f"Losing this node now costs {long_span(seconds)} of {what}."
        details.append(f"the most exposed is {name}")
    elif any(run["durable_step"] is None for run in status["exposure"]):
        sentence = "Nothing is at stake that this node could bring back: no step is whole yet."
    else:
        sentence = "Losing this node now costs nothing."
    details.append(f"objective {shown_span(objective)}")
    if status["dirty_bytes"]:
        eta = status["eta_seconds"]
        unknown = "nobody can tell yet when all is durable"
        details.append(unknown if eta is None else f"all durable in {shown_span(eta)}")
    if stuck := status["incomplete"]["steps"]:
        oldest = shown_span(status["incomplete"]["oldest_seconds"])
        details.append(f"{counted(stuck, 'step')} incomplete, the oldest since {oldest}")
    tone = danger(seconds, objective) or (NEAR if stuck else GOOD)
    return Exposure(sentence, tone, tuple(details))


def tiles_of(status: Status, rates: Rates) -> list[Tile]:
    """Return the figures of now."""
    capacity = max(1, status["capacity_bytes"])
    share = status["used_bytes"] / capacity
    shards = counted(status["dirty_shards"], "shard")
    steps = counted(status["pending_steps"], "step")
    waits = status["waiting_bytes"]
    puts_wait = f"puts wait for {shown_size(waits)}" if waits else "no put waits"
    backlog = status["dirty_bytes"]
    oldest = f", oldest {shown_span(status['oldest_dirty_seconds'])}" if backlog else ""
    return [
        Tile("Acknowledged", speed(rates.put), puts_wait, BAD if waits else ""),
        Tile("Drained", speed(rates.drained), _drain_note(status), _drain_tone(status)),
        Tile("Backlog", shown_size(backlog), f"{shards}{oldest}"),
        Tile("Durable in", eta_words(status["eta_seconds"]), steps),
        _pace_tile(status["remotes"][0]),
        Tile("Cache", f"{share:.0%}", f"of {shown_size(capacity)}", share=share),
    ]


def _drain_note(status: Status) -> str:
    drain = status["drain"]
    if not drain.get("pid"):
        return "the drain is not running"
    courtesy = drain.get("courtesy") or {}
    if courtesy.get("restraint", "none") != "none":
        return "holds back for training"
    return f"{drain.get('in_flight', 0)} in flight"


def _drain_tone(status: Status) -> str:
    return "" if status["drain"].get("pid") else BAD


def _pace_tile(remote: Status) -> Tile:
    state, why = str(remote["state"]), held_back(dict(remote))
    if remote["reason"]:
        why = [str(remote["reason"])]
    total = remote.get("throttled") or 0
    before = f"throttled {counted(total, 'time')} since start" if total else "nothing in its way"
    tone = REMOTE_TONES.get(state, BAD)
    return Tile(
        "S3", remote_state(dict(remote)), "; ".join(why) or before, "" if tone == GOOD else tone
    )


def remotes_of(status: Status, rates: Rates) -> list[RemoteRow]:
    """Return a row for each remote, the durable one first."""
    return [
        RemoteRow(
            name=str(each["name"]),
            state=remote_state(dict(each)),
            tone=REMOTE_TONES.get(str(each["state"]), BAD),
            rate=speed(rates.remotes.get(each["name"])),
            pending=size_or_dash(each["pending_bytes"]),
            eta=eta_words(each["eta_seconds"]),
            held_back=str(each["reason"] or "") or ", ".join(held_back(dict(each))),
        )
        for each in status["remotes"]
    ]


def runs_of(runs: Sequence[str], status: Status | None) -> list[RunRow]:
    """Return a row for each of ``runs``, the most exposed first; without a status only names."""
    if status is None:
        return [RunRow(run) for run in runs]
    known = {str(each["run"]): each for each in status["exposure"]}
    objective = status["exposure_objective_seconds"]
    first = [_run_row(known[run], objective) for run in known if run in set(runs)]
    return first + [RunRow(run) for run in runs if run not in known]


def _run_row(run: Status, objective: float) -> RunRow:
    seconds, age, step = run["exposure_seconds"], run["durable_age_seconds"], run["durable_step"]
    return RunRow(
        run=str(run["run"]),
        exposed=shown_span(seconds) if seconds else "",
        tone=danger(seconds, objective) if seconds else GOOD,
        durable_step="none" if step is None else str(step),
        saved="" if age is None else f"{shown_span(age)} ago",
        dirty=size_or_dash(run["dirty_bytes"]),
    )


def pending_of(status: Status) -> tuple[list[PendingRow], int]:
    """Return the steps that wait to be durable, oldest first, and how many more there are."""
    rows = [
        PendingRow(
            run=str(each["run"]),
            step=each["step"],
            state=str(each["state"]),
            size=shown_size(each["size_bytes"]),
            share=1 - min(1.0, each["dirty_bytes"] / max(1, each["size_bytes"])),
            eta=eta_words(each["eta_seconds"]),
        )
        for each in status["pending"][:PENDING_ROWS]
    ]
    return rows, status["pending_steps"] - len(rows)


def codecs_of(status: Status) -> tuple[list[CodecRow], str]:
    """Return what ``auto`` decided lately, the newest first, and what all codecs saved."""
    drain = status["drain"]
    decided = (drain.get("compression") or {}).get("runs") or {}
    rows = [
        CodecRow(str(run), "compress" if verdict.get("compress") else "store", str(verdict["why"]))
        for run, verdict in reversed(decided.items())
    ]
    totals = [
        f"{codec}: {shown_size(each['stored_bytes'])} for {shown_size(each['size_bytes'])}"
        for codec, each in (drain.get("codecs") or {}).items()
    ]
    return rows, "; ".join(totals)


def speed(rate: float | None) -> str:
    return "-" if rate is None else f"{shown_size(rate)}/s"


def size_or_dash(size_bytes: float) -> str:
    return shown_size(size_bytes) if size_bytes else "-"


def eta_words(seconds: float | None) -> str:
    if seconds is None:
        return "unknown"
    return shown_span(seconds) if seconds else "now"
