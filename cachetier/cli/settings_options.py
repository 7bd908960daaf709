"""Settings as options of a verb, from what ``Settings`` declares of each."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from cachetier.config.fields import Declared
from cachetier.config.settings import SETTINGS
from cachetier.config.types import FLAG

Flags = dict[str, Any]
Verb = Callable[..., None]

OF_REMOTE = (
    "remote",
    "remote_endpoint",
    "remote_region",
    "remote_verify",
    "remote_addressing_style",
)
_CONFIG = Annotated[
    Path | None,
    typer.Option("--config", help="Settings file; default CACHETIER_CONFIG, ./cachetier.toml."),
]


def taking_settings(*names: str) -> Callable[[Verb], Verb]:
    """Give a verb the options of the settings ``names``, of all without any.

    It is called with ``flags``, a value or None for each setting, ``config``, the file that was
    named, and with its own parameters, which must have defaults.
    """
    chosen = names or tuple(SETTINGS)

    def decorated(verb: Verb) -> Verb:
        def taken(**values: Any) -> None:
            verb(flags={name: values.pop(name) for name in chosen}, **values)

        own = dict(inspect.signature(verb, eval_str=True).parameters)
        offered = [_parameter("config", _CONFIG), *(_of_setting(name) for name in chosen)]
        last = own.pop("as_json")
        own = {name: each for name, each in own.items() if name not in ("flags", "config")}
        parameters = [*own.values(), *offered, last]
        taken.__doc__ = verb.__doc__
        taken.__name__ = verb.__name__
        taken.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        taken.__annotations__ = {each.name: each.annotation for each in parameters}
        return taken

    return decorated


def _of_setting(name: str) -> inspect.Parameter:
    """Return the option of a setting: a flag where ``on`` is all there is to say."""
    declared = SETTINGS[name]
    is_flag = declared.kind is FLAG and not declared.default
    kind: Any = bool | None if is_flag else str | None
    flag = f"--{name.replace('_', '-')}"
    option = typer.Option(flag, help=_help_of(declared, is_flag), show_default=False)
    return _parameter(name, Annotated[kind, option])


def _help_of(declared: Declared, is_flag: bool) -> str:
    if is_flag:
        return declared.description.removeprefix("`on`: ")
    if isinstance(declared.default, dict):
        return f"{declared.description} As JSON."
    usual = declared.shown_default
    return f"{declared.description} Default {usual}." if usual else declared.description


def _parameter(name: str, annotation: Any) -> inspect.Parameter:
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    return inspect.Parameter(name, kind, default=None, annotation=annotation)
