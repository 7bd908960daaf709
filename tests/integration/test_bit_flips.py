"""Single bits flip, at rest and on the way: an integrity error or the right bytes, never others.

``make faults`` counts two thousand of them, ``make test`` takes a tenth.
"""

from __future__ import annotations

import contextlib
import random
import socket
import socketserver
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from cachetier_client import Client
from cachetier_client.bucket_format.stored import Codec
from cachetier_client.errors import IntegrityError as DamagedBytesError
from cachetier_client.identity.names import SaveIds
from cachetier_client.io.digests import digest_of, to_hex

from cachetier.errors import DigestMismatchError, IntegrityError, RemoteDigestError
from cachetier.local.store import Staged
from tests.fakes.bodies import noise
from tests.fakes.fake_clock import FakeClock
from tests.fakes.flipping_store import FlippingObjectStore, flipped
from tests.fakes.memory_store import MemoryObjectStore
from tests.faults.counting import count
from tests.faults.slices import share_of
from tests.integration.serving import Served, serving, shard_path
from tests.stateful.node import Node, content_of, write
from tests.stateful.unsynced import unsynced
from tests.unit.codec import test_hostile as frames

SEEDS = share_of(range(10))
FLIPS = 20  # of each seed
KIND = "flipped bits of data"
SHARDS = 4
LARGE = (5 << 20) + 17  # two parts

seeds = pytest.mark.parametrize("seed", SEEDS)


class World:
    """A node, its bucket in memory, and the way between them."""

    def __init__(self, directory: Path, seed: int, vfs: str) -> None:
        self.chance = random.Random(seed)
        self.bucket = MemoryObjectStore(minimum_part_bytes=1)
        self.way = FlippingObjectStore(self.bucket, self.chance)
        self.clock = FakeClock()
        self._directory, self._vfs, self._nodes = directory, vfs, 0
        self.node = self.new_node()

    def new_node(self) -> Node:
        """Return a node that never saw the run."""
        self._nodes += 1
        cache_dir = self._directory / f"node-{self._nodes}"
        cache_dir.mkdir()
        return Node(cache_dir, self.way, self.clock, vfs=self._vfs)

    def body(self, number: int, least: int = 66_000) -> bytes:
        return noise(least + number * 1_000, number)

    def save(self, step: int = 1, shards: int = SHARDS) -> dict[str, bytes]:
        ids = SaveIds("run", step, "save", 0, 1)
        bodies = {f"shard-{number}": self.body(number) for number in range(shards)}
        for name, body in bodies.items():
            self.node.put(ids, name, body)
        self.node.checkpoints.seal(ids, 1)
        return bodies

    def publish(self, *, packed: bool = False) -> dict[str, bytes]:
        self.node.drain.packing = lambda _save: packed
        bodies = self.save()
        self.node.drain.drain_all()
        return bodies

    def evict(self) -> None:
        for row in self.node.rows():
            self.node.evict(row)

    def flip_file(self, name: str) -> None:
        (row,) = (row for row in self.node.rows() if row.name == name)
        assert row.file_id is not None
        path = self.node.cache_dir / "data" / row.file_id[:2] / row.file_id
        path.write_bytes(flipped(path.read_bytes(), self.chance))

    def flip_object(self, key: str) -> tuple[int, int]:
        """Flip a bit of an object; return where, so that it can be flipped back."""
        info = self.bucket.head(key)
        assert info is not None
        at, bit = self.chance.randrange(info.size_bytes), self.chance.randrange(8)
        self.bucket.damage(key, at, bit)
        return at, bit


@pytest.fixture
def world(tmp_path: Path, seed: int) -> Iterator[World]:
    with unsynced() as vfs:
        made = World(tmp_path, seed, vfs)
        yield made
        made.node.close()


def bytes_or_integrity_error(node: Node, name: str) -> bytes | None:
    """Return what a reader gets who checks what came; None for an integrity error.

    Of a document it is the store that says so.
    """
    try:
        return node.get("run", 1, name)
    except (IntegrityError, RemoteDigestError):
        return None


# --- at rest -------------------------------------------------------------------------------------


@seeds
def test_a_bit_of_the_only_file(world: World, seed: int, request: pytest.FixtureRequest) -> None:
    bodies = world.save(shards=FLIPS)
    for name in bodies:
        world.flip_file(name)
        with pytest.raises(IntegrityError):
            world.node.get("run", 1, name)
    count(request, KIND, FLIPS, seed)


