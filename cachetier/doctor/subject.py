"""The subject of the checks: the node as its settings describe it, and its running service."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cachetier.remote.settings import RemoteSettings
from cachetier.tls import TlsFiles


@dataclass(frozen=True, slots=True)
class Subject:
    """The node and remotes that doctor looks at.

    Args:
        capacity_bytes: The budget, given the size of the filesystem.
        remotes: The durable one first.
        tls: The files of the HTTP door's certificate, None if it speaks in clear text.
        service: The status of a service that runs on this directory, None if there is none.
        service_fault: Why a service that should answer does not; empty otherwise.
        promised_bytes: What the shares of all principals add up to.
        skip_remote: Whether to ask the remotes nothing at all.
        checkpoint_bytes: The largest save to expect on this node, if somebody said so.
    """

    cache_dir: Path
    capacity_bytes: Callable[[int], int]
    socket: Path
    socket_mode: int
    allowed_uids: Collection[int]
    allow_volatile: bool
    remotes: Sequence[RemoteSettings]
    drain_threads: int
    tls: TlsFiles | None = None
    service: dict[str, Any] | None = None
    service_fault: str = ""
    checkpoint_bytes: int | None = None
    promised_bytes: int = 0
    skip_remote: bool = False
    sync_seconds: float = 1.5
    pause_seconds: float = 2.0
    write_bytes: int = 512 << 20
    remembered: dict[str, Any] = field(default_factory=dict)

    @property
    def service_pid(self) -> int | None:
        """The service's process; None where there is none, or not one that we see."""
        pid = self.service.get("pid") if self.service else None
        return pid if isinstance(pid, int) and Path(f"/proc/{pid}/limits").exists() else None
