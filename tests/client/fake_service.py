"""A service in a thread that speaks the socket protocol, and fails as told.

It keeps what the real one promises where a client could tell the difference: sizes and digests are
checked, a file still open for writing is refused, what a connection staged dies with it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cachetier_client.io import digests
from cachetier_client.transport.wire import (
    PROTOCOL,
    Frame,
    FrameError,
    Header,
    receive_frame,
    send_frame,
)


class Refusal(Exception):  # noqa: N818 - an answer, not an error of the fake's
    """Becomes an error reply."""

    def __init__(self, code: str, message: str = "as told", **more: Any) -> None:
        super().__init__(message)
        self.described = {"code": code, "message": message, "hint": f"hint of {code}", **more}


@dataclass
class Shard:
    content: bytes
    header: Header
    digests: tuple[int, ...] = ()


@dataclass
class Staging:
    header: Header
    path: Path
    reserved: int
    reader: int
    blocks: list[bytes] = field(default_factory=list)


@dataclass
class FakeService:
    """Listens on ``path``. The fields after it are what tests set and look at."""

    path: Path
    protocol: int = PROTOCOL
    inline_bytes: int = 65536
    growth_bytes: int = 5 << 20
    capacity_bytes: int = 1 << 40
    plane: str = "descriptor"
    shards: dict[tuple[str, int, str], Shard] = field(default_factory=dict)
    sealed: list[Header] = field(default_factory=list)
    aborted: list[Header] = field(default_factory=list)
    fallbacks: list[tuple[int, int]] = field(default_factory=list)
    incidents: list[Header] = field(default_factory=list)
    answers: dict[str, Header] = field(default_factory=dict)
    refusals: dict[str, list[Refusal]] = field(default_factory=dict)
    hang_ups: list[str] = field(default_factory=list)  # before doing the operation
    lost_replies: list[str] = field(default_factory=list)  # after doing it
    before: dict[str, Callable[[], object]] = field(default_factory=dict)
    damage: Callable[[bytes], bytes] | None = None  # done to local copies, until `verify`
    asked_together: threading.Barrier | None = None  # who want remote blocks, at least
    blocks_until_restored: int = 0  # how many come from the remote before a shard is brought back
    spoil: Callable[[bytes], bytes] | None = None  # done to blocks that come so
    arrives: list[set[int]] = field(default_factory=list)  # which blocks come, call by call
    lies_about: set[int] = field(default_factory=set)  # blocks that are not there though told of
    ops: list[str] = field(default_factory=list)
    requests: list[Header] = field(default_factory=list)
    connections: int = 0
    staged: dict[int, Staging] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._next = 1
        self._arriving: tuple[int, bytes, set[int]]
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._listener: socket.socket | None = None

    @property
    def url(self) -> str:
        return f"unix://{self.path}"

    def start(self) -> FakeService:
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.path.unlink(missing_ok=True)
        self._listener.bind(str(self.path))
        self._listener.listen(64)
        self._spawn(self._accept, self._listener)
        return self

    def stop(self) -> None:
        listener, self._listener = self._listener, None
        if listener is not None:
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()
        self.path.unlink(missing_ok=True)
        for sock in list(self._open):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(60)
        self._threads.clear()

    def ids(self, op: str) -> list[Header]:
        """Return the requests of one kind."""
        return [header for header in self.requests if header["op"] == op]

    # --- connections -----------------------------------------------------------------------------

    def _spawn(self, target: Callable[..., None], *args: Any) -> None:
        thread = threading.Thread(target=target, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                sock, _ = listener.accept()
            except OSError:
                return
            self.connections += 1
            self._open.add(sock)
            self._spawn(self._serve, sock)

    def _serve(self, sock: socket.socket) -> None:
        mine: list[int] = []
        try:
            while self._serve_one(sock, receive_frame(sock), mine):
                pass
        except (FrameError, OSError):
            pass
        finally:
            for number in mine:
                self._drop(number)
            self._open.discard(sock)
            sock.close()

    def _serve_one(self, sock: socket.socket, frame: Frame, mine: list[int]) -> bool:
        op = frame.header["op"]
        with self._lock:
            self.ops.append(op)
            self.requests.append(frame.header)
        self.before.get(op, lambda: None)()
        if op in self.hang_ups:
            self.hang_ups.remove(op)
            return False
        descriptor = None
        try:
            if self.refusals.get(op):
                raise self.refusals[op].pop(0)
            header, body, descriptor = self._do(op, frame, mine)
        except Refusal as refusal:
            header, body = {"ok": False, "error": refusal.described}, b""
        if op in self.lost_replies:
            self.lost_replies.remove(op)
            return False
        if op != "block":
            if self.incidents and op != "incidents":
                header.setdefault("incidents", len(self.incidents))
            send_frame(sock, header, body, descriptor)
        if descriptor is not None:
            os.close(descriptor)
        return True

    def _do(self, op: str, frame: Frame, mine: list[int]) -> tuple[Header, bytes, int | None]:
        if op in self.answers:
            return {"ok": True, **self.answers[op]}, b"", None
        reply = getattr(self, f"do_{op}")(frame)
        header, body, descriptor = reply if isinstance(reply, tuple) else (reply, b"", None)
        if op == "begin":
            mine.append(header["staging"])
        return {"ok": True, **header}, body, descriptor

    # --- operations ------------------------------------------------------------------------------

    def do_hello(self, frame: Frame) -> Header:
        if frame.header["protocol"] != self.protocol:
            raise Refusal("protocol_mismatch", f"this service speaks {self.protocol}")
        return {
            "protocol": self.protocol,
            "service": "fake",
            "store_id": "fake",
            "inline_bytes": self.inline_bytes,
            "block_bytes": digests.BLOCK_BYTES,
        }

    def do_put(self, frame: Frame) -> Header:
        body = bytes(frame.body)
        if frame.header["size_bytes"] != len(body) or len(body) > self.inline_bytes:
            raise Refusal("size_mismatch")
        if frame.header["digest"] != digests.to_hex(digests.digest_of(body)):
            raise Refusal("digest_mismatch")
        return self._kept(frame.header, body, (digests.digest_of(body),))

    def do_begin(self, frame: Frame) -> tuple[Header, bytes, int | None]:
        size = frame.header["size_bytes"]
        reserved = self.growth_bytes if size is None else size
        if reserved > self.capacity_bytes:
            raise Refusal("backpressure", "no room", retry_after_seconds=5.0)
        with self._lock:
            number, self._next = self._next, self._next + 1
        path = self.path.with_name(f"staged-{number}")
        writer = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        if reserved:
            os.posix_fallocate(writer, 0, reserved)
        reader = os.open(path, os.O_RDONLY)
        self.staged[number] = Staging(frame.header, path, reserved, reader)
        header = {"staging": number, "plane": self.plane, "reserved_bytes": reserved}
        if self.plane == "stream":
            os.close(writer)
            return header, b"", None
        return header, b"", writer

    def do_extend(self, frame: Frame) -> Header:
        staging = self.staged[frame.header["staging"]]
        if frame.header["reserved_bytes"] > self.capacity_bytes:
            raise Refusal("backpressure", "no room")
        staging.reserved = frame.header["reserved_bytes"]
        return {"reserved_bytes": staging.reserved}

    def do_block(self, frame: Frame) -> Header:
        self.staged[frame.header["staging"]].blocks.append(bytes(frame.body))
        return {}

    def do_commit(self, frame: Frame) -> Header:
        staging = self.staged[frame.header["staging"]]
        try:
            content = b"".join(staging.blocks)
            if self.plane == "descriptor":
                content = staging.path.read_bytes()
                self._refuse_if_open(staging.reader)
            if len(content) != frame.header["size_bytes"]:
                raise Refusal("size_mismatch")
            if len(content) > staging.reserved and not staging.blocks:
                raise Refusal("backpressure", "more was written than was reserved")
            taken = digests.unpack(frame.body)
            if digests.to_hex(digests.combine(taken, len(content))) != frame.header["digest"]:
                raise Refusal("digest_mismatch")
            if digests.to_hex(digests.digest_of(content)) != frame.header["digest"]:
                raise Refusal("integrity", "the digests are not those of the file")
        finally:
            self._drop(frame.header["staging"])
        return self._kept(staging.header, content, taken)

    def do_abort(self, frame: Frame) -> Header:
        self._drop(frame.header["staging"])
        return {}

    def do_open(self, frame: Frame) -> tuple[Header, bytes, int | None]:
        header = frame.header
        shard = self.shards.get((header["run"], header["step"], header["name"]))
        if shard is None:
            raise Refusal("not_found", "no such shard")
        content = shard.content
        reply: Header = {
            "size_bytes": len(content),
            "digest": digests.to_hex(digests.digest_of(content)),
            "source": "local",
            "inline": len(content) <= self.inline_bytes,
        }
        if reply["inline"]:
            return reply, content, None
        if self.blocks_until_restored and header.get("restore") is False:
            return reply, digests.pack(shard.digests), None
        path = self.path.with_name(f"opened-{threading.get_ident()}")  # one thread a connection
        if self.arrives and header.get("follow"):
            path.write_bytes(bytes(len(content)))
            self._arriving = os.open(path, os.O_RDWR), content, set[int]()
            descriptor = os.open(path, os.O_RDONLY)
            path.unlink()
            return reply | {"arriving": 3}, digests.pack(shard.digests), descriptor
        path.write_bytes(content if self.damage is None else self.damage(content))
        descriptor = os.open(path, os.O_RDONLY)
        path.unlink()
        return reply, digests.pack(shard.digests), descriptor

    def do_arrived(self, frame: Frame) -> tuple[Header, bytes, int | None]:
        assert frame.header["version"] == 3
        file, content, there = self._arriving
        there |= self.arrives.pop(0) if self.arrives else set()
        for number in there - self.lies_about:
            start = number * digests.BLOCK_BYTES
            os.pwrite(file, content[start : start + digests.BLOCK_BYTES], start)
        bits = sum(1 << number for number in there)
        return {}, bits.to_bytes(8, "little"), None

    def do_read_block(self, frame: Frame) -> tuple[Header, bytes, int | None]:
        if self.asked_together is not None:
            self.asked_together.wait(60)
        self.blocks_until_restored -= 1
        header = {**frame.header, "restore": False}
        reply, body, descriptor = self.do_open(Frame(header, bytearray(), None))
        if descriptor is None:
            shard = self.shards[header["run"], header["step"], header["name"]]
            start = header["block"] * digests.BLOCK_BYTES
            body = shard.content[start : start + digests.BLOCK_BYTES]
            body = body if self.spoil is None else self.spoil(body)
        return reply, body, descriptor

    def do_verify(self, frame: Frame) -> Header:
        damage, self.damage = self.damage, None
        return {"sound": damage is None}

    def do_seal(self, frame: Frame) -> Header:
        self.sealed.append(frame.header)
        return {"sealed_ranks": sorted({header["rank"] for header in self.sealed})}

    def do_abort_rank(self, frame: Frame) -> Header:
        self.aborted.append(frame.header)
        return {}

    def do_fallback(self, frame: Frame) -> Header:
        self.fallbacks.append((frame.header["shards"], frame.header["size_bytes"]))
        return {}

    def do_incidents(self, frame: Frame) -> Header:
        found = list(self.incidents)
        if frame.header.get("clear", True):
            self.incidents.clear()
        return {"incidents": found}

    # --- the store -------------------------------------------------------------------------------

    def _kept(self, header: Header, content: bytes, taken: tuple[int, ...]) -> Header:
        ids = (header["run"], header["step"], header["name"])
        self.shards[ids] = Shard(content, header, taken)
        return {
            "run": header["run"],
            "step": header["step"],
            "name": header["name"],
            "save_id": header["save_id"],
            "size_bytes": len(content),
            "digest": digests.to_hex(digests.digest_of(content)),
            "level": "local" if self.plane == "descriptor" else "durable",
        }

    def _refuse_if_open(self, reader: int) -> None:
        try:
            fcntl.fcntl(reader, fcntl.F_SETLEASE, fcntl.F_RDLCK)
        except BlockingIOError:
            raise Refusal("open_for_writing") from None
        fcntl.fcntl(reader, fcntl.F_SETLEASE, fcntl.F_UNLCK)

    def _drop(self, number: int) -> None:
        staging = self.staged.pop(number, None)
        if staging is not None:
            os.close(staging.reader)
            staging.path.unlink()
