"""The ends of the channel: replies that nobody waits for, and calls that are none."""

from __future__ import annotations

import os
import re
import socket
from typing import cast

import pytest
from cachetier_client.clock import SystemClock
from cachetier_client.transport.wire import receive_frame, send_frame

from cachetier.drain.channel import AskingEnd, DrainLink
from cachetier.drain.serve.service import DrainService
from cachetier.notifier import Changes


def test_a_reply_that_nobody_waits_for_is_dropped_and_its_descriptor_closed() -> None:
    ours, theirs = socket.socketpair()
    channel = AskingEnd(theirs)
    reader, writer = os.pipe()
    woken: list[str] = []
    with ours:
        send_frame(ours, {"id": 7}, b"null", reader)
        send_frame(ours, {"id": 8}, b"null")
        send_frame(ours, {"wake": True})
        os.close(reader)

        def wake() -> None:
            woken.append("by what came behind")
            ours.shutdown(socket.SHUT_RDWR)

        channel.listen(wake)
    channel.close()

    assert woken == ["by what came behind"]
    try:
        os.write(writer, b"x")
    except BrokenPipeError:
        return  # nobody has the other end of the pipe any more
    finally:
        os.close(writer)
    raise AssertionError("the descriptor is still open")


@pytest.mark.parametrize(
    ("name", "body", "said"),
    [
        ("nothing", b"{}", "nothing: KeyError"),
        ("_shard", b'{"version": 1}', "_shard: KeyError"),
        ("open_shard", b"[]", "open_shard: "),
        ("open_shard", b"{}", "open_shard: .*`version`"),
        ("open_shard", b'{"version": "1"}', r"open_shard: .*\$\.version"),
        ("open_shard", b'{"version": 1, "more": 2}', "open_shard: .*`more`"),
    ],
)
def test_a_call_that_is_none_is_refused_by_name(name: str, body: bytes, said: str) -> None:
    ours, theirs = socket.socketpair()
    link = DrainLink(ours, cast("DrainService", object()), Changes(SystemClock()))
    link.start()
    with theirs:
        send_frame(theirs, {"id": 7, "request": name}, body)
        frame = receive_frame(theirs)
    link.close()

    assert frame.header == {"id": 7, "refused": "internal"}
    assert re.search(said, frame.body.decode())