@seeds
def test_a_bit_of_the_local_file_of_what_is_remote_too(
    world: World, seed: int, request: pytest.FixtureRequest
) -> None:
    bodies = world.publish()
    for _ in range(FLIPS):
        name = world.chance.choice(list(bodies))
        world.flip_file(name)
        assert world.node.get("run", 1, name) == bodies[name]
    count(request, KIND, FLIPS, seed)


@seeds
def test_a_bit_of_a_body_in_the_catalog(
    world: World, seed: int, request: pytest.FixtureRequest
) -> None:
    writer = world.node.store._committer._connection
    for number in range(FLIPS):
        ids = SaveIds("run", 1, "save", 0, 1)
        world.node.put(ids, f"small-{number}", noise(100 + number, seed))
    for number, body in list(writer.execute("SELECT rowid, body FROM bodies")):
        writer.execute(
            "UPDATE bodies SET body = ? WHERE rowid = ?", (flipped(body, world.chance), number)
        )
    for number in range(FLIPS):
        assert bytes_or_integrity_error(world.node, f"small-{number}") is None
    count(request, KIND, FLIPS, seed)


@seeds
def test_a_bit_of_an_object(world: World, seed: int, request: pytest.FixtureRequest) -> None:
    bodies = world.publish()
    for _ in range(FLIPS):
        world.evict()
        name = world.chance.choice(list(bodies))
        key = f"tier/run/1/{name}"
        place = world.flip_object(key)
        with pytest.raises(IntegrityError):
            world.node.get("run", 1, name)
        world.bucket.damage(key, *place)
        assert world.node.get("run", 1, name) == bodies[name]
    count(request, KIND, FLIPS, seed)


@seeds
def test_a_bit_of_a_pack(world: World, seed: int, request: pytest.FixtureRequest) -> None:
    bodies = world.publish(packed=True)
    (key,) = (key for key in world.bucket.list("").keys if "/pack-" in key)
    for _ in range(FLIPS):
        world.evict()
        place = world.flip_object(key)
        got = {name: bytes_or_integrity_error(world.node, name) for name in bodies}
        assert sum(body is None for body in got.values()) == 1, "one member has the bit"
        assert all(body in (None, bodies[name]) for name, body in got.items())
        world.bucket.damage(key, *place)
    count(request, KIND, FLIPS, seed)


