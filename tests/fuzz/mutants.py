"""What a hostile, broken or unlucky peer makes of valid traffic: by chance, and again by its seed.

A mutant is made of one recorded exchange: some know what a frame or a request is made of, the
others know bytes alone. ``mutant_of(door, recorded, seed, number)`` is always the same one.
"""

from __future__ import annotations

import json
import random
import re
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from cachetier_client.transport.wire import MAGIC, PREFIX

from tests.fuzz.recording import TOKEN, Exchange, header_of
from tests.integration.hostile import HEADER_VALUES, HEADERS, NAMES, VALUES

PIECES = (
    *(b"\0", b"\r\n", b"\n", b"\r\n\r\n", b" ", b":", b"%", b"%2e%2e%2f", b"%2f", b"%00", b"../"),
    *(b"..\\", b"\xff\xfe", b"\xc0\xae", b"\xed\xa0\x80", b"{", b"}", b"[[", b'"', b"\\ud800"),
    *(b"-1", b"1e999", b"NaN", b"Infinity", b"true", b"null", b"0x10", b"9" * 400, b"A" * 5000),
    *(b".cachetier/", b"~", b"$(id)", b"' OR 1=1 --", b"chunked", MAGIC, b"HTTP/1.1"),
)
ODD_NUMBERS = (0, 1, -1, 2**31, 2**32 - 1, 2**53, 2**63 - 1, 2**63, 2**64, 10**30)
RUDE_TOKENS = (
    *(b"", b"Bearer ", b"Bearer", b"Basic dXNlcjpwYXNz", b"bearer " + TOKEN.encode()[:-1]),
    *(
        b"Bearer null",
        b"Bearer \xff",
        b"Bearer " + TOKEN.upper().encode(),
        b"Bearer " + b"x" * 9000,
    ),
    *(b"Digest " + TOKEN[:8].encode(), b"Bearer " + TOKEN.encode()[::-1], b"Bearer %00"),
)
BLIND = (b"GET /v1/status", b"DELETE /v1/runs/fuzz/steps/1", b"GET /metrics", b"GET /v1/runs")
_COSTLY = re.compile("GET|HEAD|open|arrived|verify|read_block|step|latest|abort_rank|delete_step")


@dataclass(frozen=True, slots=True)
class Mutant:
    """What is sent on one connection; ``changed`` says which of the messages is not as recorded."""

    name: str
    messages: tuple[bytes, ...]
    changed: int
    ends: bool  # the peer says that it sends no more

    @property
    def sent(self) -> bytes:
        return b"".join(self.messages)


def mutant_of(door: str, recorded: Sequence[Exchange], seed: int, number: int) -> Mutant:
    """Return a mutant; exchanges that are large, or make the service ask the bucket, are rarer."""
    chance = Chance(f"{door} {seed} {number}")
    weights = [(0.2 if _COSTLY.search(each.name) else 1) / _pieces(each) for each in recorded]
    origin = chance.choices(recorded, weights)[0]
    at = chance.randrange(len(origin.messages))
    messages = list(origin.messages)
    known = FRAME_CHANGES if door == "unix" else REQUEST_CHANGES
    names: list[str] = []
    for _ in range(chance.choice((0, 1, 1, 1, 1, 1, 2, 3))):
        kind = chance.choice((known, known, BYTE_CHANGES))
        name = chance.choice(tuple(kind))
        chance.other = chance.choice(chance.choice(recorded).messages)
        messages[at] = kind[name](chance, messages[at])
        names.append(name)
    unlikely_whole = {"cut", "cross", "frame_lengths", "length", "chunks", "smuggle"} & {*names}
    ends = chance.random() < (0.9 if unlikely_whole else 0.1)
    return Mutant(" ".join((origin.name, *names)), tuple(messages), at, ends)


def _pieces(exchange: Exchange) -> float:
    return 1 + sum(map(len, exchange.messages)) / 20_000


class Chance(random.Random):
    """Chance, and another recorded message to take pieces from."""

    other = b""

    def span(self, data: bytes, longest: int = 64) -> tuple[int, int]:
        """Return where a short piece of ``data`` begins and ends; most are near its beginning."""
        reach = len(data) if self.random() < 0.3 else min(len(data), 700)
        start = self.randrange(reach + 1)
        return start, min(len(data), start + self.randrange(1, longest))


