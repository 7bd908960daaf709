"""Settings written as a ``cachetier.toml`` that gives the same settings again."""

from __future__ import annotations

import json
from enum import Enum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cachetier.config import Sourced

HIDDEN = "(hidden)"


def written(found: Sourced, *, with_origins: bool) -> list[str]:
    """Return the lines; a setting that is not set, or a secret, is a comment."""
    assert found.settings is not None
    settings = found.settings
    values = {name: getattr(settings, name) for name in type(settings).model_fields}
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
    if type(value).__name__ == "SecretStr":
        return f"# {name} {HIDDEN}"
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
        pairs = (f"{json.dumps(key)} = {toml_of(each)}" for key, each in value.items())
        return f"{{ {', '.join(pairs)} }}" if value else "{}"
    if isinstance(value, frozenset | tuple | list):
        items = sorted(value) if isinstance(value, frozenset) else value
        return f"[{', '.join(map(toml_of, items))}]"
    if hasattr(value, "model_dump"):
        return toml_of(value.model_dump(mode="json", exclude_none=True))
    return json.dumps(str(value.value if isinstance(value, Enum) else value), ensure_ascii=False)
