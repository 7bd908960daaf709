"""The client for asyncio: the same calls, awaited, and none of them cut off half-way."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
from cachetier_client import (
    Client,
    InvalidRequestError,
    NotDurableError,
    NotFoundError,
    SealedError,
    SizeMismatchError,
)
from cachetier_client.aio import AsyncCheckpoint, AsyncClient, AsyncShardReader
from cachetier_client.checkpoints import Checkpoint
from cachetier_client.streams.reader import ShardReader

from tests.client.fake_service import FakeService, Refusal

LARGE = bytes(range(256)) * (9 << 12)  # 9 MiB: three blocks
SECONDS = 30.0
Answer = TypeVar("Answer")


class Gate:
    """Holds an operation of the fake service until the test opens it."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self._open = threading.Event()

    def __call__(self) -> None:
        self.reached.set()
        assert self._open.wait(SECONDS)

    def open(self) -> None:
        self._open.set()

    async def until_reached(self) -> None:
        assert await asyncio.to_thread(self.reached.wait, SECONDS)


@pytest.fixture
def gate() -> Iterator[Gate]:
    made = Gate()
    yield made
    made.open()


def with_client(
    service: FakeService, use: Callable[[AsyncClient], Awaitable[Answer]], **options: Any
) -> Answer:
    """Use a client in a loop of its own."""

    async def main() -> Answer:
        async with AsyncClient(service.url, run="a-run", **options) as client:
            return await use(client)

    return asyncio.run(main())


async def cut_off(call: Coroutine[Any, Any, object], gate: Gate) -> asyncio.Task[object]:
    """Cancel a call that the service holds at the gate; return its task once it has ended."""
    task = asyncio.create_task(call)
    await gate.until_reached()
    task.cancel()
    done, _ = await asyncio.wait([task], timeout=0.05)
    assert not done, "a call that has begun is waited for"
    gate.open()
    await asyncio.wait([task], timeout=SECONDS)
    return task


@pytest.mark.parametrize(
    ("asynchronous", "blocking", "left"),
    [  # what does not wait, and what a coroutine writes or reads in another way
        (AsyncClient, Client, "training_step blocking lost_hints fallback_shards fallback_bytes "),
        (AsyncCheckpoint, Checkpoint, "open"),
        (AsyncShardReader, ShardReader, "readable seekable tell readall mode close"),
    ],
)
def test_every_call_is_there_takes_what_the_blocking_one_takes_and_says_the_same(
    asynchronous: type, blocking: type, left: str
) -> None:
    names = {
        name
        for base in blocking.__mro__
        if base.__module__.startswith("cachetier_client")
        for name in vars(base)
        if not name.startswith("_")
    }
    assert names - set(left.split()) - {"closed"} <= set(dir(asynchronous))
    for name in names & set(dir(asynchronous)) - {"close", "open_shard"}:
        awaited, method = getattr(asynchronous, name), getattr(blocking, name)
        assert inspect.signature(awaited) == inspect.signature(method)
        assert awaited.__doc__ == method.__doc__


def test_what_only_asyncio_has_names_its_options_as_the_call_behind_it_does() -> None:
    def options(call: object) -> dict[str, inspect.Parameter]:
        found = inspect.signature(call).parameters  # type: ignore[arg-type]
        assert not any(each.kind is each.VAR_KEYWORD for each in found.values())
        return dict(found)

    put, put_file = options(Client.put_shard), options(AsyncClient.put_file)
    assert {**put, "path": None, "data": None} == {**put_file, "path": None, "data": None}
    opened, sent = options(Checkpoint.open), options(AsyncCheckpoint.put_file)
    assert opened == {name: each for name, each in {**opened, **sent}.items() if name != "path"}
    assert opened.keys() - {"size_bytes"} == sent.keys() - {"path"}
    got = options(AsyncClient.open_shard)
    assert got["timeout_seconds"] == options(AsyncClient.get_file)["timeout_seconds"]
    assert got["timeout_seconds"] == options(Client.get_shard)["timeout_seconds"]