Change = Callable[[Chance, bytes], bytes]

# --- bytes ---------------------------------------------------------------------------------------


def flip(chance: Chance, data: bytes) -> bytes:
    changed = bytearray(data)
    for _ in range(chance.choice((1, 1, 2, 8)) if data else 0):
        start, _end = chance.span(data)
        changed[min(start, len(data) - 1)] ^= 1 << chance.randrange(8)
    return bytes(changed)


def overwrite(chance: Chance, data: bytes) -> bytes:
    start, end = chance.span(data, 9)
    return data[:start] + chance.randbytes(end - start) + data[end:]


def delete(chance: Chance, data: bytes) -> bytes:
    start, end = chance.span(data)
    return data[:start] + data[end:]


def double(chance: Chance, data: bytes) -> bytes:
    start, end = chance.span(data, 300)
    return data[:end] + data[start:end] * chance.choice((1, 1, 50)) + data[end:]


def insert(chance: Chance, data: bytes) -> bytes:
    start, _end = chance.span(data)
    return data[:start] + chance.choice(PIECES) + data[start:]


def splice(chance: Chance, data: bytes) -> bytes:
    start, end = chance.span(chance.other, 500)
    place, over = chance.span(data)
    return data[:place] + chance.other[start:end] + data[over:]


def cross(chance: Chance, data: bytes) -> bytes:
    return data[: chance.span(data)[0]] + chance.other[chance.span(chance.other)[0] :]


def cut(chance: Chance, data: bytes) -> bytes:
    return data[: chance.span(data)[0]]


BYTE_CHANGES: dict[str, Change] = {
    each.__name__: each for each in (flip, overwrite, delete, double, insert, splice, cross, cut)
}

# --- JSON ----------------------------------------------------------------------------------------


def odd_value(chance: Chance) -> Any:
    """Return what a field must not be, or hardly ever is."""
    return chance.choice((*VALUES, *NAMES, *ODD_NUMBERS))


def odd_document(chance: Chance, document: dict[str, Any]) -> bytes:
    """Return a document with fields of other types, without some, with too many, or no document."""
    fields = {**document}
    name = chance.choice(tuple(fields) or ("name",))
    kind = chance.randrange(9)
    if kind <= 3:
        fields[name] = odd_value(chance)
    elif kind == 4:
        fields.pop(name, None)
    elif kind == 5:
        fields[str(odd_value(chance))] = odd_value(chance)
    text = json.dumps(fields)
    if kind == 6:  # the same field twice
        return f"{text[:-1]}, {json.dumps(name)}: {json.dumps(odd_value(chance))}}}".encode()
    if kind == 7:
        deep = chance.choice((10, 1000, 100_000))
        return text.encode()[:-1] + b', "deep": ' + b"[" * deep + b"]" * deep + b"}"
    if kind == 8:
        return json.dumps(odd_value(chance)).encode()
    return text.encode()


# --- frames --------------------------------------------------------------------------------------


def parts_of(message: bytes) -> tuple[bytes, bytes, bytes]:
    """Return prefix, header and body, as far as they are there."""
    if len(message) < PREFIX.size:
        return message, b"", b""
    _magic, header_bytes, _body_bytes = PREFIX.unpack(message[: PREFIX.size])
    rest = message[PREFIX.size :]
    return message[: PREFIX.size], rest[:header_bytes], rest[header_bytes:]


def packed(header: bytes, body: bytes) -> bytes:
    return PREFIX.pack(MAGIC, len(header), len(body)) + header + body


def frame_header(chance: Chance, message: bytes) -> bytes:
    _prefix, _header, body = parts_of(message)
    try:
        document = header_of(message)
    except (ValueError, TypeError, LookupError, RecursionError, struct.error):
        document = {}  # as another change left it
    return packed(odd_document(chance, document), body)


def frame_bytes(chance: Chance, message: bytes) -> bytes:
    """Change bytes of the header and have the lengths fit, so that it is read."""
    _prefix, header, body = parts_of(message)
    change = chance.choice(tuple(BYTE_CHANGES.values()))
    return packed(change(chance, header), body)


