"""Declare a table of settings as a frozen dataclass: each field has a kind and a description.

What a class declares is read from here by the sources, the JSON schema and the documentation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from types import MappingProxyType
from typing import Any, TypeVar, cast

from cachetier.config.types import SettingType, WrongValueError, each_read, plain
from cachetier.nearest import nearest
from cachetier.parsers import table_of

T = TypeVar("T")

_DECLARED = "declared"


@dataclass(frozen=True)
class Declared:
    """What there is to say of one setting; ``default`` means nothing where it is ``required``."""

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
        if not isinstance(value, Mapping):
            raise ValueError(f"{value!r} is no table with {_all(known)}")  # noqa: TRY004
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
