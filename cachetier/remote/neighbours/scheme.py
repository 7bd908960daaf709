"""The neighbours as one of the kinds of remotes; see ``cachetier.remote.scheme``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from cachetier.remote.fair_slots import AT_ONCE
from cachetier.remote.settings import NeighbourSettings, RemoteSettings

if TYPE_CHECKING:
    from cachetier.remote.neighbours.store import NeighbourServer
    from cachetier.remote.stall_guard import Timeouts
    from cachetier.remote.store_clock import StoreClock


def identity(remote: RemoteSettings) -> tuple[str, str, str]:
    return "", remote.url, ""


def shown(remote: RemoteSettings) -> str:
    return ", ".join(_neighbours(remote).nodes)


def oddity(_remote: RemoteSettings) -> str | None:
    return None


def endpoint(_remote: RemoteSettings) -> tuple[str, str] | None:
    return None


def for_clients(_remote: RemoteSettings) -> dict[str, Any]:
    return {}  # clients know the durable remote alone


def resolved(remote: RemoteSettings, _directory: Path) -> RemoteSettings:
    return remote


def keep(_remote: RemoteSettings, _resolved: RemoteSettings, _directory: Path) -> None:
    """Keep nothing: all is in the settings."""


def load() -> None:
    """Load nothing: all is here."""


class _Inquiry:
    def __init__(self, remote: RemoteSettings) -> None:
        self.remote = remote
        self.server = ""

    def look(self, _prefix: str) -> None:
        """Look at nothing: peers may be away."""


def server(
    remote: RemoteSettings,
    _store_clock: StoreClock | None = None,
    *,
    max_connections: int = AT_ONCE,  # noqa: ARG001 - each thread has its own
    timeouts: Timeouts | None = None,  # noqa: ARG001 - those of peers are known
) -> NeighbourServer:
    from cachetier.remote.neighbours.store import NeighbourServer

    return NeighbourServer(_neighbours(remote))


def inquire(remote: RemoteSettings) -> _Inquiry:
    return _Inquiry(remote)


def _neighbours(remote: RemoteSettings) -> NeighbourSettings:
    assert remote.neighbours is not None  # the only remotes that are of this kind
    return remote.neighbours
