"""Read query parameters and headers; refuse what is unknown, doubled or no number."""

from __future__ import annotations

import re
from collections.abc import Collection
from urllib.parse import parse_qsl

from cachetier_client.io import digests

from cachetier.errors import DigestMismatchError, InvalidRequestError

LONGEST_WAIT_SECONDS = 7 * 86_400.0
_COUNT = re.compile(r"\d{1,18}", re.ASCII)
_BOOLEANS = {"true": True, "1": True, "false": False, "0": False}


class Query:
    """The parameters of one request."""

    def __init__(self, query_string: bytes, known: Collection[str]) -> None:
        try:
            text = query_string.decode("ascii")
            pairs = parse_qsl(text, keep_blank_values=True, errors="strict", max_num_fields=50)
        except ValueError:
            raise InvalidRequestError("the query string cannot be read") from None
        self._values: dict[str, str] = {}
        for name, value in pairs:
            if name not in known:
                raise InvalidRequestError(
                    f"unknown query parameter {ascii(name)[:60]}",
                    hint=f"This route takes: {', '.join(known) or 'none'}.",
                )
            if name in self._values:
                raise InvalidRequestError(f"query parameter {name} is given twice")
            self._values[name] = value

    def text(self, name: str, default: str) -> str:
        return self._values.get(name, default)

    def optional(self, name: str) -> str | None:
        return self._values.get(name)

    def count(self, name: str, default: int) -> int:
        """Return a non-negative integer."""
        value = self._values.get(name)
        if value is None:
            return default
        if not _COUNT.fullmatch(value):
            raise InvalidRequestError(f"{name} {ascii(value)[:60]} is not a non-negative integer")
        return int(value)

    def flag(self, name: str) -> bool:
        value = self._values.get(name, "false")
        if value not in _BOOLEANS:
            raise InvalidRequestError(f"{name} {ascii(value)[:60]} is neither true nor false")
        return _BOOLEANS[value]

    def seconds(self, name: str = "timeout_seconds", default: float = 60.0) -> float:
        """Return a span of time, never longer than a week."""
        value = self._values.get(name)
        if value is None:
            return default
        try:
            seconds = float(value)
        except ValueError:
            seconds = -1.0
        if not seconds >= 0:
            raise InvalidRequestError(f"{name} {ascii(value)[:60]} is not a number of seconds")
        return min(seconds, LONGEST_WAIT_SECONDS)


def size_of(text: str | None) -> int | None:
    """Read ``Content-Length``."""
    if text is None:
        return None
    if not _COUNT.fullmatch(text):
        raise InvalidRequestError("Content-Length is not a number of bytes")
    return int(text)


def digest_of(text: str | None) -> int | None:
    """Read ``Cachetier-Digest``."""
    if text is None:
        return None
    try:
        return digests.from_hex(text)
    except ValueError as error:
        raise DigestMismatchError(str(error)) from None
