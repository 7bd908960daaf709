"""The drain's end of the channel: what it makes of a reply that nobody waits for."""

from __future__ import annotations

import os
import socket

from cachetier_client.transport.wire import send_frame

from cachetier.drain.channel import AskingEnd


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
