"""Three nodes by compose, as docs/compose.md has it: upgraded under a job, lost, replaced."""

from __future__ import annotations

import ipaddress
import json
import os
import secrets
import shutil
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import pytest
from cachetier_client import CachetierClientError, Client

from tests.acceptance.stack import Stack, eventually, free_ports

pytestmark = [
    pytest.mark.acceptance,
    pytest.mark.xdist_group("docker"),
    pytest.mark.timeout(900),
]

RUN = "walk"
OWNER = 10001


@dataclass
class Nodes:
    """Projects of one bucket, each with a socket that ranks on the host reach."""

    stack: Stack
    folder: Path
    bridge: str
    s3_port: str = field(default_factory=lambda: free_ports()["SEAWEEDFS_S3_PORT"])
    running: dict[str, Stack] = field(default_factory=dict)

    def start(self, name: str, *, profiles: str = "", **settings: str) -> None:
        sockets = self.folder / name
        sockets.mkdir(mode=0o755)
        os.chown(sockets, OWNER, OWNER)
        node = self.stack.beside(
            f"acceptance-{name}",
            COMPOSE_PROFILES=profiles,
            CACHETIER_NODE=name,
            CACHETIER_SOCKET_DIR=str(sockets),
            CACHETIER_ALLOWED_UIDS=str(os.getuid()),
            CACHETIER_REMOTE_ENDPOINT=f"http://{self.bridge}:{self.s3_port}",
            **settings,
        )
        self.running[name] = node
        node.up()

    def start_three(self) -> None:
        store = {"SEAWEEDFS_ADDRESS": self.bridge, "SEAWEEDFS_S3_PORT": self.s3_port}
        self.start("node-a", profiles="store", **store)
        self.start("node-b")
        self.start("node-c")

    def client(self, name: str) -> Client:
        return Client(f"unix://{self.folder}/{name}/cachetier.sock", fallback="wait")

    def verb(self, name: str, *arguments: str) -> str:
        return self.running[name].compose("exec", "-T", "cachetier", "cachetier", *arguments)

    def save(self, step: int, *names: str) -> None:
        """Save a step of one rank on each node."""
        for rank, name in enumerate(names):
            with (
                self.client(name) as client,
                client.checkpoint(
                    RUN, step, rank=rank, world_size=len(names), save_id=f"s{step}"
                ) as part,
            ):
                part.put(shard_of(step, rank), f"rank-{rank}")


@contextmanager
def nodes_of(stack: Stack) -> Iterator[Nodes]:
    """Lend a cluster that has no node yet."""
    described = json.loads(stack.docker.run("network", "inspect", "bridge"))
    subnet = ipaddress.ip_network(described[0]["IPAM"]["Config"][0]["Subnet"])
    folder = Path(tempfile.mkdtemp(prefix="ct-"))  # a socket's path is short
    folder.chmod(0o755)
    made = Nodes(stack, folder, str(next(subnet.hosts())))
    try:
        yield made
    finally:
        for node in made.running.values():
            node.down()
        shutil.rmtree(folder)


@pytest.fixture
def nodes(stack: Stack) -> Iterator[Nodes]:
    with nodes_of(stack) as made:
        made.start_three()
        yield made


@pytest.fixture
def peers(stack: Stack, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Nodes]:
    """Three nodes that are peers, with the settings that a test names."""
    token = tmp_path / "peers.token"
    token.write_text(secrets.token_hex(32))
    os.chown(token, OWNER, OWNER)
    token.chmod(0o400)
    settings = {"PEERS_NETWORK": "acceptance-peers", "PEERS_TOKEN_FILE": str(token)}
    files = (*stack.files, "deploy/compose-peers.yml")
    chosen = stack.settings | settings | getattr(request, "param", {})
    stack.docker.run("network", "create", settings["PEERS_NETWORK"])
    try:
        with nodes_of(replace(stack, files=files, settings=chosen)) as nodes:
            nodes.start_three()
            yield nodes
    finally:
        stack.docker.run("network", "rm", settings["PEERS_NETWORK"])


def test_three_nodes_that_are_peers_read_a_step_from_the_store_once(peers: Nodes) -> None:
    peers.save(1, "node-a")
    with peers.client("node-a") as client:
        client.wait(RUN, 1, "durable", 60)
    for name in ("node-b", "node-c"):
        peers.verb(name, "restore", RUN)
        came = json.loads(peers.verb(name, "status", "--json"))["restore"]
        assert came["from_peers_bytes"] == len(shard_of(1, 0))
        assert came["from_remotes_bytes"] == 0


def knows_the_step(client: Client) -> bool:
    with suppress(CachetierClientError):  # the store hangs
        return client.latest(RUN, "replicated") is not None
    return False


