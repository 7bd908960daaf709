"""The kinds of settings: each parses a file's value, a variable or a flag, and has a JSON schema.

A flag and a variable are text, a file knows numbers, lists and tables as well; every kind reads
both. What it cannot read is a ValueError that says what would do. A table of settings is a frozen
dataclass whose fields have a kind and a description: sources, the JSON schema and the documentation
read what it declares.

This takes the place of a library of validation: that would take longer to import than a command
needs for all else.
"""

from __future__ import annotations

import math
import operator
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from enum import Enum
from pathlib import Path
from types import MappingProxyType
from typing import Any, Generic, TypeVar, cast

from cachetier_client.identity.remote_url import remote_of
from cachetier_client.units import parsed_span, shown_size

from cachetier.access.tokens import LEAST_CHARACTERS
from cachetier.model.compression import parsed_mode
from cachetier.nearest import nearest
from cachetier.parsers import capacity_of, table_of, url_of

T = TypeVar("T")
W = TypeVar("W", bound=str)

LEAST_CAPACITY_BYTES = 64 << 20
_A_SIZE_BYTES = 1 << 40  # any filesystem will do to tell whether a capacity is one
_MOST_WHOLE = 2**63 - 1  # what the catalog can hold
_ON, _OFF = ("on", "true", "yes", "1", "t", "y"), ("off", "false", "no", "0", "f", "n")


class Secret:
    """A text that is never shown by accident."""

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return "(hidden)"


class Duration(float):
    """Seconds, as text with their unit: ``30s``, ``12h``."""

    def __str__(self) -> str:
        for seconds, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
            if self and not self % seconds:
                return f"{self // seconds:.0f}{unit}"
        return f"{f'{self:.9f}'.rstrip('0').rstrip('.')}s"


def plain(value: Any) -> Any:
    """Return a value as JSON has it; a secret stays one."""
    if is_dataclass(value) and not isinstance(value, type):
        return {each.name: plain(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, Mapping):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, frozenset):
        return sorted(value)
    if isinstance(value, tuple | list):
        return [plain(each) for each in value]
    if isinstance(value, Enum):
        return value.value
    return str(value) if isinstance(value, Path | Secret | Duration) else value


class WrongValueError(ValueError):
    """More than one thing is wrong with a value, or something deep within it.

    Attributes:
        causes: Where, as the keys on the way joined by dots, and what is wrong there.
    """

    def __init__(self, causes: Sequence[tuple[str, str]]) -> None:
        super().__init__("; ".join(cause for _, cause in causes))
        self.causes = tuple(causes)


@dataclass(frozen=True)
class SettingType(Generic[T]):
    """One kind of value.

    Attributes:
        read: Returns the value, or raises ValueError.
        schema: What a file may say, in JSON schema.
        written: Returns the value as a file says it.
        record: The class that declares each table in it, if there are any.
    """

    read: Callable[[object], T]
    schema: Mapping[str, Any]
    written: Callable[[Any], Any] = plain
    record: type | None = None


def each_read(read: Callable[[str, object], T], given: Mapping[str, object]) -> dict[str, T]:
    """Return each value of ``given`` as ``read`` reads it.

    Raises:
        WrongValueError: With all that is wrong.
    """
    values: dict[str, T] = {}
    causes: list[tuple[str, str]] = []
    for name, value in given.items():
        try:
            values[name] = read(name, value)
        except WrongValueError as error:
            causes += [
                (f"{name}.{where}" if where else name, cause) for where, cause in error.causes
            ]
        except ValueError as error:
            causes.append((name, str(error)))
    if causes:
        raise WrongValueError(causes)
    return values


# --- plain values --------------------------------------------------------------------------------


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is not a string: put it in quotes")  # noqa: TRY004  not TypeError
    return value


def _secret(value: object) -> Secret:
    if not isinstance(value, str):
        raise ValueError("it is not a string: put it in quotes")  # noqa: TRY004  and it is not shown
    if not re.fullmatch(r"[!-~]+", value):
        raise ValueError("a header cannot carry it: use ASCII letters, digits and signs, no space")
    if len(value) < LEAST_CHARACTERS:
        raise ValueError(
            f"it has {len(value)} characters, and {LEAST_CHARACTERS} are the least: "
            "make one by `openssl rand -hex 32`"
        )
    return Secret(value)


def is_secret(kind: SettingType[Any]) -> bool:
    """Return whether values of ``kind`` are not to be shown."""
    return bool(kind.schema.get("writeOnly"))


