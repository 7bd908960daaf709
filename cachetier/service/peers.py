"""The nodes that share restores with this one, made from the settings."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from cachetier_client.transport.tls import context_of_environment

from cachetier.config.settings import Settings, address_of_door
from cachetier.doors.listening import bound
from cachetier.errors import ConfigError
from cachetier.local.store import Store
from cachetier.peers.answers import PeerAnswers
from cachetier.peers.client import HttpPeer
from cachetier.peers.door import PeerDoor, headers_of
from cachetier.peers.membership import Membership, NodeIdentity
from cachetier.remote.bucket import Bucket
from cachetier.remote.scheme import scheme_of
from cachetier.remote.settings import RemoteSettings
from cachetier.restore.one_fetch import OneFetch
from cachetier.restore.pace import RestorePace
from cachetier.restore.restore import Restore
from cachetier.tls import Tls, TlsFiles

LEAST_TOKEN_CHARACTERS = 32
ANYWHERE = ("0.0.0.0", "::")


@dataclass(frozen=True, slots=True)
class _Trust:
    """How nodes know each other: by a token, or certificates of one CA.

    ``tls`` is the door's, ``context`` returns that of a new connection to a peer.
    """

    token: str = ""
    tls: TlsFiles | None = None
    context: Callable[[], ssl.SSLContext] | None = None


def trust_of(path: Path, files: TlsFiles | None) -> _Trust:
    """Read ``peers.trust``; raises ConfigError."""
    try:
        text = path.read_text(encoding="ascii").strip()
        if "-----BEGIN CERTIFICATE-----" not in text:
            if len(text) < LEAST_TOKEN_CHARACTERS or not text.isprintable():
                hint = f"openssl rand -hex 32 > {path}, and the same file on every node"
                raise ConfigError(
                    f"`peers.trust` {path} has no token and no certificate", hint=hint
                )
            if files is None:
                return _Trust(text)
            own = TlsFiles(files.certificate, files.key)
            of_environment = context_of_environment()
            return _Trust(text, own, lambda: of_environment)
        if files is None:
            raise ConfigError("`peers.trust` is a certificate: set `tls` as well")
        own = TlsFiles(files.certificate, files.key, path)
        contexts = _contexts(own)
    except (OSError, ValueError) as error:
        raise ConfigError(f"`peers.trust` {path} cannot be used: {error}") from error
    return _Trust("", own, contexts)


def _contexts(files: TlsFiles) -> Callable[[], ssl.SSLContext]:
    """Return what gives a new connection its context, read again when ``files`` change.

    Files that are no good change nothing: the door tells of them.
    """

    def read() -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=files.client_ca)
        context.load_cert_chain(files.certificate, files.key, password=lambda: "")
        return context

    signature, context = files.signature(), read()

    def current() -> ssl.SSLContext:
        nonlocal signature, context
        if (now := files.signature()) != signature:
            signature = now
            with suppress(OSError, ValueError):
                context = read()
        return context

    return current


@dataclass(slots=True)
class NodePeers:
    """The peers of this node, what it reads through them, and the door at which it answers."""

    membership: Membership
    one_fetch: OneFetch
    address: tuple[str, int]
    trust: _Trust
    bucket: Bucket
    door: PeerDoor | None = None

    def start(self, store: Store, restore: Restore) -> None:
        """Answer peers from now on, and ask who they are; raises ConfigError."""
        answers = PeerAnswers(store, restore, self.one_fetch, self.bucket.layout)
        tls = Tls(self.trust.tls, lambda _problem: None) if self.trust.tls is not None else None
        listener = bound("peers.listen", self.address)
        self.door = PeerDoor(listener, self.membership, answers, token=self.trust.token, tls=tls)
        self.door.start()
        self.membership.begin()

    def stop(self) -> None:
        """Answer and ask nobody any more."""
        if self.door is not None:
            self.door.stop()
        self.membership.close()


def peers_of(
    settings: Settings, store: Store, bucket: Bucket, remote: RemoteSettings, pace: RestorePace
) -> NodePeers | None:
    """Return the peers that the settings list, if any; documents of ``bucket`` come from them too.

    Raises:
        ConfigError: `peers.trust` cannot be used.
    """
    listed = settings.peers
    if not listed.trust:
        return None
    trust = trust_of(Path(listed.trust), settings.tls_files)
    place = quote(" ".join(filter(None, scheme_of(remote).identity(remote))), safe="/: ")
    own = NodeIdentity(store.store_id, place, listed.domain)
    headers, here = headers_of(own, trust.token), address_of_door(listed.listen)
    source = "" if here[0] in ANYWHERE else here[0]

    def open_peer(host: str, address: str, port: int) -> HttpPeer:
        return HttpPeer(host, (address, port), headers, trust.context, source)

    membership = Membership(listed.nodes, own, open_peer, pace.clock)
    one_fetch = OneFetch(membership, bucket.objects, pace)
    bucket.document = one_fetch.document
    return NodePeers(membership, one_fetch, here, trust, bucket)
