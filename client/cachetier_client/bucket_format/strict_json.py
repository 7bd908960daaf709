"""Frozen dataclasses as JSON that anybody may have written: every value is checked when it is read.

The annotation of a field says what it may hold, and checks beyond its type stand there too::

    Count = Annotated[int, between(0, NUMBER_LIMIT - 1)]

A field with a default may be missing. One whose default is None is left out while it is None, and
one that is ``sparse`` while it is its default.
Fields that nobody here knows are passed over: a later version may add some.
"""

from __future__ import annotations

import functools
import json
import math
import re
import types
from collections.abc import Callable
from contextlib import suppress
from dataclasses import MISSING, field, fields
from enum import StrEnum
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin, get_type_hints

from cachetier_client.errors import CachetierClientError
from cachetier_client.identity.names import shown

_Kind = TypeVar("_Kind")
_Reader = Callable[[Any], Any]  # returns what a JSON value means, or raises ValueError

LIST_LIMIT = 500_000  # entries

_NAMES = {str: "text", int: "an integer", bool: "true or false"}


def written(document: Any) -> bytes:
    """Return a dataclass as a JSON object, its fields in their order.

    Raises:
        ValueError: It holds a lone surrogate, or a number that is not finite.
    """
    text = json.dumps(
        document, default=_fields_of, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    )
    return text.encode()


def parsed(kind: type[_Kind], body: bytes) -> _Kind:
    """Read a dataclass of ``kind``.

    Raises:
        ValueError: The body is none; says which field is wrong, and how.
    """
    read, text = _reader(kind), body.decode()
    try:
        value = json.loads(text, parse_constant=_refuse)
        if "\\u" in text:
            json.dumps(value, ensure_ascii=False).encode()  # a lone surrogate is no character
        document: _Kind = read(value)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    return document


def sparse(default: Any) -> Any:
    """Return a dataclass field that is left out while it is ``default``."""
    return field(default=default, metadata={"sparse": True})


# --- checks --------------------------------------------------------------------------------------


def between(least: int, most: int) -> _Reader:
    """Return a check that a number is one of ``least`` to ``most``."""

    def check(number: int) -> int:
        if not least <= number <= most:
            raise ValueError(f"{shown(number)} is not from {least} to {most}")
        return number

    return check


def matching(pattern: str) -> _Reader:
    """Return a check that a text matches the regular expression ``pattern`` as a whole."""
    compiled = re.compile(pattern, re.ASCII)

    def check(text: str) -> str:
        if compiled.fullmatch(text) is None:
            raise ValueError(f"{shown(text)} does not match {pattern}")
        return text

    return check


def checked(rule: Callable[[Any], Any]) -> _Reader:
    """Return a check by ``rule``, which raises one of our errors for what it does not allow."""

    def check(value: Any) -> Any:
        try:
            return rule(value)
        except CachetierClientError as error:
            raise ValueError(error.message) from None

    return check


# --- readers of one type each --------------------------------------------------------------------


def _reader(kind: Any) -> _Reader:
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _checked_reader(_reader(arguments[0]), *arguments[1:])
    if origin is tuple:
        return _list_reader(_reader(arguments[0]))
    if origin in (Union, types.UnionType):
        return _optional_reader(_reader(arguments[0]))
    if kind is float:
        return _number
    if kind in _NAMES:
        return _plain_reader(kind)
    return _member_reader(kind) if issubclass(kind, StrEnum) else _object_reader(kind)


@functools.cache
def _object_reader(kind: Any) -> _Reader:
    hints = get_type_hints(kind, include_extras=True)
    known = [(each.name, _reader(hints[each.name]), each.default) for each in fields(kind)]

    def read(value: Any) -> Any:
        if type(value) is not dict:
            raise ValueError(f"{shown(value)} is not an object")
        found = {}
        for name, read_field, default in known:
            if name in value:
                try:
                    found[name] = read_field(value[name])
                except ValueError as error:
                    raise ValueError(f"{name}: {error}") from None
            elif default is MISSING:
                raise ValueError(f"{name} is missing")
        return kind(**found)

    return read


def _list_reader(read_item: _Reader) -> _Reader:
    def read(value: Any) -> tuple[Any, ...]:
        if type(value) is not list:
            raise ValueError(f"{shown(value)} is not a list")
        if len(value) > LIST_LIMIT:
            raise ValueError(f"it has {len(value)} entries, more than {LIST_LIMIT}")
        items: list[Any] = []
        try:
            for item in value:
                items.append(read_item(item))  # noqa: PERF401 - its length says which is wrong
        except ValueError as error:
            raise ValueError(f"{len(items)}: {error}") from None
        return tuple(items)

    return read


def _checked_reader(read_value: _Reader, check: _Reader) -> _Reader:
    return lambda value: check(read_value(value))


def _optional_reader(read_value: _Reader) -> _Reader:
    return lambda value: None if value is None else read_value(value)


def _member_reader(kind: type[StrEnum]) -> _Reader:
    members = {member.value: member for member in kind}

    def read(value: Any) -> StrEnum:
        if type(value) is not str or value not in members:
            raise ValueError(f"{shown(value)} is not one of {', '.join(members)}")
        return members[value]

    return read


def _plain_reader(kind: type) -> _Reader:
    def read(value: Any) -> Any:
        if type(value) is not kind:  # bool is no int here
            raise ValueError(f"{shown(value)} is not {_NAMES[kind]}")
        return value

    return read


def _number(value: Any) -> float:
    with suppress(OverflowError):  # of an integer that is larger than any float
        if type(value) in (int, float) and math.isfinite(value):
            return float(value)
    raise ValueError(f"{shown(value)} is not a finite number")


def _refuse(constant: str) -> float:
    raise ValueError(f"{constant} is not a number")


def _fields_of(document: Any) -> dict[str, Any]:
    found = {}
    for name, left_out in _names_of(document.__class__):
        value = getattr(document, name)
        if value != left_out:
            found[name] = value
    return found


@functools.cache
def _names_of(kind: Any) -> list[tuple[str, Any]]:
    """Return the name of each field, and the value that is left out: ``MISSING`` if none is."""
    return [
        (each.name, each.default if each.default is None or each.metadata else MISSING)
        for each in fields(kind)
    ]