def _flag(value: object) -> bool:
    word = str(value).strip().lower()
    if not isinstance(value, bool | int | str) or word not in (*_ON, *_OFF):
        raise ValueError(f"{value!r} is neither 'on' nor 'off'")
    return word in _ON


def _path(value: object) -> Path:
    if not isinstance(value, str | Path) or str(value) == "":
        raise ValueError(f"{value!r} is no path")
    if "\0" in str(value):
        raise ValueError(f"{value!r} has a NUL in it, which no path has")
    try:
        return Path(os.path.abspath(Path(value).expanduser()))
    except RuntimeError:
        raise ValueError(f"{value!r} begins with an unknown home: write the full path") from None


TEXT: SettingType[str] = SettingType(_text, {"type": "string"})
FLAG: SettingType[bool] = SettingType(
    _flag, {"anyOf": [{"type": "boolean"}, {"enum": ["on", "off"]}]}
)
PATH: SettingType[Path] = SettingType(_path, {"type": "string", "format": "path"})
SECRET: SettingType[Secret] = SettingType(
    _secret,
    {"type": "string", "format": "password", "writeOnly": True, "minLength": LEAST_CHARACTERS},
)


def checked(kind: SettingType[T], check: Callable[[T], object]) -> SettingType[T]:
    """Return ``kind`` for what ``check`` takes as well; the value itself stays."""

    def read(value: object) -> T:
        found = kind.read(value)
        check(found)
        return found

    return SettingType(read, kind.schema)


def optional(kind: SettingType[T]) -> SettingType[T | None]:
    """Return ``kind`` where an empty text counts as not given."""
    return SettingType(
        lambda value: None if value in ("", None) else kind.read(value),
        kind.schema,
        lambda value: None if value is None else kind.written(value),
    )


def one_of(*words: W) -> SettingType[W]:
    """Return the kind of value that is one of a few words."""
    known = {str(word): word for word in words}
    *most, last = map(repr, known)
    wanted = f"{', '.join(most)} or {last}"

    def read(value: object) -> W:
        text = str(value)
        if text in known:
            return known[text]
        near = nearest(text, known)
        raise ValueError(f"{text!r} is not {wanted}" + (f": did you mean {near}?" if near else ""))

    return SettingType(read, {"type": "string", "enum": list(known)})


# --- numbers -------------------------------------------------------------------------------------


def whole(at_least: int, at_most: int | None = None) -> SettingType[int]:
    """Return the kind of whole numbers within bounds."""
    bounds = _bounds(minimum=at_least, maximum=at_most)

    def read(value: object) -> int:
        number = _number(value)
        if number != int(number):
            raise ValueError(f"{value!r} is not a whole number")
        _check(number, bounds)
        if number > _MOST_WHOLE:
            raise ValueError(f"{value!r} is too large a number")
        return int(number)

    return SettingType(read, {"type": "integer", **bounds})


def number(
    *, at_least: float | None = None, above: float | None = None, at_most: float | None = None
) -> SettingType[float]:
    """Return the kind of numbers within bounds."""
    bounds = _bounds(minimum=at_least, exclusiveMinimum=above, maximum=at_most)

    def read(value: object) -> float:
        return _float(_number(value), bounds)

    return SettingType(read, {"type": "number", **bounds})


def _number(value: object) -> int | float:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    try:
        if isinstance(value, str) and value.strip().removeprefix("-").isdecimal():
            return int(value)  # exactly
        if isinstance(value, float | str) and math.isfinite(float(value)):
            return float(value)
    except ValueError:
        pass  # said below
    raise ValueError(f"{value!r} is not a number")


def _float(number: float, bounds: Mapping[str, float]) -> float:
    _check(number, bounds)
    try:
        return float(number)
    except OverflowError:
        raise ValueError(f"{number!r} is too large a number") from None


def span(*, above: float | None = None, at_most: float | None = None) -> SettingType[Duration]:
    """Return the kind of spans of time within bounds, each with its unit: ``30s``, ``12h``."""
    at_least = 0 if above is None else None
    bounds = _bounds(minimum=at_least, exclusiveMinimum=above, maximum=at_most)

    def read(value: object) -> Duration:
        return Duration(_float(parsed_span(str(value)), bounds))

    return SettingType(read, {"type": "string", "pattern": r"^ *[0-9.]+ *(ms|s|m|min|h|d) *$"})


def _bounds(**bounds: float | None) -> dict[str, float]:
    return {name: bound for name, bound in bounds.items() if bound is not None}


