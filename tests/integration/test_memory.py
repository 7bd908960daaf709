"""Resident memory while ranks put 64 GiB, and while objects of the bucket are bombs.

The caps are those that ``cachetier doctor`` counts with: 256 MiB for serve, 384 for each drain.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest
from cachetier_client import Client
from cachetier_client.bucket_format.stored import Codec

from benchmarks import processes, raw
from benchmarks.node import TOKEN, Node, node
from cachetier.doctor.node import DRAIN_BYTES, SERVE_BYTES
from cachetier.errors import IntegrityError
from tests.faults.counting import count
from tests.faults.slices import everything
from tests.unit.codec import test_hostile as frames

SHARD_BYTES = 1 << 30
SHARDS = 64
AT_ONCE = 8  # half of them through each door; what a round has put is deleted before the next
ABOVE = 1.1
Frames = tuple[bytes, ...]


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Node]:
    settings = {"capacity": "12 GB"}
    with node(tmp_path / "cache", settings=settings) as started:
        yield started


@pytest.mark.skipif(not everything(), reason="writes 64 GiB: make faults PART=memory")
def test_sixty_four_gibibytes_of_puts_stay_within_the_cap(
    service: Node, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CACHETIER_TOKEN", TOKEN)
    source = raw.random_buffer(SHARD_BYTES)
    doors = (service.url, f"http://127.0.0.1:{service.http_port}")
    with ExitStack() as stack:
        clients = [stack.enter_context(Client(url)) for url in doors]
        threads = stack.enter_context(ThreadPoolExecutor(AT_ONCE))

        def put(step: int, number: int) -> None:
            clients[number % 2].put_shard(
                source,
                run="memory",
                step=step,
                name=f"shard-{number}",
                rank=0,
                world_size=1,
                save_id="save",
                timeout_seconds=120.0,
            )

        for step in range(SHARDS // AT_ONCE):
            for done in [threads.submit(put, step, number) for number in range(AT_ONCE)]:
                done.result()
            clients[0].delete_step("memory", step)
    serve = processes.peak_bytes(service.pid)
    drains = [processes.peak_bytes(pid) for pid in service.drain_pids()]
    print(f"serve {serve >> 20} MiB, drains {[peak >> 20 for peak in drains]} MiB")
    assert serve <= SERVE_BYTES * ABOVE
    assert drains
    assert max(drains) <= DRAIN_BYTES * ABOVE
    count(request, "puts of 1 GiB", SHARDS)
    count(request, "MiB of serve at its peak", serve >> 20)


def of_a_window(size_log: int) -> bytes:
    """Return a frame of a few bytes whose decoder is asked to hold a window of such a size."""
    block = b"abcdefgh"
    head = (len(block) << 3 | 1).to_bytes(3, "little")
    return b"\x28\xb5\x2f\xfd\x00" + bytes([(size_log - 10) << 3]) + head + block


BOMBS: dict[str, Callable[[Frames], Frames]] = {
    "of a gibibyte": frames.FORGERIES["a bomb"],
    "of a gibibyte that declares nothing": frames.FORGERIES["a bomb that declares nothing"],
    "with a window of two gibibytes": lambda honest: (of_a_window(31), *honest[1:]),
    "with a window of 128 mebibytes": lambda honest: (of_a_window(27), *honest[1:]),
}


@pytest.mark.parametrize("bomb", BOMBS)
@pytest.mark.parametrize(("codec", "element_size"), [(Codec.ZSTD, 0), (Codec.PLANES, 4)])
def test_a_bomb_in_the_bucket_is_an_error_in_little_memory(
    bomb: str, codec: Codec, element_size: int, request: pytest.FixtureRequest
) -> None:
    shard = frames.shard_of(BOMBS[bomb](frames.frames_of(codec)), codec, element_size)
    frames.read(frames.shard_of(frames.frames_of(codec), codec, element_size))  # warms up
    before = _forgotten_peak()

    with pytest.raises(IntegrityError):
        frames.read(shard)
    assert not frames.is_read_back(shard)

    assert processes.peak_bytes(os.getpid()) - before <= SERVE_BYTES // 10
    count(request, "bombs that were read", 1)


def _forgotten_peak() -> int:
    """Let the kernel forget this process's peak; return what it is now."""
    Path("/proc/self/clear_refs").write_text("5")
    return processes.peak_bytes(os.getpid())
