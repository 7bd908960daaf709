"""Options of verbs that look at a node's settings without running the service."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from cachetier.config import Settings

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
    from cachetier.config import load

    return load(flags, config=config)