def frame_body(chance: Chance, message: bytes) -> bytes:
    _prefix, header, body = parts_of(message)
    return packed(header, chance.choice(tuple(BYTE_CHANGES.values()))(chance, body))


def frame_lengths(chance: Chance, message: bytes) -> bytes:
    _prefix, header, body = parts_of(message)
    sizes = [len(header), len(body)]
    at = chance.randrange(2)
    near = (sizes[at] + 1, max(0, sizes[at] - 1), 0)
    sizes[at] = chance.choice((*near, (1 << 20) - 1, 1 << 20, 4 << 20, (4 << 20) + 1, 2**32 - 1))
    return PREFIX.pack(chance.choice((MAGIC, MAGIC, b"CTR2")), *sizes) + header + body


def frame_operation(chance: Chance, message: bytes) -> bytes:
    """Ask for another operation with the same fields."""
    _prefix, header, body = parts_of(message)
    other = re.search(rb'"op":"[a-z_]+"', chance.other)
    wanted = other[0] if other else b'"op":["hello"]'
    return packed(re.sub(rb'"op":"[a-z_]+"', lambda _: wanted, header, count=1), body)


def frame_again(chance: Chance, message: bytes) -> bytes:
    """Say several things at once, without waiting for an answer."""
    return message * chance.choice((2, 3, 40)) + chance.other[:2000]


FRAME_CHANGES: dict[str, Change] = {
    each.__name__: each
    for each in (
        *(frame_header, frame_bytes, frame_body, frame_lengths, frame_operation),
        frame_again,
    )
}

# --- requests ------------------------------------------------------------------------------------


def divided(message: bytes) -> tuple[bytes, list[bytes], bytes]:
    """Return the first line, the headers, and the body."""
    head, _, body = message.partition(b"\r\n\r\n")
    first, *headers = head.split(b"\r\n")
    return first, headers, body


def joined(first: bytes, headers: Sequence[bytes], body: bytes) -> bytes:
    return b"\r\n".join((first, *headers)) + b"\r\n\r\n" + body


def without(headers: Sequence[bytes], *names: bytes) -> list[bytes]:
    return [each for each in headers if not each.lower().startswith(names)]


def target(chance: Chance, message: bytes) -> bytes:
    """Have another path or query: one that leads out, or means nothing."""
    first, headers, body = divided(message)
    method, _, rest = first.partition(b" ")
    wanted, _, version = rest.rpartition(b" ")
    path, mark, query = wanted.partition(b"?")
    kind = chance.randrange(4)
    if kind == 0:
        segments = path.split(b"/")
        segments[chance.randrange(len(segments))] = _odd_segment(chance)
        path = b"/".join(segments)
    elif kind == 1:
        path = chance.choice((b"http://elsewhere", b"//", b"/v1/../..", b"/%2e%2e", b"*")) + path
    elif kind == 2:
        named = re.findall(rb"(\w+)=", query) or [b"unknown"]
        value = quote(str(odd_value(chance))[:3000]).encode()
        query, mark = query + b"&" + chance.choice(named) + b"=" + value, b"?"
    else:
        query, mark = insert(chance, query), b"?"
    return joined(method + b" " + path + mark + query + b" " + version, headers, body)


def _odd_segment(chance: Chance) -> bytes:
    name = str(chance.choice((*NAMES, *ODD_NUMBERS))).encode()
    return name if chance.random() < 0.5 else quote(name, safe="").encode()


def method(chance: Chance, message: bytes) -> bytes:
    other = chance.choice((b"GET", b"PUT", b"POST", b"DELETE", b"HEAD", b"PATCH", b"TRACE", b"get"))
    return other + message[message.find(b" ") :] if b" " in message else other


def header(chance: Chance, message: bytes) -> bytes:
    """Add a header, double one, leave one out, or have all of them in another order."""
    first, headers, body = divided(message)
    kind = chance.randrange(5)
    at = chance.randrange(len(headers) + 1)
    if kind <= 1:
        value = chance.choice(HEADER_VALUES).encode("latin-1")
        headers.insert(at, chance.choice(HEADERS).encode() + b": " + value)
    elif kind == 2 and headers:
        headers.insert(at, chance.choice(headers))
    elif kind == 3 and headers:
        headers.pop(chance.randrange(len(headers)))
    else:
        chance.shuffle(headers)
    return joined(first, headers, body)