def test_a_step_is_saved_found_and_read(service: FakeService) -> None:
    async def use(client: AsyncClient) -> None:
        async with client.checkpoint(None, 7, rank=0, world_size=1) as checkpoint:
            puts = [checkpoint.put(bytes([n]), f"shard-{n}") for n in range(20)]
            await asyncio.gather(*puts, checkpoint.put(LARGE, "large"))
        assert checkpoint.blocking.sealed_ranks == (0,)
        assert bytes(await client.get_shard(None, 7, "large")) == LARGE
        into = bytearray(3)
        await client.read_ranges(None, 7, {"large": [(5 << 20, into)]})
        assert bytes(into) == LARGE[5 << 20 :][:3]
        async with client.open_shard(None, 7, "large") as reader:
            assert isinstance(reader, AsyncShardReader)
            await reader.seek(-2, 2)
            assert await reader.read() == LARGE[-2:]
        with pytest.raises(NotFoundError):
            await client.get_shard(None, 7, "none")

    with_client(service, use)
    assert len(service.shards) == 21
    assert len(service.sealed) == 1


def test_more_calls_than_threads_take_turns(service: FakeService) -> None:
    async def use(client: AsyncClient) -> None:
        puts = [client.put_shard(b"x", step=1, name=f"{n}") for n in range(50)]
        assert len(await asyncio.gather(*puts)) == 50

    with_client(service, use, calls=2)
    assert service.connections <= 3
    with pytest.raises(ValueError, match="calls=0 allows no call"):
        AsyncClient(service.url, calls=0)


def test_a_put_that_is_cancelled_is_whole_before_the_cancellation_goes_on(
    service: FakeService, gate: Gate
) -> None:
    service.before["put"] = gate

    async def use(client: AsyncClient) -> None:
        data = bytearray(b"lent")
        task = await cut_off(client.put_shard(data, step=1, name="x"), gate)
        assert task.cancelled()
        data[:] = b"mine"  # nobody reads it any more

    with_client(service, use)
    assert service.shards["a-run", 1, "x"].content == b"lent"


def test_a_put_that_is_cancelled_before_a_thread_has_begun_it_does_nothing(
    service: FakeService, gate: Gate
) -> None:
    service.before["put"] = gate

    async def use(client: AsyncClient) -> None:
        first = asyncio.create_task(client.put_shard(b"x", step=1, name="first"))
        await gate.until_reached()
        second = asyncio.create_task(client.put_shard(b"x", step=1, name="second"))
        await asyncio.sleep(0)
        second.cancel()
        with pytest.raises(asyncio.CancelledError):
            await second
        gate.open()
        await first

    with_client(service, use, calls=1)
    assert [name for _, _, name in service.shards] == ["first"]


def test_a_checkpoint_that_is_cancelled_is_taken_back(service: FakeService) -> None:
    async def use(client: AsyncClient) -> None:
        async def save() -> None:
            async with client.checkpoint(None, 7, rank=0, world_size=1) as checkpoint:
                await checkpoint.put(b"x", "a")
                there.set()
                await asyncio.Event().wait()

        there = asyncio.Event()
        task = asyncio.create_task(save())
        await there.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with_client(service, use)
    assert (len(service.aborted), service.sealed) == (1, [])


def test_a_checkpoint_that_cannot_be_sealed_says_so_and_is_taken_back(
    service: FakeService,
) -> None:
    service.refusals["seal"] = [Refusal("sealed")]

    async def use(client: AsyncClient) -> None:
        with pytest.raises(SealedError):
            async with client.checkpoint(None, 7, rank=0, world_size=1) as checkpoint:
                await checkpoint.put(b"x", "a")

    with_client(service, use)
    assert (len(service.aborted), service.sealed) == (1, [])


def test_a_wait_that_is_cancelled_ends_soon_and_one_that_is_not_asks_on(
    service: FakeService, monkeypatch: pytest.MonkeyPatch, gate: Gate
) -> None:
    monkeypatch.setattr("cachetier_client.aio.threads._SLICE_SECONDS", 0.0)
    service.refusals["wait"] = [Refusal("not_durable")] * 3
    service.answers["wait"] = {"level": "durable", "age_seconds": 1.0}

    async def use(client: AsyncClient) -> None:
        reached = await client.wait(None, 1, "durable", SECONDS)
        assert reached.level == "durable"
        service.before["wait"] = gate
        service.refusals["wait"] = [Refusal("not_durable")] * 2
        task = await cut_off(client.wait(None, 1, timeout_seconds=SECONDS), gate)
        assert task.cancelled()

    with_client(service, use)
    assert len(service.ids("wait")) == 5, "a wait that was cancelled is not asked again"