_BOUNDS: Mapping[str, tuple[str, Callable[[float, float], bool]]] = {
    "minimum": ("at least", operator.ge),
    "exclusiveMinimum": ("above", operator.gt),
    "maximum": ("at most", operator.le),
}


def _check(number: float, bounds: Mapping[str, float]) -> None:
    if not all(_BOUNDS[name][1](number, bound) for name, bound in bounds.items()):
        wanted = " and ".join(f"{_BOUNDS[name][0]} {bound}" for name, bound in bounds.items())
        raise ValueError(f"{number} is not {wanted}")


# --- many values ---------------------------------------------------------------------------------


def listed(item: SettingType[T], separator: str) -> SettingType[tuple[T, ...]]:
    """Return the kind of a list; as a text, its items lie between matches of ``separator``."""

    def read(value: object) -> tuple[T, ...]:
        if isinstance(value, str):
            value = [part.strip() for part in re.split(separator, value) if part.strip()]
        elif not isinstance(value, list | tuple | set | frozenset):
            value = [value]
        return tuple(item.read(each) for each in value)

    items = {"type": "array", "items": item.schema}
    return SettingType(read, {"anyOf": [items, item.schema, {"type": "string"}]})


_UIDS = listed(whole(0, 2**32 - 2), r"[,\s]+")  # the last one means nobody
UIDS: SettingType[frozenset[int]] = SettingType(
    lambda value: frozenset(_UIDS.read(value)), _UIDS.schema
)


def table(of: SettingType[T]) -> SettingType[dict[str, T]]:
    """Return the kind of a table of names to values; as a text it is JSON."""

    def read(value: object) -> dict[str, T]:
        found = table_of(value) if isinstance(value, str) else value
        if not isinstance(found, Mapping):
            raise ValueError(f"{found!r} is no table")  # noqa: TRY004  as any other wrong value
        return each_read(lambda _name, each: of.read(each), found)

    schema = {"type": "object", "additionalProperties": of.schema}
    return SettingType(read, schema, record=of.record)


def text_or_table(of: SettingType[str]) -> SettingType[str | dict[str, str]]:
    """Return the kind of one value, or of a table of names to such values."""
    tables = table(of)

    def read(value: object) -> str | dict[str, str]:
        is_json = isinstance(value, str) and value.lstrip().startswith("{")
        return tables.read(value) if is_json or isinstance(value, Mapping) else of.read(value)

    return SettingType(read, {"anyOf": [of.schema, tables.schema]})


# --- sizes ---------------------------------------------------------------------------------------


def _capacity(value: object) -> str:
    """Read a size or a share; what is written as a fraction of nothing would be a byte or none."""
    if not isinstance(value, int | str) or isinstance(value, bool):
        raise ValueError(f"{value!r} is no size: put one in quotes, as '200 GB' or '80%'")  # noqa: TRY004
    capacity_of(str(value), _A_SIZE_BYTES)
    return str(value)


def _check_budget(size: str) -> None:
    """Refuse a size that is no budget of a node: most often a number without its unit."""
    size_bytes = capacity_of(size, _A_SIZE_BYTES)
    if size.strip().endswith("%") or size_bytes >= LEAST_CAPACITY_BYTES:
        return
    meant = f". Did you mean '{size.strip()} GB'?" if size.strip().isdecimal() else ""
    raise ValueError(f"{size!r} is {shown_size(size_bytes)}, and 64 MiB is the least{meant}")


CAPACITY: SettingType[str] = SettingType(_capacity, {"type": ["string", "integer"], "minimum": 1})
BUDGET = checked(CAPACITY, _check_budget)

# --- those of remotes ----------------------------------------------------------------------------

REMOTE = checked(TEXT, remote_of)
URL = checked(TEXT, url_of)
COMPRESSION = checked(TEXT, parsed_mode)


# --- tables of settings ---------------------------------------------------------------------------

_DECLARED = "declared"


@dataclass(frozen=True)
class Declared:
    """The declaration of one setting; ``default`` means nothing where it is ``required``."""

    kind: SettingType[Any]
    default: Any
    required: bool
    description: str

    @property
    def shown_default(self) -> str:
        """The default as a flag or a file says it; empty where there is none."""
        written = self.kind.written(self.default)
        if isinstance(written, bool):
            return "on" if written else "off"
        return str(written) if isinstance(written, str | int | float) else ""


