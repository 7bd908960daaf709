"""What crosses the channel arrives as it was sent."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any, get_args

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

from cachetier.drain.messages import (
    AnyRequest,
    FindDonor,
    FinishTask,
    Handout,
    LocalShard,
    NextWork,
    OpenShard,
    PackMembers,
    PackVerified,
    PartPage,
    ReadPart,
    Refusal,
    Request,
    ShardVerified,
    Size,
    decode_refusal,
    decode_reply,
    decode_request,
    encode_refusal,
    encode_reply,
    encode_request,
)
from cachetier.drain.schedule.tasks import Task, TaskKind
from cachetier.model.packs import Member

IN_PACK = InPack("pack-1-0", 3, 100, 2**64 - 1)
FACTS = ShardFacts(element_size=4)
FRAMES = Stored(Codec.PLANES, 10, 5, (StoredFrame(4, 9),), 8)
BYTES = bytes(range(256))
CLAIM = Task(1, TaskKind.PACK, 2, Claimant("run", 7, "save-1", 2, False, 1.0), None)


@pytest.mark.parametrize(
    "request_",
    [
        ShardVerified(1, Stored(Codec.RAW, 10, 5, pack=IN_PACK), 0.5, {"read": [0.0, 0.1, 0.1]}),
        ShardVerified(1, FRAMES, 0.5, {}),
        PackVerified(1, {1: IN_PACK}, 100, 0.5),
    ],
)
def test_a_request_arrives_as_it_was_sent(request_: Request[Any]) -> None:
    name, body = encode_request(request_)

    assert decode_request(name, bytearray(body)) == request_


@pytest.mark.parametrize(
    ("asked", "reply"),
    [
        (NextWork, Handout((CLAIM,), 1.5, True)),
        (PackMembers, [Member(1, "a", 3, 2**63)]),
        (
            ReadPart,
            PartPage([(1, "a", Content(3, 7, (7,)), FRAMES, FACTS)], more=True),
        ),
        (FindDonor, None),
        (FinishTask, None),
    ],
)
def test_a_reply_arrives_as_it_was_sent(asked: type[Request[Any]], reply: object) -> None:
    body, descriptor = encode_reply(reply)

    assert descriptor is None
    assert decode_reply(asked, bytearray(body)) == reply


def test_a_refusal_arrives_as_it_was_sent() -> None:
    refusal = Refusal("not_found", "it was deleted")

    assert decode_refusal(encode_refusal(refusal.code, refusal.message)) == refusal


def test_a_refusal_arrives_though_its_text_is_none() -> None:
    assert decode_refusal(encode_refusal("internal", "no /\udcff")).message == "no /?"


def test_a_descriptor_is_closed_where_its_reply_cannot_be_read() -> None:
    reader, writer = os.pipe()
    for descriptor in (reader, writer):
        with pytest.raises(ValueError):
            decode_reply(OpenShard, b"{]", descriptor)
        with pytest.raises(OSError):
            os.fstat(descriptor)


def test_bytes_arrive_whatever_they_are() -> None:
    body, _ = encode_reply(LocalShard(BYTES, (1,), None, None, None, Codec.RAW, 0))

    assert decode_reply(OpenShard, body).body == BYTES


def test_a_descriptor_goes_beside_the_message_and_one_that_nobody_wants_is_closed() -> None:
    reader, writer = os.pipe()
    shard = LocalShard(None, (1,), reader, "id", 5, Codec.RAW, 0)
    body, descriptor = encode_reply(shard)
    assert descriptor == reader

    arrived = decode_reply(OpenShard, body, writer)
    assert arrived == LocalShard(None, (1,), writer, "id", 5, Codec.RAW, 0)

    decode_reply(FinishTask, encode_reply(None)[0], writer)
    with pytest.raises(OSError):
        os.fstat(writer)
    os.close(reader)


def test_every_request_names_the_type_of_its_reply() -> None:
    for asked in get_args(AnyRequest):
        with pytest.raises(ValueError):
            decode_reply(asked, b"{]")


@pytest.mark.parametrize(("name", "body"), [("Nothing", b"{}"), ("OpenShard", b"[]")])
def test_what_is_no_request_is_refused(name: str, body: bytes) -> None:
    with pytest.raises((KeyError, ValueError)):
        decode_request(name, body)


FIRST_READS = """
import sys, threading
from contextlib import suppress
from typing import get_args
from cachetier.drain import messages

sys.setswitchinterval(1e-6)
BODY = b'{"content": {}, "stored": {}, "shards": [[1, "a", {}, {}]], "tasks": [{}]}'
kinds, together = get_args(messages.AnyRequest), threading.Barrier(16)

def read(turn):
    together.wait()
    for kind in kinds[turn % 5:] + kinds[:turn % 5]:
        for body in (b"{}", BODY):
            with suppress(ValueError):
                messages.decode_request(kind.__name__, body)
            with suppress(ValueError):
                messages.decode_reply(kind, body)

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
        encode_reply(LocalShard(None, (1,), reader, "no /\udcff", 5, Codec.RAW, 0))

    with pytest.raises(OSError):
        os.fstat(reader)


@pytest.mark.parametrize(
    ("mebibytes", "parts", "left"), [(64, 32, 48), (128, 64, 96), (256, 128, 192), (1024, 128, 960)]
)
def test_a_drain_sends_as_many_parts_at_once_as_its_memory_has_pieces_for(
    mebibytes: int, parts: int, left: int
) -> None:
    size = Size.within(mebibytes << 20, 8, 2, block_copies=True)
    assert (size.parts, size.budget_bytes) == (parts, left << 20)
