"""The texts of a status object, in the same words on a terminal and in the console."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from cachetier_client.identity.names import MOUNT_MARK
from cachetier_client.units import counted, shown_size, shown_span

from cachetier.number_lists import shown_numbers

UNCHECKED_SECONDS = 10.0  # twice as long as knowledge of a published step is fresh
NEAR_SHARE = 0.5  # of the objective
STANDSTILL_SECONDS = 60.0
QUIET_SECONDS = 300.0  # in the midst of a save
NUMBERS_LIMIT = 40  # characters
OTHERS = "(others)"  # the row of the runs that have none: no run can be called so
WELL_STATES = ("ok", "unasked")  # of a remote with which nothing is wrong that anybody knows of
_LONG_UNITS = ((86_400.0, "day"), (3_600.0, "hour"), (60.0, "minute"), (1.0, "second"))

Status = Mapping[str, Any]


def worst(status: Status) -> tuple[float, str]:
    """Return for how long the run or the mount is exposed that is so for the longest.

    A run whose job may have died counts only if there is no other.
    """
    quiet = {each["run"] for each in quiet_runs(status)}
    at_stake = [(float(run["exposure_seconds"]), str(run["run"])) for run in status["exposure"]]
    at_stake += [
        (float(mount["exposure_seconds"]), f"{MOUNT_MARK}{mount['mount']}")
        for mount in status.get("mounts") or ()
    ]
    return max(
        at_stake,
        key=lambda each: (each[0] > 0 and each[1] not in quiet, each),
        default=(0.0, ""),
    )


def quiet_runs(status: Status) -> list[Status]:
    """Return the runs of which nothing came for minutes, in the midst of a save."""
    runs = status["exposure"]
    return [run for run in runs if run.get("quiet_seconds", 0.0) > QUIET_SECONDS]


def danger(seconds: float, objective: float) -> str:
    """Return how an exposure is to be seen: ``bad`` beyond the objective, ``near``, or empty."""
    if seconds > objective:
        return "bad"
    return "near" if seconds > NEAR_SHARE * objective else ""


def worst_state(status: Status) -> str:
    """Return the node's state, or that of its remote where only that is in trouble."""
    states = (str(each["state"]) for each in status["remotes"])
    remote = next((state for state in states if state not in WELL_STATES), "")
    return remote if remote and status["state"] == "ready" else str(status["state"])


def remote_state(remote: Status) -> str:
    """Return the state of a remote in words: of one that nobody asked for long, for how long."""
    if remote["state"] != "unasked":
        return str(remote["state"])
    seconds = remote.get("unasked_seconds")
    if seconds is None:
        return ": ".join(filter(None, ("not asked yet", remote.get("reason"))))
    return f"not asked for {shown_span(seconds)}"


def runbook(name: str) -> str:
    """Return where the runbook of a trouble is; the console makes a link of it."""
    return f"docs/runbooks/{name}.md"


def is_replica(remote: Status) -> bool:
    return bool(remote.get("role") == "replica")


def remote_trouble(remote: Status, now: float) -> str:
    """Say since when a remote takes nothing, and why."""
    name = f"replica {remote['name']}" if is_replica(remote) else "S3"
    since = shown_span(max(0.0, now - remote.get("since", now)))
    what = "refuses this node" if remote["state"] == "refused" else f"is {remote['state']}"
    return f"{name} {what} since {since}: {remote['reason']}"


def pace_limits(remote: Status) -> list[str]:
    """Say what limits the drain to a remote, if anything does."""
    pace, limits = remote.get("pace") or {}, []
    if (rate := pace.get("writes_per_second")) is not None:
        limits.append(f"throttled to {rate:.3g} writes/s, {pace['concurrency']} at once")
    if (limit := pace.get("bytes_per_second")) is not None:
        limits.append(f"at most {shown_size(limit)}/s" if limit else "paused by a window")
    return limits


def held_back(remote: Status) -> list[str]:
    """Say what holds the drain to a remote back: its limits, and a standstill."""
    found = pace_limits(remote)
    if remote["last_progress_seconds"] >= STANDSTILL_SECONDS:
        found.append(f"no progress for {shown_span(remote['last_progress_seconds'])}")
    return found


def last_error(drain: Status, now: float) -> list[str]:
    """Say what failed last, and when: it stays after what caused it is over. Empty if nothing."""
    last = drain.get("last_error")
    if not last:
        return []
    age = shown_span(max(0.0, now - last["at"]))
    what = f"the drain's last error, {age} ago: {last['message']} ({last['code']})"
    return [f"{what}: {runbook('drain-stalled')}"]


def are(number: int, noun: str) -> str:
    """Return how many there are, with their verb: ``1 shard is``, ``2 shards are``."""
    return f"{counted(number, noun)} {'is' if number == 1 else 'are'}"


def ranks(numbers: Collection[int]) -> str:
    """Name some ranks, or count them where their names would be a long list; empty if none."""
    shown = shown_numbers(numbers)
    if len(shown) > NUMBERS_LIMIT:
        return counted(len(numbers), "rank")
    return f"rank{'s' if len(numbers) > 1 else ''} {shown}" if shown else ""


def long_span(seconds: float) -> str:
    """Return a span of time in words: ``12 minutes``, ``1 hour``, ``40 seconds``."""
    for unit_seconds, unit in _LONG_UNITS:
        if seconds >= unit_seconds:
            return counted(round(seconds / unit_seconds), unit)
    return "less than a second"


def unchecked(state: str, checked_at: float | None, now: float) -> str:
    """Return for how long nobody could ask the bucket about a published step; empty if lately."""
    if state != "published":
        return ""
    if checked_at is None:
        return "unchecked"
    age_seconds = now - checked_at
    return f"as of {shown_span(age_seconds)} ago" if age_seconds > UNCHECKED_SECONDS else ""