@pytest.mark.parametrize(
    "peers", [{"PEERS_COPIES": "1", "CACHETIER_EXPOSURE_OBJECTIVE": "60s"}], indirect=True
)
def test_one_of_three_nodes_is_lost_for_good_and_its_neighbours_go_on(peers: Nodes) -> None:
    peers.running["node-a"].compose("pause", "seaweedfs")
    peers.save(1, "node-c")
    with peers.client("node-c") as client:
        assert client.wait(RUN, 1, "replicated", 120).level == "replicated"
    peers.running.pop("node-c").down()  # its volume too

    for name in ("node-a", "node-b"):
        with peers.client(name) as client:
            eventually(partial(knows_the_step, client), seconds=180)
            assert bytes(client.get_shard(RUN, 1, "rank-0")) == shard_of(1, 0)
    peers.save(2, "node-a", "node-b")  # the job goes on

    peers.running["node-a"].compose("unpause", "seaweedfs")
    with peers.client("node-b") as client:
        for step in (1, 2):  # a neighbour has brought the first one
            assert client.wait(RUN, step, "durable", 180).level == "durable"


def test_a_node_is_upgraded_under_a_job_and_another_is_lost_and_replaced(nodes: Nodes) -> None:
    job = Job(nodes, "node-a", "node-b", "node-c")
    job.until(2)
    for name in job.names:
        upgrade(nodes, name)
        job.until(job.saved + 1)
    last = job.end()

    with nodes.client("node-a") as client:
        client.wait(RUN, last, "durable", 60)
    nodes.running["node-a"].compose("pause", "seaweedfs")
    nodes.save(last + 1, *job.names)  # on the nodes alone
    nodes.running.pop("node-c").down()  # its volume too
    nodes.running["node-a"].compose("unpause", "seaweedfs")

    nodes.start("node-d")
    eventually(lambda: "nothing dirty" in nodes.verb("node-a", "status"))
    assert nodes.verb("node-d", "ls", RUN) == ""  # none is here
    assert nodes.verb("node-d", "ls", RUN, "--latest").split() == [str(last)]
    assert "3 shards" in nodes.verb("node-d", "verify", RUN)
    for name in ("node-a", "node-b", "node-d"):
        nodes.verb(name, "restore", RUN)

    nodes.running["node-a"].compose("stop", "seaweedfs")
    for name in ("node-a", "node-b", "node-d"):
        with nodes.client(name) as client:
            for rank in range(3):
                got = client.get_shard(RUN, last, f"rank-{rank}")
                assert bytes(got) == shard_of(last, rank)
    nodes.save(last + 2, "node-a", "node-b", "node-d")  # the job goes on without S3
    nodes.running["node-a"].compose("start", "seaweedfs")
    with nodes.client("node-d") as client:
        assert client.wait(RUN, last + 2, "durable", 120).level == "durable"


class Job(threading.Thread):
    """Saves steps, one after the other, until it is to end."""

    def __init__(self, nodes: Nodes, *names: str) -> None:
        super().__init__()
        self.nodes, self.names = nodes, names
        self.saved, self.failed = 0, ""
        self._ends = threading.Event()
        self.start()

    def run(self) -> None:
        try:
            while not self._ends.is_set():
                self.nodes.save(self.saved + 1, *self.names)
                self.saved += 1
        except Exception as error:
            self.failed = repr(error)

    def until(self, saved: int) -> None:
        eventually(lambda: self.saved >= saved or self.failed)
        assert self.failed == ""

    def end(self) -> int:
        self._ends.set()
        self.join()
        assert self.failed == ""
        return self.saved


def upgrade(nodes: Nodes, name: str) -> None:
    """Start a node anew with an image of another label."""
    node = nodes.running[name]
    old = node.container("cachetier")
    image = f"{node.settings['CACHETIER_IMAGE']}:next"
    with suppress(FileExistsError):
        (nodes.folder / "next").mkdir()
    (nodes.folder / "next" / "Dockerfile").write_text(f"FROM {old['Image']}\nLABEL next=yes\n")
    if nodes.stack.docker.run("images", "--quiet", image) == "":
        nodes.stack.docker.run("build", "--tag", image, str(nodes.folder / "next"))
    node.settings["CACHETIER_IMAGE"] = image
    node.up("cachetier")
    new = node.container("cachetier")
    assert new["Id"] != old["Id"]
    assert new["Config"]["Labels"]["next"] == "yes"
    assert new["Config"]["Hostname"] == old["Config"]["Hostname"] == name


def shard_of(step: int, rank: int) -> bytes:
    return bytes([step % 251, rank]) * (1 << 18)