def header_bytes(chance: Chance, message: bytes) -> bytes:
    first, headers, body = divided(message)
    if headers:
        at = chance.randrange(len(headers))
        headers[at] = chance.choice((flip, insert, delete, double))(chance, headers[at])
    return joined(first, headers, body)


def length(chance: Chance, message: bytes) -> bytes:
    """Tell another length, tell it twice, or together with chunks."""
    first, headers, body = divided(message)
    size = len(body)
    told = chance.choice((size + 1, max(0, size - 1), 0, -1, 10**17, 2**64, f"0{size}", f"+{size}"))
    lines = [b"Content-Length: %s" % str(told).encode()]
    if chance.random() < 0.3:
        lines.append(b"Content-Length: %d" % size)
    if chance.random() < 0.3:
        lines.append(
            chance.choice((b"Transfer-Encoding: chunked", b"Transfer-Encoding : x, chunked"))
        )
    return joined(first, [*without(headers, b"content-length"), *lines], body)


def chunks(chance: Chance, message: bytes) -> bytes:
    """Send the body in chunks, most of them as they should be."""
    first, headers, body = divided(message)
    step = max(1, len(body) // chance.choice((1, 2, 3)))
    pieces = [body[at : at + step] for at in range(0, len(body), step)]
    made = [b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces]
    made.append(b"0\r\n\r\n")
    if chance.random() < 0.6:
        odd = (
            b"-1\r\n",
            b"g\r\n",
            b"f" * 17 + b"\r\n",
            b"1;x=y\r\nz\r\n",
            b"5\r\nab",
            b"0\r\nX: y\r\n\r\n",
        )
        made.insert(chance.randrange(len(made)), chance.choice(odd))
    kept = without(headers, b"content-length", b"transfer-encoding")
    return joined(first, [*kept, b"Transfer-Encoding: chunked"], b"".join(made))


def document(chance: Chance, message: bytes) -> bytes:
    """Send another document, with the length that it has."""
    first, headers, body = divided(message)
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        found = {}
    body = odd_document(chance, found if isinstance(found, dict) else {})
    kept = without(headers, b"content-length")
    return joined(first, [*kept, b"Content-Length: %d" % len(body)], body)


def credential(chance: Chance, message: bytes) -> bytes:
    """Show no token, or a wrong one, or the right one where it does not belong."""
    first, headers, body = divided(message)
    kept = without(headers, b"authorization")
    if chance.random() < 0.5:
        kept.append(b"Authorization: " + chance.choice(RUDE_TOKENS))
    if chance.random() < 0.2:
        kept.append(chance.choice((b"X-Forwarded-For: 127.0.0.1", b"X-Original-URL: /livez")))
    return joined(first, kept, body)


def smuggle(chance: Chance, message: bytes) -> bytes:
    """Hide a request without a token behind, or in the body of, one that has it."""
    first, headers, body = divided(message)
    hidden = chance.choice(BLIND) + b" HTTP/1.1\r\nHost: node\r\n\r\n"
    kept = without(headers, b"connection", b"content-length")
    how = chance.randrange(4)
    if how == 0:  # pipelined
        return joined(first, headers, body) + hidden
    if how == 1:
        both = [b"Content-Length: %d" % len(hidden), b"Transfer-Encoding: chunked"]
        return joined(first, [*kept, *both], b"0\r\n\r\n" + hidden)
    if how == 2:
        return joined(first, [*kept, b"Content-Length: %d" % len(body)], body + hidden)
    return joined(first, [*kept, b"Transfer-Encoding:\x0bchunked", b"Content-Length: 0"], hidden)


def pipeline(chance: Chance, message: bytes) -> bytes:
    first, headers, body = divided(message)
    again = joined(first, without(headers, b"connection"), body)
    return again * chance.choice((1, 2, 5)) + chance.other[:5000]


REQUEST_CHANGES: dict[str, Change] = {
    each.__name__: each
    for each in (
        *(target, method, header, header_bytes, length, chunks, document, credential, smuggle),
        pipeline,
    )
}
