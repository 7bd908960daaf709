"""Valid traffic of both doors: a real client speaks to a real service, and a relay writes it down.

It is made anew by each run, the same each time: nothing in it tells when or where it was made.
"""

from __future__ import annotations

import array
import contextlib
import json
import os
import random
import re
import selectors
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

from cachetier_client import Client
from cachetier_client.deadline import Deadline
from cachetier_client.errors import CachetierClientError
from cachetier_client.io.digests import BLOCK_BYTES
from cachetier_client.transport.wire import MAGIC, PREFIX

from tests.fakes.fake_clock import FakeClock
from tests.integration.serving import serving

TOKEN = "the-token-of-the-owner-0123456789"
RUN = "fuzz"
DOORS = ("http", "unix")
PATTERN = random.Random(1).randbytes(150_000) * 30  # every large shard begins so
LARGE, LARGER = PATTERN[:150_000], PATTERN[: BLOCK_BYTES + 1000]
SMALL = b"a small shard" * 20
_CLIENT_ID = re.compile(rb'(client_id(?:=|": ?"))[0-9a-f]{16}')
_TIMEOUT = re.compile(rb'(timeout_seconds(?:=|": ?))([0-9.]+)')
_STAGING = re.compile(rb'"staging":\d')
_HOST = re.compile(rb"Host: [^\r]*")
_OF_A_STAGE = ("extend", "block", "commit", "abort")
_PIECE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Exchange:
    """What a client sent for one operation: messages that follow one another."""

    name: str
    messages: tuple[bytes, ...]


# --- the relay -----------------------------------------------------------------------------------


