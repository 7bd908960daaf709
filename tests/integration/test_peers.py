"""Services that are peers: who belongs, who is refused by name, and what one fetch costs."""

from __future__ import annotations

import os
import random
import shutil
import socket
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from cachetier_client import Client
from cachetier_client.bucket_format.layout import Layout
from cachetier_client.clock import SystemClock
from cachetier_client.identity.names import SaveIds
from cachetier_client.io.digests import BLOCK_BYTES

from cachetier.errors import ConfigError, ForbiddenError, NotFoundError, TransientError
from cachetier.remote.bucket import Bucket
from cachetier.remote.neighbours import client, store
from cachetier.remote.neighbours.client import HttpPeer, WantedBlocks
from cachetier.remote.neighbours.membership import Membership, NodeIdentity, headers_of
from cachetier.remote.neighbours.trust import trust_of
from cachetier.service.service import Service
from cachetier.tls import TlsFiles
from examples.peers.cluster import port_of_all
from tests.fakes.memory_store import MemoryObjectStore
from tests.fakes.peer_lab import CountedStore
from tests.fakes.small_node import small_node
from tests.integration.certificates import Authority
from tests.integration.serving import IdleDrain
from tests.integration.two_remotes import until
from tests.stateful.node import Node

DATA = random.Random(7).randbytes(5 * BLOCK_BYTES + 99)
IDS = SaveIds("run", 1, "save", 0, 1)
TOKEN = "t" * 40
DOMAIN = "rack-1"


class Cluster:
    """Services on loopback addresses of their own, over one bucket in memory."""

    def __init__(self, scratch: Path, objects: MemoryObjectStore, undo: ExitStack) -> None:
        self.objects = CountedStore(objects)
        self.port = port_of_all()
        self.trust = scratch / "trust"
        self.trust.write_text(TOKEN)
        self.nodes: list[Service] = []
        self._scratch = scratch
        self._undo = undo

    def listed(self, count: int) -> list[str]:
        return [f"127.0.0.{number + 2}:{self.port}" for number in range(count)]

    def start(self, count: int, peers: dict[str, Any] | None = None, **others: Any) -> None:
        """Start so many nodes that list each other."""
        for number in range(count):
            table = {
                "nodes": self.listed(count),
                "listen": self.listed(count)[number],
                "trust": str(self.trust),
                "domain": DOMAIN,
                **(peers or {}),
            }
            self.nodes.append(self.service(number, peers=table, **others))
        self.wait_for(count - 1)

    def wait_for(self, count: int) -> None:
        """Return once each node knows so many others."""
        until(lambda: all(len(members(node).answering()) == count for node in self.nodes))

    def service(self, number: int, bucket: str = "bucket", **settings: Any) -> Service:
        home = self._scratch / f"n{number}-{bucket}"
        chosen = {
            "cache_dir": home,
            "socket": self._scratch / f"s{number}-{bucket}",
            "http": "",
            "remote": f"s3://{bucket}/tier",
            "capacity": "1 GB",
            "grace_seconds": 1,
            **settings,
        }
        drain = IdleDrain()
        service = Service(
            small_node(chosen),
            bucket=Bucket(self.objects, Layout("tier")),
            open_drain=lambda *_parts: drain,
        )
        service.start()
        self._undo.callback(service.stop)
        return service

    def get_all(self, nodes: list[Service] | None = None) -> list[bytes]:
        together = self.nodes if nodes is None else nodes
        with ThreadPoolExecutor(len(together)) as threads:
            return list(threads.map(get, together))


def get(node: Service) -> bytes:
    with Client(f"unix://{node.socket}") as reader:
        return bytes(reader.get_shard("run", 1, "a"))


def members(node: Service) -> Membership:
    assert node._peers is not None
    return node._peers.membership


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    monkeypatch.setattr(client, "SILENCE_SECONDS", 30.0)  # nobody here is slow on purpose
    objects = MemoryObjectStore(minimum_part_bytes=1)
    saver = Node(tmp_path / "saver", objects, SystemClock())
    saver.put(IDS, "a", DATA)
    saver.checkpoints.seal(IDS, 1)
    saver.drain.drain_all()
    saver.close()
    scratch = Path(tempfile.mkdtemp(prefix="ct-"))  # a socket's path must be short
    with ExitStack() as undo:
        undo.callback(shutil.rmtree, scratch)
        yield Cluster(scratch, objects, undo)


