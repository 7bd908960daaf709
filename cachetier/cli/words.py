"""From the words of a command line to values, with a clear refusal.

typer would ask pydantic, whose import takes as long as the rest of the command together.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import typer

_YES, _NO = {"1", "true", "t", "on", "yes", "y"}, {"0", "false", "f", "off", "no", "n"}


def bound_to(parameter: Any) -> Any:
    """Return ``parameter`` so that it reads its own words, if it is of a kind known here."""
    if parameter.param_type_name == "argument":
        parameter.metavar = parameter.metavar or parameter.name.upper()
    described = parameter.type_descriptor
    kind = described.annotation
    item = get_args(kind)[0] if described.is_list else kind
    if item in _READERS and described.parameter_info.parser is None:
        words = _Words(_READERS[item], parameter.min, parameter.max)
        parameter.get_runtime_param = lambda: words
    return parameter


class _Words:
    """What typer calls to make a value."""

    def __init__(self, read: Callable[[str], Any], low: float | None, high: float | None) -> None:
        self._read = read
        self._low = low
        self._high = high

    def coerce(self, value: Any, *, param: Any, ctx: Any) -> Any:
        if param.multiple or param.nargs == -1:
            return tuple(self._one(word, param, ctx) for word in value or ())
        return None if value is None else self._one(value, param, ctx)

    def _one(self, word: Any, param: Any, ctx: Any) -> Any:
        try:
            value = self._read(word) if isinstance(word, str) else word
            if self._low is not None and value < self._low:
                raise ValueError(f"is less than {self._low:g}")
            if self._high is not None and value > self._high:
                raise ValueError(f"is more than {self._high:g}")
        except ValueError as error:
            raise typer.BadParameter(f"{word!r} {error}", ctx=ctx, param=param) from None
        return value


def _whole(word: str) -> int:
    try:
        return int(word)
    except ValueError:
        raise ValueError("is not a whole number") from None


def _number(word: str) -> float:
    try:
        number = float(word)
    except ValueError:
        number = float("nan")
    if number != number:
        raise ValueError("is not a number")
    return number


def _truth(word: str) -> bool:
    plain = word.strip().lower()
    if plain not in _YES | _NO:
        raise ValueError("is neither on nor off")
    return plain in _YES


_READERS: dict[Any, Callable[[str], Any]] = {
    str: str,
    int: _whole,
    float: _number,
    bool: _truth,
    Path: Path,
}
