"""What crosses the channel arrives as it was sent."""

from __future__ import annotations

import os

import pytest
from cachetier_client.bucket_format.publication import Claimant

from cachetier.drain.messages import (
    Handout,
    LocalShard,
    PackVerified,
    Refusal,
    ShardVerified,
    decode,
    encode,
)
from cachetier.drain.schedule.tasks import Task, TaskKind
from cachetier.model.stored import Codec, InPack, Stored, StoredFrame

IN_PACK = InPack("pack-1-0", 3, 100, 7)


@pytest.mark.parametrize(
    "message",
    [
        ShardVerified(1, Stored(Codec.RAW, 10, 5, pack=IN_PACK), 0.5, {"read": [0.0, 0.1, 0.1]}),
        ShardVerified(1, Stored(Codec.PLANES, 10, 5, (StoredFrame(4, 9),), 8), 0.5, {}),
        PackVerified({1: IN_PACK}, 100, 0.5),
        Handout(
            (Task(1, TaskKind.PACK, 2, Claimant("run", 7, "save-1", 2, False, 1.0), None),),
            1.5,
            True,
        ),
        Refusal("not_found", "it was deleted"),
        [("a", 1)],
        None,
    ],
)
def test_a_message_arrives_as_it_was_sent(message: object) -> None:
    body, descriptor = encode(message)

    assert descriptor is None
    assert decode(bytearray(body)) == message


def test_a_descriptor_goes_beside_the_message_and_one_that_nobody_wants_is_closed() -> None:
    reader, writer = os.pipe()
    body, descriptor = encode(LocalShard(None, (1,), reader, "id", 5, Codec.RAW, 0))
    assert descriptor == reader

    arrived = decode(body, writer)
    assert arrived == LocalShard(None, (1,), writer, "id", 5, Codec.RAW, 0)

    decode(encode(None)[0], writer)
    with pytest.raises(OSError):
        os.fstat(writer)
    os.close(reader)
