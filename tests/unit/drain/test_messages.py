"""What crosses the channel arrives as it was sent."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest
from cachetier_client.bucket_format.publication import Claimant
from cachetier_client.bucket_format.stored import (
    Codec,
    Content,
    InPack,
    ShardFacts,
    Stored,
    StoredFrame,
)
from cachetier_client.transport.wire import Frame
from msgspec import json, structs

from cachetier.drain.channel import METHODS, encode_reply
from cachetier.drain.messages import Handout, LocalShard, PartPage, Size
from cachetier.drain.schedule.tasks import Task, TaskKind
from cachetier.drain.upload.compression_model import CompressionVerdict
from cachetier.local.catalog.rows import UploadRecord
from cachetier.model.packs import Member

IN_PACK = InPack("pack-1-0", 3, 100, 2**64 - 1)
FACTS = ShardFacts(element_size=4)
FRAMES = Stored(Codec.PLANES, 10, 5, (StoredFrame(4, 9),), 8)
BYTES = bytes(range(256))
VERDICT = CompressionVerdict(True, False, 0.5, 1e9, None, "why")
CLAIM = Task(1, TaskKind.PACK, 2, Claimant("run", 7, "save-1", 2, False, 1.0), None)


def received(name: str, body: bytes, descriptor: int | None = None) -> Any:
    return METHODS[name].result(Frame({}, bytearray(body), descriptor))


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        (
            "shard_verified",
            (1, Stored(Codec.RAW, 10, 5, pack=IN_PACK), 0.5, {"read": [0.0, 0.1, 0.1]}),
        ),
        ("shard_verified", (1, FRAMES, 0.5, {})),
        ("pack_verified", (1, {1: IN_PACK}, 100, 0.5)),
        ("report_compression", ({"stored": 1}, {"run": VERDICT})),
    ],
)
def test_a_call_arrives_as_it_was_made(name: str, arguments: tuple[object, ...]) -> None:
    method = METHODS[name]
    body = json.encode(method.arguments(*arguments))

    assert structs.astuple(method.call.decode(bytearray(body))) == arguments


@pytest.mark.parametrize(
    ("name", "reply"),
    [
        ("next_work", Handout((CLAIM,), 1.5, True)),
        ("pack_members", [Member(1, "a", 3, 2**63)]),
        (
            "read_part",
            PartPage([(1, "a", Content(3, 7, (7,)), FRAMES, FACTS)], more=True),
        ),
        ("find_donor", None),
        ("finish_task", None),
    ],
)
def test_a_reply_arrives_as_it_was_sent(name: str, reply: object) -> None:
    body, descriptor = encode_reply(reply)

    assert descriptor is None
    assert received(name, body) == reply


def test_a_descriptor_is_closed_where_its_reply_cannot_be_read() -> None:
    reader, writer = os.pipe()
    for descriptor in (reader, writer):
        with pytest.raises(ValueError):
            received("open_shard", b"{]", descriptor)
        with pytest.raises(OSError):
            os.fstat(descriptor)


def test_bytes_arrive_whatever_they_are() -> None:
    body, _ = encode_reply(LocalShard(BYTES, (1,), None))

    assert received("open_shard", body).body == BYTES


def test_a_descriptor_goes_beside_the_message_and_one_that_nobody_wants_is_closed() -> None:
    reader, writer = os.pipe()
    shard = LocalShard(None, (1,), reader, UploadRecord("id", 5))
    body, descriptor = encode_reply(shard)
    assert descriptor == reader

    arrived = received("open_shard", body, writer)
    assert arrived == LocalShard(None, (1,), writer, UploadRecord("id", 5))

    received("finish_task", encode_reply(None)[0], writer)
    with pytest.raises(OSError):
        os.fstat(writer)
    os.close(reader)


def test_only_reports_of_figures_and_health_are_not_waited_for() -> None:
    figures = {"report_copies", "report_compression", "report_health", "report_traffic"}

    assert {name for name, method in METHODS.items() if not method.waits} == figures


FIRST_READS = """
import sys, threading
from contextlib import suppress
from cachetier.drain.channel import METHODS

sys.setswitchinterval(1e-6)
BODY = b'{"content": {}, "stored": {}, "shards": [[1, "a", {}, {}]], "tasks": [{}]}'
methods, together = list(METHODS.values()), threading.Barrier(16)

def read(turn):
    together.wait()
    for method in methods[turn % 5:] + methods[:turn % 5]:
        for body in (b"{}", BODY):
            with suppress(ValueError):
                method.call.decode(body)
            with suppress(ValueError):
                method.reply.decode(body)

threads = [threading.Thread(target=read, args=(turn,)) for turn in range(16)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
"""


def test_threads_that_read_a_message_for_the_first_time_at_once_do_not_crash() -> None:
    for _ in range(4):  # each crashed in every second run
        subprocess.run([sys.executable, "-c", FIRST_READS], check=True, timeout=60)


def test_a_descriptor_is_closed_where_its_reply_cannot_be_written() -> None:
    reader, writer = os.pipe()
    os.close(writer)

    with pytest.raises(UnicodeEncodeError):
        encode_reply(LocalShard(None, (1,), reader, UploadRecord("no /\udcff", 5)))

    with pytest.raises(OSError):
        os.fstat(reader)


@pytest.mark.parametrize(
    ("mebibytes", "parts", "left"), [(64, 32, 48), (128, 64, 96), (256, 128, 192), (1024, 128, 960)]
)
def test_a_drain_sends_as_many_parts_at_once_as_its_memory_has_pieces_for(
    mebibytes: int, parts: int, left: int
) -> None:
    size = Size.within(mebibytes << 20, 8, 2, 1, block_copies=True)
    assert (size.parts, size.budget_bytes) == (parts, left << 20)
