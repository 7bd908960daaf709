"""Processes that carry the bytes of large parts: what they move, and how they may end."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from cachetier_client.bucket_format.stored import Codec
from cachetier_client.bucket_format.uploads import UploadedPart, UploadPartRange
from cachetier_client.identity.names import SaveIds
from cachetier_client.io.digests import BLOCK_BYTES, block_lengths, digest_of

from cachetier.carriers import pool
from cachetier.carriers.checked_file import DamagedError
from cachetier.carriers.pool import SMALL_BYTES, Carriers
from cachetier.carriers.process import TELL_SECONDS
from cachetier.carriers.stored_blocks import BlockSink, StoredBlocks
from cachetier.codec.codecs import CODECS
from cachetier.drain.upload.buffers import Buffers
from cachetier.drain.upload.source import FileSource
from cachetier.errors import IntegrityError, ThrottledError, TransientError, UploadGoneError
from cachetier.remote.base import ObjectStore
from cachetier.remote.call_policy import CallPolicy, Retries, RetryPolicy
from cachetier.remote.stall_guard import Timeouts
from cachetier.remote.wrapped import WrappedObjectStore
from cachetier.testing.http_wire import WireHead
from cachetier.testing.s3_endpoint import S3Endpoint
from cachetier.testing.s3proxy import S3Proxy
from cachetier.testing.troubles import Fault, Trouble, Troubles
from tests.carried import carried, carriers_to
from tests.integration.drain_node import Node, content_of, patterned

PART_BYTES = 8 << 20
PATIENCE_SECONDS = 120.0
pytestmark = pytest.mark.timeout(300)


class Gate(Troubles):
    """Holds large parts and ranges back until it is opened; ``held`` counts them."""

    def __init__(self) -> None:
        super().__init__()
        self.held = 0
        self.is_open = True
        self._changed = threading.Condition()

    def open(self) -> None:
        with self._changed:
            self.is_open = True
            self._changed.notify_all()

    def strike(self, request: WireHead) -> Trouble | None:
        sent_bytes = int(request.fields.get("content-length", 0))
        if sent_bytes >= SMALL_BYTES or "range" in request.fields:
            with self._changed:
                self.held += 1
                self._changed.notify_all()
                self._changed.wait_for(lambda: self.is_open, PATIENCE_SECONDS)
        return super().strike(request)

    def wait_until_held(self, count: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self.held >= count, PATIENCE_SECONDS)


@dataclass
class Scene:
    """Carriers to a server behind a gate, and a file of which they send parts."""

    carriers: Carriers
    store: ObjectStore
    direct: ObjectStore
    gate: Gate
    source: FileSource
    threads: ThreadPoolExecutor
    data: bytes
    key: str = "key"
    upload_id: str = ""
    into: int = -1

    def send(self, number: int = 1) -> UploadedPart:
        part = UploadPartRange(number, (number - 1) * PART_BYTES, PART_BYTES)
        body, digest = self.source.stream(part, Buffers().lend)
        return self.store.upload_part(self.key, self.upload_id, number, body, digest=digest)

    def fetch(self, data: bytes, frames: Sequence[bytes] = (), wrong: int = -1) -> list[int]:
        """Fetch blocks, from byte 1 on, into the file that the scene began with; return which came.

        ``frames`` are what is stored for them, and the block ``wrong`` has another digest.
        """
        stored = b"".join(frames) or data
        digests = [
            digest ^ (number == wrong)
            for number, digest in enumerate(content_of(data).block_digests)
        ]
        sizes = tuple(map(len, frames)) or tuple(block_lengths(len(data)))
        codec = Codec.ZSTD if frames else Codec.RAW
        blocks = StoredBlocks(0, sizes, tuple(digests), len(data), codec)
        self.direct.put(self.key, b"." + stored, digest=digest_of(b"." + stored))
        came: list[int] = []
        into = BlockSink(blocks, _never, came.append, self.into)
        try:
            self.store.read_into(self.key, 1, into)
        except IntegrityError as error:
            assert error.message == f"block {wrong} differs"  # noqa: PT017
        return came

    def sending(self, number: int = 1) -> Future[UploadedPart]:
        return self.threads.submit(self.send, number)

    def kill(self, count: int) -> None:
        """Kill all carriers once ``count`` parts were held."""
        self.gate.wait_until_held(count)
        for pid in self.carriers.pids():
            os.kill(pid, signal.SIGKILL)


@pytest.fixture
def scene(tmp_path: Path, moto_s3: S3Endpoint, request: pytest.FixtureRequest) -> Iterator[Scene]:
    with scene_at(tmp_path, moto_s3, request.node.name) as made:
        yield made


def _never(_piece: object, _offset: int) -> None:
    raise AssertionError("the carrier writes")


@contextmanager
def scene_at(tmp_path: Path, server: S3Endpoint, key: str) -> Iterator[Scene]:
    gate, data = Gate(), patterned(2 * PART_BYTES)
    (tmp_path / "data").write_bytes(data)
    descriptor = os.open(tmp_path / "data", os.O_RDONLY)
    source = FileSource(descriptor, content_of(data).block_digests)
    with (
        S3Proxy(server.url, troubles=gate) as proxy,
        ThreadPoolExecutor(4) as threads,
        carriers_to(proxied := server.behind(proxy.url)) as carriers,
    ):
        store = carried(carriers, proxied, Timeouts())
        made = Scene(carriers, store, server.store(), gate, source, threads, data, key)
        made.upload_id = store.create_upload(key)
        made.into = os.open(tmp_path / "data", os.O_RDWR)
        try:
            yield made
        finally:
            gate.open()
            source.close()
            os.close(made.into)


def listed(scene: Scene) -> dict[int, int]:
    found = scene.direct.list_parts(scene.key, scene.upload_id)
    return {number: size_bytes for number, (_, size_bytes) in found.items()}


def test_parts_are_sent_by_carriers_and_what_they_moved_is_seen_here(scene: Scene) -> None:
    parts = [each.result(PATIENCE_SECONDS) for each in (scene.sending(1), scene.sending(2))]

    digest = content_of(scene.data).digest
    scene.store.complete_upload(scene.key, scene.upload_id, parts, digest=digest)
    assert scene.direct.get(scene.key) == scene.data
    assert scene.carriers.counters.moved_bytes() == len(scene.data)
    assert scene.carriers.counters.read_seconds() > 0
    assert 1 <= len(scene.carriers.pids()) <= 2


def test_a_carrier_is_there_before_its_first_job(scene: Scene) -> None:
    scene.carriers.prepare()
    prepared = scene.carriers.pids()
    assert len(prepared) == 1

    scene.sending().result(PATIENCE_SECONDS)
    assert scene.carriers.pids() == prepared


def test_a_large_put_is_carried_with_all_that_it_says(scene: Scene) -> None:
    body, digest = scene.source.stream(UploadPartRange(1, 0, PART_BYTES), Buffers().lend)
    headers = {"content-type": "text/x-test"}
    stored = scene.store.put(
        scene.key, body, digest=digest, metadata={"who": "me"}, headers=headers
    )

    found = scene.direct.head(scene.key)
    assert found is not None
    assert (found.etag, found.metadata, stored.metadata) == (
        stored.etag,
        {"who": "me"},
        {"who": "me"},
    )
    assert found.headers["content-type"] == "text/x-test"
    assert scene.carriers.counters.moved_bytes() == PART_BYTES


def test_an_error_is_the_same_here_as_in_the_carrier(scene: Scene) -> None:
    scene.gate.add(Fault(Trouble.SLOW_DOWN, "UploadPart"))
    with pytest.raises(ThrottledError) as throttled:
        scene.send()
    scene.gate.clear()
    scene.gate.add(Fault(Trouble.NO_SUCH_UPLOAD, "UploadPart"))
    with pytest.raises(UploadGoneError):
        scene.send()

    assert throttled.value.context["remote_status"] == 503
    assert throttled.value.context["key"] == scene.key


def test_a_damaged_block_is_never_sent_whole(scene: Scene) -> None:
    scene.source.block_digests = [1, *scene.source.block_digests[1:]]
    with pytest.raises(DamagedError, match="block 0"):
        scene.send()
    assert listed(scene) == {}


@pytest.mark.parametrize("codec", [Codec.RAW, Codec.ZSTD])
def test_blocks_come_into_a_file_by_a_carrier(scene: Scene, codec: Codec) -> None:
    data = patterned(2 * BLOCK_BYTES + 77)[::-1]
    encode = CODECS[Codec.ZSTD].stored_frame
    blocks = [data[at : at + BLOCK_BYTES] for at in range(0, len(data), BLOCK_BYTES)]
    came = scene.fetch(data, () if codec is Codec.RAW else [encode(each) for each in blocks])

    assert came == [0, 1, 2]
    assert os.pread(scene.into, len(scene.data), 0) == data + scene.data[len(data) :]
    assert scene.carriers.counters.moved_bytes() >= len(data)


def test_a_block_that_comes_wrong_is_not_told_of(scene: Scene) -> None:
    assert scene.fetch(scene.data[::-1], wrong=1) == [0]


def test_blocks_that_a_killed_carrier_was_to_fetch_come_by_another(scene: Scene) -> None:
    scene.gate.is_open = False
    fetch = scene.threads.submit(scene.fetch, scene.data[::-1])
    scene.kill(1)
    scene.gate.open()

    assert fetch.result(PATIENCE_SECONDS) == list(range(len(scene.data) // BLOCK_BYTES))
    assert os.pread(scene.into, len(scene.data), 0) == scene.data[::-1]


def test_a_range_that_breaks_off_goes_on_where_it_was(scene: Scene) -> None:
    data = scene.data[::-1]
    scene.store = CallPolicy(scene.store, retries=Retries(RetryPolicy(), sleep=lambda _: None))
    scene.gate.add(Fault(Trouble.CUT_REPLY, "GetObject"))

    assert scene.fetch(data) == list(range(len(data) // BLOCK_BYTES))
    assert os.pread(scene.into, len(data), 0) == data
    assert scene.gate.seen["GetObject"] >= 2


def test_without_a_nursery_blocks_come_in_this_process(scene: Scene) -> None:
    scene.carriers.lost = True
    written = bytearray(PART_BYTES)

    def write(piece: bytes | bytearray | memoryview, offset: int) -> None:
        written[offset : offset + len(piece)] = piece

    data = scene.data[:PART_BYTES]
    content = content_of(data)
    sizes = tuple(block_lengths(PART_BYTES))
    blocks = StoredBlocks(0, sizes, tuple(content.block_digests), PART_BYTES)
    scene.direct.put(scene.key, data, digest=content.digest)
    scene.store.read_into(scene.key, 0, BlockSink(blocks, write, lambda _: None, scene.into))

    assert (bytes(written), scene.carriers.pids()) == (data, [])


def test_the_jobs_of_a_killed_carrier_are_done_by_another(scene: Scene) -> None:
    scene.gate.is_open = False
    sends = [scene.sending(1), scene.sending(2)]
    scene.kill(2)
    scene.gate.open()

    assert [each.result(PATIENCE_SECONDS).number for each in sends] == [1, 2]
    assert listed(scene) == {1: PART_BYTES, 2: PART_BYTES}
    assert scene.carriers.counters.moved_bytes() >= len(scene.data)


def test_a_job_that_kills_two_carriers_runs_in_none_again(scene: Scene) -> None:
    scene.gate.is_open = False
    send = scene.sending()
    scene.kill(1)
    scene.kill(2)
    with pytest.raises(IntegrityError, match="died of it, 2 times"):
        send.result(PATIENCE_SECONDS)
    scene.gate.open()
    with pytest.raises(IntegrityError, match="died of it"):
        scene.send()
    other = scene.send(2)

    assert scene.gate.held == 3
    assert other.number == 2


def test_a_job_is_cut_off_while_it_waits(scene: Scene) -> None:
    scene.gate.is_open = False
    threads: list[int] = []

    def send() -> UploadedPart:
        threads.append(threading.get_ident())
        return scene.send()

    sent = scene.threads.submit(send)
    scene.gate.wait_until_held(1)
    while not sent.done():  # as `Stragglers` does: it may not be there yet
        scene.carriers.cut(threads[0])
        time.sleep(0.05)
    with pytest.raises(TransientError):
        sent.result()


def test_a_carrier_says_how_far_it_is_at_intervals_and_not_for_each_job(scene: Scene) -> None:
    scene.gate.is_open = False
    began = time.monotonic()
    sends = [scene.sending(number) for number in (1, 2, 1, 2)]
    scene.gate.wait_until_held(len(sends))
    told = scene.carriers.counters.of(0)[2]
    assert told <= 1 + (time.monotonic() - began) / TELL_SECONDS
    scene.gate.open()
    for sent in sends:
        sent.result(PATIENCE_SECONDS)


@pytest.mark.slow
def test_a_carrier_that_hangs_is_killed_and_its_job_done_by_another(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "SILENT_SECONDS", 10.0)  # its successor has to begin within
    scene.send()
    (hangs,) = scene.carriers.pids()
    os.kill(hangs, signal.SIGSTOP)

    assert scene.send(2).number == 2
    assert hangs not in scene.carriers.pids()


def test_carriers_end_with_their_nursery(tmp_path: Path, moto_s3: S3Endpoint) -> None:
    with scene_at(tmp_path, moto_s3, "nursery") as scene:
        scene.send()
        pids = scene.carriers.pids()
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))


def wait_until(happens: Callable[[], bool]) -> None:
    give_up_at = time.monotonic() + PATIENCE_SECONDS
    while not happens():
        assert time.monotonic() < give_up_at
        time.sleep(0.02)


class JudgingStore(WrappedObjectStore):
    """Counts as one that judges digests: else bodies are in memory, and no carrier sends them."""

    keeps_digests = True


def test_a_shard_whose_part_kills_two_carriers_waits_for_a_person(
    tmp_path: Path, moto_s3: S3Endpoint
) -> None:
    ids = SaveIds("deadly", 1, "save-1")
    with scene_at(tmp_path, moto_s3, "deadly") as scene:
        node = Node(tmp_path / "cache", JudgingStore(scene.store))
        node.put(ids, "large", patterned(PART_BYTES))
        node.seal(ids)
        scene.gate.is_open = False
        with node.draining():
            scene.kill(1)
            scene.kill(2)
            node.wait_until(lambda: bool(node.told()), PATIENCE_SECONDS)
            scene.gate.open()
        error, (told,) = node.state()["last_error"], node.told()
        node.close()

    assert (error["code"], error["name"]) == ("deadly", "large")
    assert "died of it, 2 times" in told.message
    assert (told.run, told.step, told.name) == ("deadly", 1, "large")
    assert "restart the service" in told.hint


# --- planted bugs ---------------------------------------------------------------------------------


class LyingStore(WrappedObjectStore):
    """Reports its first part without sending it."""

    lied = False

    def upload_part(
        self, key: str, upload_id: str, number: int, body: Any, *, digest: int
    ) -> UploadedPart:
        if not self.lied:
            self.lied = True
            return UploadedPart(number, '"0123"', body.size_bytes, digest)
        return self._store.upload_part(key, upload_id, number, body, digest=digest)


def test_a_part_that_a_carrier_reports_and_never_sent_is_found_before_anything_counts(
    tmp_path: Path, moto_s3: S3Endpoint
) -> None:
    ids = SaveIds("lying", 1, "save-1")
    data = patterned(3 * PART_BYTES)
    with carriers_to(moto_s3) as carriers:
        lying = LyingStore(carried(carriers, moto_s3, Timeouts()))
        node = Node(tmp_path / "cache", lying)
        node.put(ids, "large", data)
        node.seal(ids)
        with node.draining():
            node.wait_durable(ids, PATIENCE_SECONDS)
        key = node.key(ids, "large")
        node.close()

    assert lying.lied
    assert moto_s3.store().get(key) == data


def test_who_waits_for_a_dead_carrier_for_ever_is_noticed(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tests above end only because a reply is made up for the jobs of a dead carrier."""

    def forgetful(carrier: pool._Carrier) -> None:
        carrier.is_alive = False

    monkeypatch.setattr(pool._Carrier, "_end", forgetful)
    scene.gate.is_open = False
    sent = scene.sending()
    scene.kill(1)
    scene.gate.open()
    wait_until(lambda: not scene.carriers.pids())
    with pytest.raises(TimeoutError):
        sent.result(0.5)
    (died,) = [each for each in scene.carriers._places if each is not None]
    for reply in died.jobs.values():
        reply.set_result(0)  # or the test would wait for ever, too
    assert sent.result(PATIENCE_SECONDS).number == 1
