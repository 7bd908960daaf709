"""Sound and odd requests of S3, signed in their header or URL, against a model of what must come.

A mutant of bytes has no signature that holds. So these are made up first and signed then: whatever
begins with ``x-amz-`` goes into the URL by chance, where it counts as the header of its name.
"""

from __future__ import annotations

import base64
import random
import zlib
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import format_datetime, parsedate_to_datetime
from pathlib import Path
from urllib.parse import quote, urlencode

from tests.integration.s3door import S3Answer, S3Caller
from tests.integration.test_s3_door import served_at

KEYS = ("train/a", "train/b", "train/c/d")
BODIES = (b"", b"x", b"7 bytes", b"y" * 70_000)
ODD = ("", "*", '"', "W/", "-1", "1e9", "9" * 30, "\u0661", "now", "a,b", "%00", "x" * 300)
OPERATIONS = ("PUT", "PUT", "PUT", "DELETE", "DELETE", "GET", "HEAD", "POST")
SIZE, TIME, CRC = "x-amz-if-match-size", "x-amz-if-match-last-modified-time", "x-amz-checksum-crc32"
_OF_READS = ("if-match", "if-none-match", "if-modified-since", "if-unmodified-since")
_TAKEN = {
    "GET": _OF_READS,
    "HEAD": _OF_READS,
    "PUT": ("if-match", "if-none-match"),
    "DELETE": ("if-match", SIZE, TIME),
    "POST": (),
}


@dataclass(frozen=True, slots=True)
class Known:
    """What must be under a key."""

    body: bytes
    etag: str
    modified_at: int
    owner: str | None


@dataclass(frozen=True, slots=True)
class Wish:
    """A request about to be signed, in its URL or a header.

    ``odd``: of its answer is known that it is no failure of the service, and no more.
    """

    method: str
    key: str
    headers: dict[str, str]
    parameters: dict[str, str]
    body: bytes
    odd: bool
    by_url: bool

    @property
    def meant(self) -> dict[str, str]:
        return {**self.headers, **self.parameters}


def drawn(chance: random.Random, key: str, there: Known | None) -> Wish:
    """Return a request about a key that holds ``there``."""
    method, body = chance.choice(OPERATIONS), chance.choice(BODIES)
    known = there or Known(b"z", "00" * 16, 1_700_000_000, None)
    at = known.modified_at + chance.choice((0, 0, -10, 10))
    instant = format_datetime(datetime.fromtimestamp(at, UTC), usegmt=True)
    etag = chance.choice((f'"{known.etag}"', known.etag, '"other"', "*"))
    size = len(known.body) + chance.choice((0, 0, 1))
    values = {"if-match": etag, SIZE: str(size), TIME: instant}
    values |= {"if-none-match": "*" if method == "PUT" else etag}
    values |= dict.fromkeys(("if-modified-since", "if-unmodified-since"), instant)
    if method == "POST":
        document = entry_of(key, {n: v for n, v in values.items() if chance.random() < 0.4})
        return Wish(method, key, {}, {"delete": ""}, document, odd=False, by_url=False)
    names = chance.sample(_TAKEN[method], chance.choice((0, 1, 1, 2)) % (len(_TAKEN[method]) + 1))
    if chance.random() < 0.1:
        names.append(chance.choice((*_OF_READS, SIZE, TIME)))
    fields = {name: values[name] for name in names}
    if method == "PUT" and chance.random() < 0.5:
        right = base64.b64encode(zlib.crc32(body).to_bytes(4, "big")).decode()
        fields |= {CRC: chance.choice((right, "AAAAAA=="))}
        fields |= {"x-amz-meta-owner": chance.choice(("me", "you"))}
    odd = bool(fields) and chance.random() < 0.1
    if odd:
        fields[chance.choice(list(fields))] = chance.choice(ODD)
    if chance.random() < 0.05:
        fields["x-amz-" + chance.choice(("acl", "tagging", "no-such", "copy-source"))] = "x"
        odd = True
    by_url = chance.random() < 0.5
    in_url = {n: v for n, v in fields.items() if n.startswith("x-amz-")}
    if not by_url:
        in_url = {n: v for n, v in in_url.items() if chance.random() < 0.5}
    headers = {n: v for n, v in fields.items() if n not in in_url}
    return Wish(method, key, headers, in_url, body if method == "PUT" else b"", odd, by_url)


def entry_of(key: str, values: dict[str, str]) -> bytes:
    """Return a DeleteObjects of one key, under the conditions that it can have."""
    names = {"if-match": "ETag", SIZE: "Size", TIME: "LastModifiedTime"}
    fields = "".join(
        f"<{names[name]}>{value.replace(chr(34), '&quot;')}</{names[name]}>"
        for name, value in values.items()
        if name in names
    )
    return f"<Delete><Object><Key>{key}</Key>{fields}</Object></Delete>".encode()


def campaign(directory: Path, seed: int, number: int) -> dict[int, int]:
    """Send ``number`` requests to a service of its own; return how often each status came.

    Raises:
        AssertionError: As ``Campaign.send``.
    """
    with served_at(directory) as (_served, caller):
        sent = Campaign(caller)
        for each in range(number):
            sent.send(seed, each)
    return sent.statuses