def setting(kind: SettingType[T], default: T, description: str = "") -> T:
    """Declare a field of a frozen, ``kw_only`` dataclass that is read as ``kind``."""
    metadata: dict[str, Any] = {_DECLARED: Declared(kind, default, False, description)}
    if isinstance(default, dict):
        made: Any = field(default_factory=default.copy, metadata=metadata)
    else:
        made = field(default=default, metadata=metadata)
    return cast("T", made)


def required(kind: SettingType[T], description: str = "") -> T:
    """Declare a field that has no default."""
    metadata = {_DECLARED: Declared(kind, None, True, description)}
    return cast("T", field(metadata=metadata))


def declared(cls: type) -> dict[str, Declared]:
    """Return what ``cls`` declares, by name."""
    return {each.name: each.metadata[_DECLARED] for each in fields(cls)}


def leaves_of(cls: type) -> frozenset[tuple[type, str]]:
    """Return each key that a file may give ``cls`` or a table in it, with the class that has it.

    A key that several kinds of tables inherit from one class is one.
    """
    bases = [each for each in reversed(cls.mro()) if is_dataclass(each)]
    names = [{each.name for each in fields(base)} for base in bases]
    found = set[tuple[type, str]]()
    for name, each in declared(cls).items():
        if each.kind.record is not None:
            found |= leaves_of(each.kind.record)
        else:
            found.add(next((bases[at], name) for at, known in enumerate(names) if name in known))
    return frozenset(found)


def read_values(known: Mapping[str, Declared], given: Mapping[str, object]) -> dict[str, Any]:
    """Return each value of ``given`` as its kind reads it; raise WrongValueError for all others."""
    return each_read(lambda name, value: known[name].kind.read(value), given)


def record(
    cls: type[T], missing: str, renamed: Mapping[str, str] = MappingProxyType({})
) -> SettingType[T]:
    """Return the kind of table that ``cls`` declares; ``missing`` says what must be in it.

    Args:
        cls: Has a field for each key.
        missing: What to say without one that is required.
        renamed: Keys of before, with what they are called now.
    """
    known = declared(cls)

    def read(value: object) -> T:
        if isinstance(value, cls):
            return value
        if isinstance(value, str) and value.lstrip().startswith("{"):
            value = table_of(value)
        if not isinstance(value, Mapping):
            raise ValueError(f"{value!r} is not a table with {_all(known) or ', '.join(known)}")  # noqa: TRY004
        if unknown := [str(key) for key in value if key not in known]:
            meant = {
                key: renamed.get(key) or nearest(key, known) or ", ".join(known) for key in unknown
            }
            raise WrongValueError(
                [("", f"unknown key `{key}`: did you mean {near}?") for key, near in meant.items()]
            )
        if any(each.required and name not in value for name, each in known.items()):
            raise ValueError(missing)
        return cls(**read_values(known, value))

    return SettingType(read, schema_of(cls), record=cls)


def records(one: SettingType[T], what: str, heading: str) -> SettingType[tuple[T, ...]]:
    """Return the kind of a list of tables, each of which has a ``name`` of its own.

    Args:
        one: The kind of each.
        what: What errors call them.
        heading: How a file writes one.
    """

    def read_all(value: object) -> tuple[T, ...]:
        found = (table_of(value) or []) if isinstance(value, str) else value
        if isinstance(found, Mapping) or not isinstance(found, Sequence) or isinstance(found, str):
            raise ValueError(f"{what} are a list of tables: [[{heading}]] for each")  # noqa: TRY004
        numbered = {str(number): each for number, each in enumerate(found, 1)}
        read = tuple(each_read(lambda _number, table: one.read(table), numbered).values())
        names = [getattr(each, "name", "") for each in read]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise ValueError(f"two {what} are called {twice}: the name tells them apart")
        return read

    return SettingType(read_all, {"type": "array", "items": one.schema}, record=one.record)


def _all(known: Mapping[str, Declared]) -> str:
    return " and ".join(f"a `{name}`" for name, each in known.items() if each.required)


def schema_of(cls: type) -> dict[str, Any]:
    """Return the JSON schema of the table that ``cls`` declares."""
    known = declared(cls)
    properties = {}
    for name, each in known.items():
        schema: dict[str, Any] = {**each.kind.schema}
        if each.description:
            schema["description"] = each.description
        if not each.required and each.default is not None:
            schema["default"] = plain(each.default)
        properties[name] = schema
    must = [name for name, each in known.items() if each.required]
    return {
        "type": "object",
        "properties": properties,
        "required": must,
        "additionalProperties": False,
    }