@seeds
@pytest.mark.parametrize(("codec", "element_size"), [(Codec.ZSTD, 0), (Codec.PLANES, 4)])
def test_a_bit_of_a_frame(
    codec: Codec, element_size: int, seed: int, request: pytest.FixtureRequest
) -> None:
    chance, honest = random.Random(seed), frames.frames_of(codec)
    for number in range(FLIPS // 2):
        stored = list(honest)
        stored[number % 3] = flipped(stored[number % 3], chance)
        damaged = frames.shard_of(honest, codec, element_size)
        body = b"".join(stored)
        rest = damaged.objects.get(frames.KEY)[len(body) :]
        damaged.objects.put(frames.KEY, body + rest, digest=digest_of(body + rest))
        with pytest.raises(IntegrityError):
            frames.read(damaged)
    count(request, KIND, FLIPS // 2, seed)


@seeds
@pytest.mark.parametrize("document", ["manifest.json", "rank-0.json"])
def test_a_bit_of_a_document(
    world: World, document: str, seed: int, request: pytest.FixtureRequest
) -> None:
    bodies = world.publish()
    key = f"tier/run/1/.cachetier/{document}"
    reader = world.new_node()
    for _ in range(FLIPS // 2):
        place = world.flip_object(key)
        assert bytes_or_integrity_error(reader, "shard-1") is None
        world.bucket.damage(key, *place)
    assert reader.get("run", 1, "shard-1") == bodies["shard-1"]
    reader.close()
    count(request, KIND, FLIPS // 2, seed)


# --- on the way ----------------------------------------------------------------------------------


@seeds
def test_a_bit_on_the_way_to_the_bucket(
    world: World, seed: int, request: pytest.FixtureRequest
) -> None:
    """Two parts, a small object, the rank's part and the manifest: whichever it is goes again."""
    data = noise(LARGE, seed)
    for step in range(1, FLIPS // 2 + 1):
        ids = SaveIds("run", step, "save", 0, 1)
        world.node.put(ids, "large", data)
        world.node.put(ids, "small", data[:1000])
        world.node.checkpoints.seal(ids, 1)
        world.node.real_drain.drain_one()
        world.way.wait = world.chance.randrange(3)
        for _ in range(20):
            world.node.real_drain.drain_all()
            if world.node.bucket.published("run", step) is not None:
                break
            world.clock.advance(60.0)
        assert world.way.flips == step
        assert world.node.bucket.published("run", step) is not None
        assert world.bucket.get(f"tier/run/{step}/large") == data
        assert world.bucket.get(f"tier/run/{step}/small") == data[:1000]
        world.node.checkpoints.delete_step("run", step)
    count(request, KIND, FLIPS // 2, seed)


@seeds
@pytest.mark.parametrize("packed", [False, True])
def test_a_bit_on_the_way_from_the_bucket(
    world: World, packed: bool, seed: int, request: pytest.FixtureRequest
) -> None:
    bodies = world.publish(packed=packed)
    for number in range(FLIPS):
        world.evict()
        world.way.wait = 0
        got = {name: bytes_or_integrity_error(world.node, name) for name in bodies}
        assert world.way.flips == number + 1
        assert all(body in (None, bodies[name]) for name, body in got.items())
        world.evict()
        assert all(world.node.get("run", 1, name) == body for name, body in bodies.items())
    count(request, KIND, FLIPS, seed)


@seeds
def test_a_bit_between_a_rank_and_its_node(
    world: World, seed: int, request: pytest.FixtureRequest
) -> None:
    ids, ingest = SaveIds("run", 1, "save", 0, 1), world.node.ingest
    for number in range(FLIPS):
        body = world.body(number, 100)
        with pytest.raises(DigestMismatchError):
            ingest.begin_inline(ids, "small", flipped(body, world.chance), digest_of(body), 0.0)()
        body = world.body(number)
        staged = ingest.begin(ids, "large", len(body), 0.0)
        assert isinstance(staged, Staged)
        write(staged, flipped(body, world.chance))
        ingest.commit(staged, ids, "large", content_of(body))
        with pytest.raises(IntegrityError):
            world.node.get("run", 1, "large")
    count(request, KIND, 2 * FLIPS, seed)


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serving() as running:
        yield running


@seeds
def test_a_bit_on_the_way_of_a_put_by_http(
    served: Served, seed: int, request: pytest.FixtureRequest
) -> None:
    chance = random.Random(seed)
    for number in range(FLIPS):
        body = noise(chance.choice((10, 60_000, 70_000, 300_000)), number)
        headers = {"Cachetier-Digest": to_hex(digest_of(body))}
        answer = served.call("PUT", shard_path("x"), flipped(body, chance), headers)
        assert answer.code == "digest_mismatch"
    assert served.holds_nothing()
    count(request, KIND, FLIPS, seed)


class FlippingWay(socketserver.ThreadingTCPServer):
    """Stands between clients and the node's HTTP; armed, it flips a bit of one answer's body."""

    daemon_threads = True

    def __init__(self, port: int, chance: random.Random) -> None:
        super().__init__(("127.0.0.1", 0), _Passing)
        self.port, self.chance, self.armed, self.flips = port, chance, False, 0

    def changed(self, piece: bytes) -> bytes:
        head, blank, body = piece.partition(b"\r\n\r\n")
        if not self.armed or not piece.startswith(b"HTTP/1.1 200") or not body:
            return piece
        self.armed, self.flips = False, self.flips + 1
        return head + blank + flipped(body, self.chance)


class _Passing(socketserver.BaseRequestHandler):
    server: FlippingWay

    def handle(self) -> None:
        with socket.create_connection(("127.0.0.1", self.server.port)) as node:
            asking = threading.Thread(target=self._ask, args=(node,), daemon=True)
            asking.start()
            with contextlib.suppress(OSError):
                while piece := node.recv(1 << 20):
                    if piece.startswith(b"HTTP/1.1 200") and piece.endswith(b"\r\n\r\n"):
                        piece += node.recv(1 << 20)  # a head alone has no bit of the body
                    self.request.sendall(self.server.changed(piece))

    def _ask(self, node: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while piece := self.request.recv(1 << 20):
                node.sendall(piece)
            node.shutdown(socket.SHUT_WR)


@seeds
def test_a_bit_on_the_way_of_a_get_by_http(
    served: Served, seed: int, request: pytest.FixtureRequest
) -> None:
    body = noise(200_000, seed)
    assert served.put("got", body).status in (200, 201)
    with FlippingWay(served.call.port, random.Random(seed)) as way:
        threading.Thread(target=way.serve_forever, args=(0.01,), daemon=True).start()
        with Client(f"http://127.0.0.1:{way.server_address[1]}") as client:
            for number in range(FLIPS):
                way.armed = True
                with contextlib.suppress(DamagedBytesError):
                    assert client.get_shard("r", 1, "got", timeout_seconds=5.0) == body
                assert way.flips == number + 1
                assert client.get_shard("r", 1, "got") == body
        way.shutdown()
    assert served.call("DELETE", shard_path("got")).status == 204
    count(request, KIND, FLIPS, seed)
