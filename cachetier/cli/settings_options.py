"""Settings as options of verbs that are not ``serve``: all of them, or those that name a remote."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from cachetier.config.settings import Settings

Config = Annotated[
    Path | None,
    typer.Option("--config", help="Settings file; default CACHETIER_CONFIG, ./cachetier.toml."),
]
CacheDir = Annotated[
    str | None, typer.Option("--cache-dir", help="Directory of the cache, as `serve` has it.")
]
Remote = Annotated[
    str | None, typer.Option("--remote", help="Where checkpoints go: s3://bucket/prefix.")
]
RemoteEndpoint = Annotated[
    str | None, typer.Option("--remote-endpoint", help="URL of an S3-compatible store.")
]
RemoteRegion = Annotated[str | None, typer.Option("--remote-region", help="Region of the bucket.")]
RemoteVerify = Annotated[str | None, typer.Option("--remote-verify", help="checksum, or readback.")]


def settings_from(config: Path | None, **flags: Any) -> Settings:
    """Return the settings that `serve` would have with these flags, of which None is not given.

    Raises:
        ConfigError: See ``cachetier.config.load``.
    """
    from cachetier.config.settings import load

    return load(flags, config=config)


def taking_settings(verb: Callable[..., None]) -> Callable[..., None]:
    """Return ``verb`` with the options of ``serve``.

    It is called with ``flags``, a value or None for each setting, ``config``, the file that was
    named, and with its own parameters, which must have defaults.
    """
    from cachetier.cli.serve import serve

    own = inspect.signature(verb, eval_str=True).parameters
    offered = inspect.signature(serve, eval_str=True).parameters
    names = [name for name in offered if name not in ("config", "as_json")]

    def taken(**values: Any) -> None:
        flags = {name: values.pop(name) for name in names}
        verb(flags=flags, **values)

    taken.__doc__ = verb.__doc__
    taken.__name__ = verb.__name__
    both = [each for name, each in own.items() if name not in ("flags", "config")]
    both += [each for name, each in offered.items() if name != "as_json"]
    taken.__signature__ = inspect.Signature(both)  # type: ignore[attr-defined]
    taken.__annotations__ = {each.name: each.annotation for each in both}
    return taken