class Campaign:
    """Sends requests and holds the answers, and what is there then, against a model."""

    def __init__(self, caller: S3Caller) -> None:
        self._caller = caller
        self.known: dict[str, Known] = {}
        self.statuses: dict[int, int] = {}

    def send(self, seed: int, number: int) -> None:
        """Send request ``number`` of ``seed``.

        Raises:
            AssertionError: What came is not what must.
        """
        chance = random.Random(f"s3 {seed} {number}")
        key = chance.choice(KEYS)
        wish = drawn(chance, key, self.known.get(key))
        answer = self._sent(wish)
        told = f"request {number} of seed {seed}: {wish} came to {answer}"
        self.statuses[answer.status] = self.statuses.get(answer.status, 0) + 1
        assert answer.status < 500 or answer.status in (501, 503), told
        status = _status(answer)
        if not wish.odd:
            wanted = self._wanted(wish)
            assert status == wanted, f"{told}, and not to {wanted}"
        before = self.known.get(wish.key)
        self._look(wish.key)
        now = self.known.get(wish.key)
        if status >= 300 or wish.method in ("GET", "HEAD"):
            assert now == before, f"{told}, and changed what is there"
        elif wish.method == "PUT" and not wish.odd:
            owner = wish.meant.get("x-amz-meta-owner")
            assert now is not None and (now.body, now.owner) == (wish.body, owner), told
        elif not wish.odd:
            assert now is None, told

    def _sent(self, wish: Wish) -> S3Answer:
        query = urlencode(wish.parameters, quote_via=quote)
        path = f"/bucket{'' if wish.method == 'POST' else '/' + quote(wish.key)}"
        path += f"?{query}" if query else ""
        headers = {name: value for name, value in wish.headers.items() if value.isascii()}
        if wish.by_url:
            return self._caller.unsigned(
                wish.method, self._caller.presigned(wish.method, path), wish.body, headers
            )
        return self._caller(wish.method, path, wish.body, headers)

    def _look(self, key: str) -> None:
        answer = self._caller("GET", f"/bucket/{quote(key)}")
        self.known.pop(key, None)
        if answer.status == 200:
            at = parsedate_to_datetime(answer.headers["last-modified"]).timestamp()
            etag, owner = answer.headers["etag"].strip('"'), answer.headers.get("x-amz-meta-owner")
            self.known[key] = Known(answer.body, etag, int(at), owner)
        else:
            assert answer.status == 404, answer

    def _wanted(self, wish: Wish) -> int:
        """Return the status of the answer; of DeleteObjects that of its one entry."""
        there, fields = self.known.get(wish.key), wish.meant
        if wish.method == "POST":
            fields = _fields_in(wish.body)
        known = {"if-match", SIZE, TIME} if wish.method == "POST" else {*_TAKEN[wish.method]}
        if {name for name in fields if "if-" in name} - known:
            return 501
        if wish.method in ("GET", "HEAD"):
            return _status_of_read(fields, there)
        if wish.meant.get(CRC, crc_of(wish.body)) != crc_of(wish.body):
            return 400
        if fields.get("if-none-match") == "*" and there is not None:
            return 412
        if "if-match" in fields and there is None:
            return 404
        if there is not None:
            holds = (
                fields.get("if-match", "*").strip('"') in ("*", there.etag),
                int(fields.get(SIZE, len(there.body))) == len(there.body),
                _instant(fields.get(TIME), there.modified_at) == there.modified_at,
            )
            if not all(holds):
                return 412
        return 204 if wish.method == "DELETE" else 200


def crc_of(body: bytes) -> str:
    return base64.b64encode(zlib.crc32(body).to_bytes(4, "big")).decode()


def _status_of_read(fields: dict[str, str], there: Known | None) -> int:
    if there is None:
        return 404
    match, none_match = fields.get("if-match"), fields.get("if-none-match")
    at = there.modified_at
    if match is not None:
        if match.strip('"') not in ("*", there.etag):
            return 412
    elif at > _instant(fields.get("if-unmodified-since"), at):
        return 412
    if none_match is not None:
        return 304 if none_match.strip('"') in ("*", there.etag) else 200
    return 304 if at <= _instant(fields.get("if-modified-since"), at - 1) else 200


def _fields_in(document: bytes) -> dict[str, str]:
    text = document.decode()
    found = {}
    for header, name in (("if-match", "ETag"), (SIZE, "Size"), (TIME, "LastModifiedTime")):
        if f"<{name}>" in text:
            value = text.partition(f"<{name}>")[2].partition("<")[0]
            found[header] = value.replace("&quot;", '"')
    return found


def _status(answer: S3Answer) -> int:
    codes = {b"PreconditionFailed": 412, b"NoSuchKey": 404}
    if answer.status == 200 and b"<DeleteResult" in answer.body and b"<Error>" in answer.body:
        return next(status for code, status in codes.items() if code in answer.body)
    return answer.status


def _instant(text: str | None, default: int) -> int:
    return default if text is None else int(parsedate_to_datetime(text).timestamp())
