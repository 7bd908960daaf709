"""The kinds of remotes: what the service asks of each, and which there are.

The scheme of a remote's URL names its kind, ``s3`` in ``s3://bucket/prefix``. Settings, doctor, the
greeting of clients and the mounts pass a remote on without knowing its kind: what differs between
kinds is asked here. The calls on what is stored are those of ``base``.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from cachetier.remote.fair_slots import AT_ONCE
from cachetier.remote.neighbours import scheme as neighbours
from cachetier.remote.s3 import scheme as s3
from cachetier.remote.settings import RemoteSettings

if TYPE_CHECKING:
    from cachetier.remote.base import ObjectStore
    from cachetier.remote.stall_guard import Timeouts
    from cachetier.remote.store_clock import StoreClock


class RemoteServer(Protocol):
    """The server of a remote as this process reaches it; its buckets share what that costs.

    Thread-safe.
    """

    def open(self) -> None:
        """Prepare for the first call. A failure is no error yet: each call tries it again."""

    def bucket(self, remote: RemoteSettings, timeouts: Timeouts) -> ObjectStore:
        """Return the store of a bucket of this server; nothing outside is asked yet."""


class Inquiry(Protocol):
    """Asks one remote what only a person or a first start wants to know; used by one thread."""

    remote: RemoteSettings  # with what was found out about how to reach it
    server: str  # what the store calls itself, after an answer; empty if it does not say

    def look(self, prefix: str) -> None:
        """Return when what is under ``prefix`` may be listed; a refusal says why.

        Raises:
            RemoteError: The remote refuses, or does not answer.
        """


class RemoteScheme(Protocol):
    """One kind of remote. Up to ``for_clients`` nothing outside this machine is asked."""

    def identity(self, remote: RemoteSettings) -> tuple[str, str, str]:
        """Return server, bucket and prefix, each in the one way to write it.

        Two remotes with the same keep the same objects. A prefix ends with a slash unless empty.

        Raises:
            ValueError: There can be no such bucket at the server of such a remote.
        """

    def shown(self, remote: RemoteSettings) -> str:
        """Return the URL and where it is, for a person."""

    def oddity(self, remote: RemoteSettings) -> str | None:
        """Return what may be wrong with the name, as a sentence; None if nothing is."""

    def endpoint(self, remote: RemoteSettings) -> tuple[str, str] | None:
        """Return what names the HTTP endpoint of the calls, and its URL; None if nothing does.

        What files of the store's own configuration name, only ``resolved`` knows.
        """

    def for_clients(self, remote: RemoteSettings) -> dict[str, Any]:
        """Return what clients learn, so that they reach the remote while the service is away.

        A kind other than ``s3`` names itself as ``scheme``; the client's counterpart is
        ``cachetier_client.fallback.direct.remote``.
        """

    def resolved(self, remote: RemoteSettings, directory: Path) -> RemoteSettings:
        """Return ``remote`` with what has to be found out before a call.

        It is what ``keep`` has kept in ``directory``, else asked now, for some seconds at most.
        """

    def keep(self, remote: RemoteSettings, resolved: RemoteSettings, directory: Path) -> None:
        """Keep what was found out; a disk that takes nothing is no error."""

    def load(self) -> None:
        """Import what calls need, which takes a fifth of a second; calls do it otherwise."""

    def server(
        self,
        remote: RemoteSettings,
        store_clock: StoreClock | None = None,
        *,
        max_connections: int = AT_ONCE,
        timeouts: Timeouts | None = None,
    ) -> RemoteServer:
        """Return the server of ``remote``; ``store_clock`` hears the dates of its answers."""

    def inquire(self, remote: RemoteSettings) -> Inquiry:
        """Prepare to ask.

        Raises:
            ConfigError: The settings, or files that they name, cannot be used.
        """


SCHEMES: dict[str, RemoteScheme] = {"s3": s3, "peers": neighbours}


def scheme_of(remote: RemoteSettings) -> RemoteScheme:
    return SCHEMES[remote.scheme]
