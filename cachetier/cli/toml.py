"""Settings written as a ``cachetier.toml`` that gives the same settings again."""

from __future__ import annotations

import json
from dataclasses import is_dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

from cachetier.config.fields import plain
from cachetier.config.types import Secret

if TYPE_CHECKING:
    from cachetier.config.settings import Sourced


def written(found: Sourced, *, with_origins: bool) -> list[str]:
    """Return the lines; a setting that is not set, or a secret, is a comment."""
    assert found.settings is not None
    settings = found.settings
    values = {name: getattr(settings, name) for name in found.origins}
    values["socket"] = settings.socket_path
    width = max(map(len, values))
    lines = {name: _line(name.ljust(width), value) for name, value in values.items()}
    if not with_origins:
        return list(lines.values())
    column = min(44, max(map(len, lines.values())))
    return [f"{line.ljust(column)}  # {found.origins[name]}" for name, line in lines.items()]


def _line(name: str, value: Any) -> str:
    if value is None:
        return f"# {name} not set"
    if isinstance(value, Secret):
        return f"# {name} {value!r}"
    return f"{name} = {toml_of(_plain(name.strip(), value))}"


def _plain(name: str, value: Any) -> Any:
    return f"{value:04o}" if name == "socket_mode" else value


def toml_of(value: Any) -> str:
    """Return a value as TOML writes it, on one line."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return str(value)
    if isinstance(value, dict):
        pairs = (f"{_quoted(key)} = {toml_of(each)}" for key, each in value.items())
        return f"{{ {', '.join(pairs)} }}" if value else "{}"
    if isinstance(value, frozenset | tuple | list):
        items = sorted(value) if isinstance(value, frozenset) else value
        return f"[{', '.join(map(toml_of, items))}]"
    if is_dataclass(value):
        return toml_of({name: each for name, each in plain(value).items() if each is not None})
    return _quoted(str(value.value if isinstance(value, Enum) else value))


def _quoted(text: str) -> str:
    """Return ``text`` as TOML quotes it: as JSON, but for pairs of surrogates, and DEL."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
