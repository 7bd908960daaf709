"""Hostile requests of HTTP, made by chance from a seed; what they are aimed at is read off the app.

Paths, methods and parameters come from ``/openapi.json``, so that a new route is met by itself.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from tests.fakes.access import BEARER
from tests.integration.serving import Caller, Served

NAMES = (
    *("..", ".", "", "a;b", ".cachetier", "/etc/passwd", "../../etc/passwd", "x" * 3000),
    *("%2e%2e%2f%2e%2e%2fetc%2fpasswd", "%c0%ae%c0%ae", "a%5c..", "%e2%80%ae", "%ff%fe"),
    *("a%00b", "a%0d%0aX: y"),
)
VALUES: tuple[Any, ...] = (
    *("", "x", "../..", "\0", "é", "x" * 5000, -1, 0, 1, 2**31, 2**63, 10**30, 1e308, -0.0),
    *(float("nan"), float("inf"), True, False, None, [], {}, [[[]]], {"a": {"b": 1}}),
)
HEADERS = (
    *("Range", "If-None-Match", "Cachetier-Digest", "Cachetier-Element-Size", "Content-Type"),
    *("Traceparent", "Expect", "Transfer-Encoding", "Content-Encoding", "Host", "Upgrade", "X"),
)
HEADER_VALUES = (
    *("bytes=0-", "bytes=-1", "bytes=5-1", "bytes=0-0,1-1", f"bytes={'9' * 30}-", "bytes=a-b"),
    *("identity", "100-continue", "chunked", "application/json; charset=utf-7", "é" * 50),
    *("x", "0" * 2000),
)


@dataclass(frozen=True)
class Operation:
    """A method of a route, and what it says it takes."""

    method: str
    path: str
    query: tuple[str, ...] = ()
    fields: tuple[str, ...] = ()


USUAL = {"run": "r", "step": "1", "name": "kept", "token_id": "00000000"}


@dataclass
class Sent:
    """One request, byte by byte."""

    method: str
    target: str
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    body: bytes = b""
    bearer: bytes | None = BEARER["Authorization"].encode()

    def raw(self) -> bytes:
        named = {name.lower() for name, _ in self.headers}
        usual = [(b"Connection", b"close")]
        if b"host" not in named:
            usual.append((b"Host", b"127.0.0.1"))
        if self.bearer is not None and b"authorization" not in named:
            usual.append((b"Authorization", self.bearer))
        if not named & {b"content-length", b"transfer-encoding"}:
            usual.append((b"Content-Length", b"%d" % len(self.body)))
        lines = [name + b": " + value for name, value in (*usual, *self.headers)]
        first = f"{self.method} {self.target} HTTP/1.1".encode()
        return b"\r\n".join((first, *lines, b"", b"")) + self.body


def operations_of(served: Served, headers: dict[str, str] | None = None) -> list[Operation]:
    """Return every operation of the application, its own description among them."""
    described = served.call("GET", "/openapi.json", headers=headers).json
    schemas = described["components"]["schemas"]
    found = [Operation("GET", "/openapi.json")]
    for path, methods in described["paths"].items():
        for method, operation in methods.items():
            if method == "parameters":
                continue
            parameters = operation.get("parameters", [])
            query = tuple(each["name"] for each in parameters if each["in"] == "query")
            content = operation.get("requestBody", {}).get("content", {})
            reference = content.get("application/json", {}).get("schema", {}).get("$ref", "")
            model = schemas.get(reference.rpartition("/")[2], {})
            fields = tuple(model.get("properties", ()))
            found.append(Operation(method.upper(), path, query, fields))
    return found


def usual_target(operation: Operation) -> str:
    """Return the operation's path about a step that may be there."""
    return operation.path.format(**USUAL)


def hostile(operation: Operation, chance: random.Random) -> Sent:
    """Return one request that an attacker, a broken client or a fuzzer might send."""
    usual = dict(USUAL)
    for part in usual:
        if chance.random() < 0.3:
            usual[part] = chance.choice(NAMES)
    target = operation.path.format(**usual)
    if chance.random() < 0.1:
        target = _flipped(target, chance)
    names = [*operation.query, "timeout_seconds", "unknown"]
    query = [(chance.choice(names), chance.choice(VALUES)) for _ in range(chance.randrange(3))]
    if query:
        target += "?" + "&".join(f"{name}={quote(str(value)[:3000])}" for name, value in query)
    method = operation.method if chance.random() < 0.8 else chance.choice(("PUT", "PATCH", "TRACE"))
    headers = [_header(chance) for _ in range(chance.choice((0, 0, 1, 3)))]
    body = _body(operation, chance)
    if body and chance.random() < 0.8:
        headers.append((b"Content-Type", b"application/json"))
    return Sent(method, target, headers, body)


def _header(chance: random.Random) -> tuple[bytes, bytes]:
    name = chance.choice(HEADERS)
    value = chance.choice(HEADER_VALUES).encode("latin-1")
    return name.encode(), value if chance.random() < 0.7 else _noise(chance)


def _noise(chance: random.Random) -> bytes:
    noise = bytes(chance.choices(range(0x21, 0x100), k=chance.randrange(1, 60)))
    return noise.replace(b"\x7f", b"?")


def _body(operation: Operation, chance: random.Random) -> bytes:
    if operation.method == "GET" or chance.random() < 0.1:
        return b""
    kind = chance.randrange(6)
    if kind == 0:
        return chance.randbytes(chance.randrange(300))
    if kind == 1:
        return b"[" * 50_000 + b"]" * chance.choice((0, 50_000))
    if kind == 2:
        return b'{"\xff": "\\ud800", "a": 1e999}'
    names = [*operation.fields, "unknown"]
    document = {name: chance.choice(VALUES) for name in chance.choices(names, k=4)}
    text = json.dumps(document)
    return (text if kind < 5 else _flipped(text, chance)).encode()


def _flipped(text: str, chance: random.Random) -> str:
    """Return ``text`` with one character changed; never into what would end a head's line."""
    at = chance.randrange(1, len(text))
    return text[:at] + chance.choice("%\\?#;:@[]{}~^`|<>\"'") + text[at + 1 :]


def answered(call: Caller, sent: Sent) -> tuple[int, bytes]:
    """Return the status, 0 for a connection closed without a word, and all that came."""
    answer = call.send_raw(sent.raw()).removeprefix(b"HTTP/1.1 100 Continue\r\n\r\n")
    return (int(answer.split(b" ", 2)[1]) if answer else 0), answer


def listing(directory: Path, but: Path) -> Iterator[tuple[str, int, int]]:
    """Return path, size and time of change of all under ``directory`` that is not under ``but``."""
    for path in sorted(directory.rglob("*")):
        if path != but and but not in path.parents and path not in but.parents:
            state = path.lstat()
            yield str(path), state.st_size, state.st_mtime_ns
