"""How fast things go on a node: differences between two moments of its status object.

What is verified grows by whole shards, so a difference over one second says little: rates are taken
over the last ``WINDOW_SECONDS``. The node's own clock times them, and a restart begins again.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

WINDOW_SECONDS = 10.0

Status = dict[str, Any]


@dataclass(frozen=True)
class Rates:
    """Bytes per second; None while there is nothing to compare with."""

    put: float | None = None
    drained: float | None = None
    restored: float | None = None
    remotes: dict[str, float | None] = field(default_factory=dict)


class Node:
    """One node as it is watched: its last status, how fast it goes, and whether it answers."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.error: str | None = None
        self.is_refused = False
        self.away_since: float | None = None
        self._seen: deque[Status] = deque()

    @property
    def status(self) -> Status | None:
        """The last status that came, also while the node is away."""
        return self._seen[-1] if self._seen else None

    def answered(self, status: Status) -> None:
        self.error = self.away_since = None
        last = self.status
        if last is not None and not _goes_on(last, status):
            self._seen.clear()
        self._seen.append(status)
        newest = status["uptime_seconds"]
        while len(self._seen) > 2 and newest - self._seen[1]["uptime_seconds"] >= WINDOW_SECONDS:
            self._seen.popleft()

    def failed(self, error: str, now: float, *, refused: bool = False) -> None:
        """Note that the node did not answer; ``refused``: it is there, and lets us see nothing."""
        self.error, self.is_refused = error, refused
        self.away_since = self.away_since or now

    def rates(self) -> Rates:
        if self.error is not None or len(self._seen) < 2:
            return Rates()
        before, now = self._seen[0], self._seen[-1]
        seconds = now["uptime_seconds"] - before["uptime_seconds"]
        if seconds <= 0:
            return Rates()
        each_before = {remote["name"]: _drained(before, remote) for remote in before["remotes"]}
        return Rates(
            put=_rate(before["flow"]["put_bytes"], now["flow"]["put_bytes"], seconds),
            restored=_rate(
                before["flow"]["restored_bytes"], now["flow"]["restored_bytes"], seconds
            ),
            drained=_rate(_total(before), _total(now), seconds),
            remotes={
                remote["name"]: _rate(
                    each_before.get(remote["name"], 0), _drained(now, remote), seconds
                )
                for remote in now["remotes"]
            },
        )


def _goes_on(last: Status, status: Status) -> bool:
    """Return whether two looks can be compared: neither a restart nor a clock set back between."""
    same = last["started_at"] == status["started_at"]
    return bool(same and last["uptime_seconds"] <= status["uptime_seconds"])


def _total(status: Status) -> int:
    return int(status["drain"].get("drained_bytes") or 0)


def _drained(status: Status, remote: dict[str, Any]) -> int:
    """Return what was verified at a remote since the start."""
    if remote["role"] == "durable":
        return _total(status)
    return int((remote.get("drain") or {}).get("drained_bytes") or 0)


def _rate(before: int, now: int, seconds: float) -> float:
    return max(0, now - before) / seconds


def described(node: Node) -> dict[str, Any]:
    """Return a node as ``top --json`` gives it."""
    status, rates = node.status, node.rates()
    if status is None or node.error is not None:
        return {"url": node.url, "state": "away", "error": node.error}
    return {
        "url": node.url,
        "state": status["state"],
        "error": None,
        "exposure": status["exposure"],
        "dirty_bytes": status["dirty_bytes"],
        "eta_seconds": status["eta_seconds"],
        "used_bytes": status["used_bytes"],
        "capacity_bytes": status["capacity_bytes"],
        "put_bytes_per_second": rates.put,
        "drained_bytes_per_second": rates.drained,
        "restored_bytes_per_second": rates.restored,
        "remotes": [
            {
                "name": remote["name"],
                "state": remote["state"],
                "pending_bytes": remote["pending_bytes"],
                "eta_seconds": remote["eta_seconds"],
                "drained_bytes_per_second": rates.remotes.get(remote["name"]),
            }
            for remote in status["remotes"]
        ],
        "pending_steps": status["pending_steps"],
        "warnings": status["warnings"],
    }