@contextmanager
def peer_of(cluster: Cluster, own: NodeIdentity, token: str, number: int) -> Iterator[HttpPeer]:
    """Lend what asks a node in the name of another one."""
    headers = headers_of(own, token)
    peer = HttpPeer("n", (f"127.0.0.{number + 2}", cluster.port), headers, source="127.0.0.2")
    yield peer
    peer.close()


def own_of(node: Service) -> NodeIdentity:
    return members(node).own


def test_services_read_each_range_once(cluster: Cluster) -> None:
    cluster.start(4)
    lists = cluster.objects.calls["list"]  # each start looks for seals that clients left
    assert cluster.get_all() == [DATA] * 4
    assert cluster.objects.read_bytes == len(DATA)
    assert cluster.objects.calls["list"] == lists


def test_a_service_whose_peers_are_stopped_restores_alone(cluster: Cluster) -> None:
    cluster.start(3)
    for node in cluster.nodes[1:]:
        node.stop()
    assert get(cluster.nodes[0]) == DATA
    assert cluster.objects.read_bytes == len(DATA)


def test_certificates_of_one_authority_are_trust_enough(cluster: Cluster, tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ca")
    issued = authority.issue("node")
    tls: dict[str, Any] = {"tls": [issued.certificate, issued.key]}
    nodes = [f"127.0.0.1:{port_of_all()}" for _ in range(2)]  # the address that it is for
    for number, listen in enumerate(nodes):
        peers = {"nodes": nodes, "listen": listen, "trust": str(authority.ca)}
        cluster.nodes.append(cluster.service(number, peers=peers, **tls))
    cluster.wait_for(1)
    assert cluster.get_all() == [DATA] * 2
    assert cluster.objects.read_bytes == len(DATA)


def test_a_renewed_certificate_is_shown_to_peers_and_a_broken_one_changes_nothing(
    tmp_path: Path,
) -> None:
    authority = Authority(tmp_path / "ca")
    issued = authority.issue("node")
    os.utime(issued.certificate, ns=(1, 1))  # files are told apart by their time
    context = trust_of(authority.ca, TlsFiles(issued.certificate, issued.key)).context
    assert context is not None
    first = context()
    assert context() is first
    authority.issue("node")
    renewed = context()
    assert renewed is not first
    issued.certificate.write_text("none")
    assert context() is renewed


def test_a_node_of_another_bucket_is_refused_by_name(cluster: Cluster) -> None:
    cluster.start(1, {"nodes": cluster.listed(2)})  # the other one never belongs
    peers = {"nodes": cluster.listed(2), "listen": cluster.listed(2)[1]}
    other = cluster.service(1, "other", peers={**peers, "trust": str(cluster.trust)})
    own = own_of(other)
    with (
        peer_of(cluster, own, TOKEN, 0) as asked,
        pytest.raises(ForbiddenError, match=f"node {own.store} at 127.0.0.2 has the bucket.*other"),
    ):
        asked.hello()


def test_a_wrong_token_and_another_version_are_refused(cluster: Cluster) -> None:
    cluster.start(2)
    own = own_of(cluster.nodes[0])
    with peer_of(cluster, own, "x" * 40, 1) as asked, pytest.raises(ForbiddenError, match="trust"):
        asked.hello()
    newer = NodeIdentity(own.store, own.bucket, version=9)
    with peer_of(cluster, newer, TOKEN, 1) as asked, pytest.raises(ForbiddenError, match="version"):
        asked.hello()


def test_whoever_is_not_in_the_list_gets_no_answer(cluster: Cluster) -> None:
    cluster.start(1)
    where = "127.0.0.2", cluster.port
    stranger = HttpPeer("n", where, headers_of(own_of(cluster.nodes[0]), TOKEN), source="127.0.0.9")
    with pytest.raises(TransientError):
        stranger.hello()


def test_a_peer_says_what_it_does_not_have(cluster: Cluster) -> None:
    cluster.start(2)
    wanted = WantedBlocks("run", 1, "save", "none", 1, 0, 1)
    with (
        peer_of(cluster, own_of(cluster.nodes[0]), TOKEN, 1) as asked,
        pytest.raises(NotFoundError, match="no shard none"),
    ):
        asked.read_blocks(wanted, memoryview(bytearray(BLOCK_BYTES)))


def test_a_peer_says_whether_it_knows_of_a_part(cluster: Cluster) -> None:
    cluster.start(2)
    with peer_of(cluster, own_of(cluster.nodes[0]), TOKEN, 1) as asked:
        assert not asked.knows("run", 2, "save", 0)
        with Client(f"unix://{cluster.nodes[1].socket}") as saver:
            who: dict[str, Any] = {"rank": 0, "world_size": 2, "save_id": "save"}
            saver.put_shard(DATA, run="run", step=2, name="a", **who)
            assert not asked.knows("run", 2, "save", 0)
            saver.seal("run", 2, **who)
        assert asked.knows("run", 2, "save", 0)
        assert not asked.knows("run", 2, "save", 1)


def test_documents_of_steps_alone_are_read_for_peers(cluster: Cluster) -> None:
    cluster.start(2)
    with peer_of(cluster, own_of(cluster.nodes[0]), TOKEN, 1) as asked:
        for key in ("tier/run/1/a", "elsewhere/1/.cachetier/manifest.json"):
            with pytest.raises(Exception, match="documents of steps alone"):
                asked.document(key, 1)
        assert b"published" in asked.document("tier/run/1/.cachetier/manifest.json", 1)


def test_what_is_wrong_with_the_list_is_told_at_the_start(cluster: Cluster) -> None:
    nodes = [*cluster.listed(1), *cluster.listed(1), f"nobody.invalid:{cluster.port}"]
    cluster.start(1, {"nodes": nodes})
    members(cluster.nodes[0]).answering()
    told = _warnings(cluster.nodes[0])
    assert "the peer nobody.invalid:" in told
    assert f"two of the peers have the address 127.0.0.2:{cluster.port}" in told
    assert get(cluster.nodes[0]) == DATA


def test_settings_that_cannot_be_are_refused(cluster: Cluster) -> None:
    peers = {"nodes": cluster.listed(2), "listen": cluster.listed(2)[0]}
    with pytest.raises(Exception, match=r"peers\.trust"):
        cluster.service(0, peers=peers)
    cluster.trust.write_text("short")
    with pytest.raises(ConfigError, match="no token and no certificate"):
        cluster.service(0, peers={**peers, "trust": str(cluster.trust)})
    cluster.trust.write_text(TOKEN)
    everywhere = {**peers, "listen": "0.0.0.0:0", "trust": str(cluster.trust)}
    with pytest.raises(Exception, match="clear text"):
        cluster.service(0, peers=everywhere)


def test_a_peer_that_sends_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "SILENCE_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:  # the kernel accepts
        peer = HttpPeer("silent", silent.getsockname()[:2], {})
        with pytest.raises(TransientError, match="does not answer"):
            peer.hello()


@pytest.mark.parametrize(
    ("limit", "sent"), [("PATIENCE_SECONDS", b"1\r\n\0\r\n"), ("BLOCK_SECONDS", b"2\r\n\1x\r\n")]
)
def test_a_peer_that_is_alive_and_sends_next_to_nothing_is_given_up(
    limit: str, sent: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planted: a fetcher that hangs, and one that drips. Nobody waits for it for ever."""
    monkeypatch.setattr(client, limit, 0.0)
    monkeypatch.setattr(client, "SILENCE_SECONDS", 30.0)
    with socket.create_server(("127.0.0.1", 0)) as door, ThreadPoolExecutor(1) as threads:

        def drip() -> None:
            caller, _ = door.accept()
            with caller, suppress(OSError):
                caller.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
                while True:
                    caller.sendall(sent)

        dripping = threads.submit(drip)
        peer = HttpPeer("slow", door.getsockname()[:2], {})
        wanted = WantedBlocks("run", 1, "save", "a", 1, 0, 1)
        with pytest.raises(TransientError, match="does not answer"):
            peer.read_blocks(wanted, memoryview(bytearray(BLOCK_BYTES)))
        dripping.result()


def test_a_peer_with_another_version_is_told_and_both_restore_alone(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    peers = {"nodes": cluster.listed(2), "trust": str(cluster.trust)}
    for number, version in enumerate((1, 2)):
        monkeypatch.setattr(store, "NodeIdentity", partial(NodeIdentity, version=version))
        table = {**peers, "listen": cluster.listed(2)[number]}
        cluster.nodes.append(cluster.service(number, peers=table))
    for node, other in zip(cluster.nodes, ("127.0.0.3", "127.0.0.2"), strict=True):
        members(node).heard_from("another", other)  # it was not up yet when it was asked
        assert list(members(node).answering()) == []
        assert "run one version on both" in _warnings(node)
    assert cluster.get_all() == [DATA] * 2
    assert cluster.objects.read_bytes == 2 * len(DATA)


def _warnings(node: Service) -> str:
    return "\n".join(node.report.status()["warnings"])