class Relay:
    """Stands before a door; ``turns`` has, for each connection, what came before each answer."""

    def __init__(self, listener: socket.socket, connect: Callable[[], socket.socket]) -> None:
        self.turns: list[list[bytes]] = []
        self._listener = listener
        self._connect = connect
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def close(self) -> None:
        """Take no more connections, and wait until those there are have ended."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(60)

    def _accept(self) -> None:
        while True:
            try:
                client, _address = self._listener.accept()
            except OSError:
                return
            turns: list[bytes] = []
            self.turns.append(turns)
            thread = threading.Thread(target=self._relay, args=(client, turns), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _relay(self, client: socket.socket, turns: list[bytes]) -> None:
        sent = bytearray()
        gone = contextlib.suppress(OSError)  # either of the two
        with gone, client, self._connect() as service, selectors.DefaultSelector() as ready:
            ready.register(client, selectors.EVENT_READ)
            ready.register(service, selectors.EVENT_READ)
            while True:
                for key, _events in ready.select():
                    if key.fileobj is client:
                        if not (data := client.recv(_PIECE_BYTES)):
                            return
                        sent += data
                        service.sendall(data)
                        continue
                    if sent:
                        turns.append(bytes(sent))
                        sent.clear()
                    if not _passed_on(service, client):
                        return


def _passed_on(service: socket.socket, client: socket.socket) -> bool:
    """Give the client what the service says next, with its descriptor; False at the end."""
    if service.family != socket.AF_UNIX:
        data = service.recv(_PIECE_BYTES)
        client.sendall(data)
        return bool(data)
    data, descriptors, _flags, _address = socket.recv_fds(service, _PIECE_BYTES, 1)
    if data:
        attached = array.array("i", descriptors)
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, attached)] if descriptors else []
        count = client.sendmsg([data], ancillary)
        client.sendall(data[count:])
    for descriptor in descriptors:
        os.close(descriptor)
    return bool(data)


@contextmanager
def relayed(url: str, directory: Path) -> Iterator[tuple[str, Relay]]:
    """Lend a relay before the door at ``url``, and the address where it listens."""
    if url.startswith("unix://"):
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(directory / "r"))
        ours = f"unix://{directory}/r"
    else:
        listener = socket.create_server(("127.0.0.1", 0))
        ours = f"http://127.0.0.1:{listener.getsockname()[1]}"
    listener.listen()
    relay = Relay(listener, lambda: connected(url))
    try:
        yield ours, relay
    finally:
        relay.close()


def connected(url: str) -> socket.socket:
    """Return a bare connection to a door."""
    if url.startswith("unix://"):
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(url.removeprefix("unix://"))
        return connection
    host, _, port = url.removeprefix("http://").partition(":")
    return socket.create_connection((host, int(port)))


# --- what is done before it ----------------------------------------------------------------------


def work(client: Client) -> None:
    """Do everything a client can, most of it well."""
    ids: dict[str, Any] = {"rank": 0, "world_size": 1, "save_id": "save"}
    quick: dict[str, Any] = {"timeout_seconds": 10.0}
    brief: dict[str, Any] = {"timeout_seconds": 0.25}
    client.put_shard(SMALL, run=RUN, step=1, name="small", **ids, **quick)
    client.put_shard(LARGE, run=RUN, step=1, name="a/large", element_size=4, **ids, **quick)
    with client.open_shard(RUN, 1, "streamed", **ids, **quick) as stream:
        stream.write(PATTERN[:300_000])
    with contextlib.suppress(ZeroDivisionError), client.checkpoint(RUN, 3, **ids, **quick) as save:
        save.put(SMALL, "left")
        _ = 1 / 0  # the rank fails in the middle: its part is aborted
    client.seal(RUN, 1, **ids, **quick)
    client.get_shard(RUN, 1, "small", **quick)
    client.get_shard(RUN, 1, "a/large", **quick)
    with client.open_shard(RUN, 1, "streamed", "rb", **quick) as reader:
        reader.seek(1000)
        reader.read(1000)
    client.runs(**quick)
    client.steps(RUN, **quick)
    client.branches(RUN, **quick)
    client.steps(RUN, level="local", **quick)
    client.latest(RUN, level="local", **quick)
    client.wait(RUN, 1, "local", **quick)
    with contextlib.suppress(CachetierClientError):
        client.wait(RUN, 1, "durable", **brief)
    with contextlib.suppress(CachetierClientError):
        client.flush(RUN, 1, **brief)
    with contextlib.suppress(CachetierClientError):  # no remote has it yet
        client.restore_step(RUN, 1, ranks=[0], **brief)
    client.steps_elsewhere(RUN, **quick)
    client.check_shard(RUN, 1, "a/large", **quick)
    client.pin(RUN, 1, **quick)
    client.pins(**quick)
    client.unpin(RUN, 1, **quick)
    client.status(**quick)
    client.collect(**quick)
    client.unflushed(RUN, **quick)
    with contextlib.suppress(CachetierClientError):  # no other node has a note
        client.forget("node-17", RUN, **quick)
    client.stay(**quick)
    client.whoami(**quick)
    client.link(**quick)
    client.create_token("owner", expires_seconds=60.0, **quick)
    client.tokens(**quick)
    with contextlib.suppress(CachetierClientError):
        client.revoke_token("00000000", **quick)
    client.put_shard(SMALL, run=RUN, step=9, name="gone", **ids, **quick)
    client.delete_step(RUN, 9, **quick)


def rest(client: Client, door: str) -> None:
    """Do what a client does by itself, now and then."""
    step: dict[str, Any] = {"run": RUN, "step": 1}
    part: dict[str, Any] = {"rank": 0, "world_size": 1, "save_id": "save", "timeout_seconds": 10.0}
    calls: list[tuple[str, dict[str, Any]]] = [
        ("step", step),
        ("incidents", {"clear": True}),
        ("phase", {"busy": True}),
        ("fallback", {"shards": 1, "size_bytes": 100}),
    ]
    if door == "unix":
        with client.open_shard(RUN, 2, "longer", **part) as stream:
            stream.write(LARGER)
        with contextlib.suppress(ZeroDivisionError), client.open_shard(RUN, 2, "l", **part) as left:
            left.write(LARGER)
            _ = 1 / 0
        waits = {"timeout_seconds": 10.0}
        calls += [
            ("verify", {**step, "name": "a/large"}),
            ("arrived", {**step, "name": "a/large", "version": 2, "known": 0, **waits}),
            ("read_block", {**step, "name": "a/large", "block": 0, "timeout_seconds": 10.0}),
        ]
        with contextlib.suppress(CachetierClientError):  # the node has no mount
            list(client.objects("data"))
        with contextlib.suppress(CachetierClientError):
            client.create_s3_key(expires_seconds=60.0)
        with contextlib.suppress(CachetierClientError):
            client.settle_object("data", "a", "ours")
    for op, fields in calls:
        client._caller.transport.call(op, fields, Deadline(10.0, FakeClock()))


def record(door: str) -> list[Exchange]:
    """Return the traffic of one door, the greeting of the socket first."""
    with (
        patch.dict(os.environ, {"CACHETIER_TOKEN": TOKEN}),
        serving(token=TOKEN) as served,
    ):
        url = served.unix_url if door == "unix" else str(served.service.url)
        with relayed(url, served.cache_dir.parent) as (ours, relay):
            with Client(ours, fallback="fail", threads=1, clock=FakeClock()) as client:
                work(client)
                rest(client, door)
    split = frames_of if door == "unix" else requests_of
    recorded = [exchange for turns in relay.turns for exchange in split(turns)]
    return recorded + [by_hand(each) for each in recorded if each.name == "begin-commit"][:1]


def by_hand(put: Exchange) -> Exchange:
    """Return a put of more frames: of one that fills up, and of a node that is full."""
    begin, *others = put.messages
    extend = frame({"op": "extend", "staging": 1, "reserved_bytes": 2_000_000})
    block = frame({"op": "block", "staging": 1}, LARGE)
    return Exchange("begin-extend-block-commit", (begin, extend, block, *others))


def frame(header: Any, body: bytes = b"") -> bytes:
    """Return a frame of the socket protocol."""
    encoded = json.dumps(header, separators=(",", ":")).encode()
    return PREFIX.pack(MAGIC, len(encoded), len(body)) + encoded + body


def neutral(message: bytes) -> bytes:
    """Return a message that tells nothing of its client, waits for little, and is as long."""
    plain = _CLIENT_ID.sub(rb"\g<1>0123456789abcdef", message)
    plain = _STAGING.sub(b'"staging":1', plain)  # the first of its connection, each of them
    return _TIMEOUT.sub(lambda found: found[1] + b"0.1".ljust(len(found[2]), b"0"), plain)


def requests_of(turns: list[bytes]) -> Iterator[Exchange]:
    """Yield the requests of a connection; each asks to be the last."""
    for turn in turns:
        plain = neutral(_HOST.sub(b"Host: node", turn))
        first, _, others = plain.partition(b"\r\n")
        method, target, _version = first.decode().split()
        path = re.sub(rf"/runs/{RUN}|/steps/\d+|/shards/.*|\?.*", "", target).strip("/")
        name = "shards" if "/shards/" in target else path
        yield Exchange(f"{method} {name}", (first + b"\r\nConnection: close\r\n" + others,))


def frames_of(turns: list[bytes]) -> Iterator[Exchange]:
    """Yield the operations of a connection; those of one staged put belong together."""
    stream, stage = b"".join(turns), list[bytes]()
    while stream:
        _magic, header_bytes, body_bytes = PREFIX.unpack(stream[: PREFIX.size])
        size_bytes = PREFIX.size + header_bytes + body_bytes
        message, stream = neutral(stream[:size_bytes]), stream[size_bytes:]
        op = str(header_of(message)["op"])
        if op == "begin":
            stage = [message]
        elif op in _OF_A_STAGE:
            stage.append(message)
            if op in ("commit", "abort"):
                yield Exchange(f"begin-{op}", tuple(stage))
        else:
            yield Exchange(op, (message,))


def header_of(message: bytes) -> dict[str, Any]:
    """Return the header of a recorded frame."""
    _magic, header_bytes, _body_bytes = PREFIX.unpack(message[: PREFIX.size])
    return dict(json.loads(message[PREFIX.size : PREFIX.size + header_bytes]))