def test_a_wait_that_is_not_fulfilled_says_how_long_it_was_given(service: FakeService) -> None:
    service.refusals["wait"] = [Refusal("not_durable")]
    service.refusals["flush"] = [Refusal("not_durable")]

    async def use(client: AsyncClient) -> None:
        with pytest.raises(NotDurableError) as late:
            await client.wait(None, 1, "durable", 0.5)
        assert late.value.__notes__ == ["the call was given 0.5 s in all"]
        with pytest.raises(NotDurableError) as early:
            await client.flush(timeout_seconds=60.0)
        assert early.value.__notes__ == ["the call was given 60 s in all"]
        with pytest.raises(InvalidRequestError, match="not a number"):
            await client.wait(None, 1, "durable", float("inf"))

    with_client(service, use)
    assert len(service.ids("flush")) == 1, "an answer that came at once is no matter of time"


def test_files_go_in_and_come_out(service: FakeService, tmp_path: Path) -> None:
    source, target = tmp_path / "in", tmp_path / "out"
    source.write_bytes(LARGE)
    target.write_bytes(b"older")

    async def use(client: AsyncClient) -> None:
        receipt = await client.put_file(source, step=1, name="alone", element_size=2)
        assert receipt.size_bytes == len(LARGE)
        async with client.checkpoint(None, 2, rank=0, world_size=1) as checkpoint:
            await checkpoint.put_file(str(source), "a")
        assert list(checkpoint.blocking.receipts) == ["a"]
        assert await client.get_file(None, 2, "a", target) == len(LARGE)

    with_client(service, use)
    assert target.read_bytes() == LARGE
    assert service.shards["a-run", 1, "alone"].content == LARGE
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_file()) == ["in", "out"]


def test_a_file_whose_put_is_cut_off_leaves_no_shard(
    service: FakeService, tmp_path: Path, gate: Gate
) -> None:
    source = tmp_path / "in"
    source.write_bytes(LARGE)
    service.before["begin"] = gate

    async def use(client: AsyncClient) -> None:
        task = await cut_off(client.put_file(source, step=1, name="x"), gate)
        assert task.cancelled()

    with_client(service, use)
    assert "begin" in service.ops
    assert (service.shards, service.staged) == ({}, {})


def test_a_file_whose_get_is_cut_off_is_not_there(
    service: FakeService, tmp_path: Path, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, names = tmp_path / "out", []
    target.write_bytes(b"older")
    readinto = ShardReader.readinto

    def read_and_hold(reader: ShardReader, buffer: Any) -> int:
        if reader.tell():  # the first piece is written
            names.extend([path.name for path in tmp_path.glob(".out.*")])
            gate()
        return readinto(reader, buffer)

    async def use(client: AsyncClient) -> None:
        await client.put_shard(LARGE, step=1, name="x")
        monkeypatch.setattr(ShardReader, "readinto", read_and_hold)
        task = await cut_off(client.get_file(None, 1, "x", target), gate)
        assert task.cancelled()

    with_client(service, use)
    assert len(names) == 1
    assert target.read_bytes() == b"older"
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["out"]


def test_a_file_that_cannot_be_read_or_written_says_so(
    service: FakeService, tmp_path: Path
) -> None:
    source = tmp_path / "in"
    source.write_bytes(LARGE)

    async def use(client: AsyncClient) -> None:
        with pytest.raises(FileNotFoundError):
            await client.put_file(tmp_path / "none", step=1, name="x")
        service.before["begin"] = lambda: source.write_bytes(LARGE + b"longer")
        with pytest.raises(SizeMismatchError):
            await client.put_file(source, step=1, name="x")
        await client.put_shard(b"x", step=1, name="x")
        with pytest.raises(FileNotFoundError):
            await client.get_file(None, 1, "x", tmp_path / "none" / "out")
        with pytest.raises(NotFoundError):
            await client.get_file(None, 1, "other", tmp_path / "out")

    with_client(service, use)
    assert [name for _, _, name in service.shards] == ["x"]
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["in"]


def test_a_closed_client_takes_no_calls(service: FakeService) -> None:
    async def main() -> None:
        client = AsyncClient(service.url, run="a-run")
        await client.status()
        await client.close()
        await client.close()
        with pytest.raises(InvalidRequestError, match="the client is closed"):
            await client.status()

    service.answers["status"] = {"status": {}}
    asyncio.run(main())
