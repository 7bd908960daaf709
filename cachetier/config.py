"""Settings of the service, read once: flag > ``CACHETIER_*`` > ``cachetier.toml`` > default.

A setting that nobody knows is an error, with the nearest one that somebody does: a misspelt
``capacity`` must not fill a disk.

Source: docs/configuration.md.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, SecretStr, ValidationError, field_validator, model_validator
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from cachetier.config_replicas import ReplicaSettings, checked_replicas
from cachetier.config_sources import (
    PREFIX,
    config_file,
    origins_of,
    problems_in,
    unknown_keys,
    unknown_variables,
    values_in,
)
from cachetier.config_types import Compression, EmptyIsNone, OptionalText, OptionalUrl, Remote
from cachetier.cpus import parsed_cpus
from cachetier.errors import ConfigError
from cachetier.grammars import (
    address_of,
    capacity_of,
    is_loopback,
    mode_of,
    remote_of,
    table_of,
)
from cachetier.ingest import WhenFull
from cachetier.model.bandwidth import parsed_bandwidth
from cachetier.model.compression import Rules

SOCKET_NAME = "cachetier.sock"
SOCKET_PATH_LIMIT_BYTES = 107


class Settings(BaseSettings):
    """What the service is told; see ``load``."""

    model_config = SettingsConfigDict(frozen=True, extra="forbid", env_prefix=PREFIX)

    cache_dir: Path = Field(
        description="Directory of the cache, on a local ext4 or XFS disk. Must be given.",
    )
    capacity: str = Field(
        "80%",
        description="Hard budget: a size (`200 GB`, `1.5 TiB`) or a share of the filesystem.",
    )
    socket: Annotated[Path | None, EmptyIsNone] = Field(
        None,
        description="Unix socket for ranks on this node; default `<cache_dir>/cachetier.sock`.",
    )
    socket_mode: int = Field(0o600, description="Permissions of the socket, in octal.")
    allowed_uids: Annotated[frozenset[int], NoDecode] = Field(
        frozenset(),
        description="Users beside the service's own who may use the socket: `1000,1001`.",
    )
    http: str = Field(
        "127.0.0.1:7070",
        description="Address of the HTTP door; empty for none, port 0 for a free one.",
    )
    token: Annotated[SecretStr | None, EmptyIsNone] = Field(
        None,
        description="What HTTP callers send as `Authorization: Bearer`; needed beyond loopback.",
    )
    remote: Remote = Field(description="Where checkpoints go: `s3://bucket/prefix`. Must be given.")
    remote_endpoint: OptionalUrl = Field(
        None, description="URL of an S3-compatible store; AWS itself if not given."
    )
    remote_region: OptionalText = Field(
        None, description="Region of the bucket; the AWS chain decides if not given."
    )
    remote_verify: Literal["checksum", "readback"] = Field(
        "checksum",
        description="`readback` for a store without CRC-64/NVME: objects are read back.",
    )
    conditional_writes: bool = Field(
        True,
        description="`off` for a store without `If-None-Match`: nodes may then overwrite.",
    )
    key_layout: Literal["plain", "spread"] = Field(
        "plain",
        description="`spread`: shards under sixteen prefixes, for stores that limit each apart.",
    )
    replicas: Annotated[dict[str, ReplicaSettings], NoDecode] = Field(
        {},
        description="Second copies at other S3 servers: a table of name to table; nearest first.",
    )
    when_full: WhenFull = Field(
        WhenFull.WAIT,
        description="When only dirty bytes remain: `wait`, `write_through`, or `reject`.",
    )
    compression: Compression = Field(
        "off",
        description="How shards are stored: `off`, `auto`, `zstd:1` to `:19`, `planes:1` to `:19`.",
    )
    compression_rules: Annotated[dict[str, str], NoDecode] = Field(
        {},
        description="Compression by run, or by `run/name`: a table of glob to the same.",
    )
    block_copies: bool = Field(
        True,
        description="`on`: unchanged bytes are copied inside the bucket, where it lets us.",
    )
    pack: bool = Field(
        False,
        description="`on`: shards of a sealed rank of up to 1 MiB go together, as one object.",
    )
    high_watermark: float = Field(
        0.9, gt=0, le=1, description="Share of `capacity` above which clean shards are evicted."
    )
    low_watermark: float = Field(
        0.8, gt=0, le=1, description="Share of `capacity` at which eviction stops."
    )
    max_rate: str = Field("", description="The most the drain sends: `2 GB/s`; empty for no limit.")
    windows: Annotated[tuple[str, ...], NoDecode] = Field(
        (),
        description="Times of day with a rate of their own: `08:00-20:00 200 MB/s`; `0` pauses.",
    )
    durable_every: int = Field(
        1, ge=1, description="Only steps divisible by it are drained; the others are local-only."
    )
    supersede: bool = Field(
        False,
        description="`on`: a published step makes older ones not yet begun local-only.",
    )
    keep_local: int = Field(
        0, ge=0, description="Complete steps of a run that stay here; 0 for all there is room for."
    )
    run_weights: Annotated[dict[str, Annotated[float, Field(gt=0)]], NoDecode] = Field(
        {},
        description="Shares of the drain by run: a table of glob to weight; 1 for all others.",
    )
    drain_workers: int = Field(8, ge=1, le=64, description="Shards that the drain uploads at once.")
    drain_threads: int | None = Field(
        None,
        ge=1,
        le=256,
        description="Threads that compress at once; a quarter of the CPUs, up to 2.",
    )
    drain_cpus: str = Field("", description="CPUs the drain may use: `2-3,7`; empty for all.")
    grace_seconds: float = Field(
        30.0, ge=0, le=3600, description="How long a stopping service finishes what is in flight."
    )
    notice_seconds: float = Field(
        0.0, ge=0, le=86_400, description="How long SIGTERM lets the node flush before it stops."
    )
    allow_volatile: bool = Field(
        False, description="Accept a `cache_dir` in memory (tmpfs): nothing survives a power cut."
    )
    exposure_objective: float = Field(
        1800.0,
        gt=0,
        description="Seconds for which a run's newest training may lie on this node alone.",
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="How much the log says: `debug`, `info`, `warning` or `error`."
    )
    log_format: Literal["auto", "console", "json"] = Field(
        "auto", description="`json` or `console`; `auto`: text on a terminal, JSON elsewhere."
    )
    trace: bool = Field(
        False,
        description="`on`: a trace of each checkpoint, sent where `OTEL_*` variables say.",
    )

    # --- what they mean ------------------------------------------------------------------------

    @property
    def socket_path(self) -> Path:
        return self.socket or self.cache_dir / SOCKET_NAME

    @property
    def http_address(self) -> tuple[str, int] | None:
        """(host, port) of the HTTP door, or None when it is off."""
        return address_of(self.http) if self.http else None

    @property
    def bucket(self) -> str:
        return remote_of(self.remote)[0]

    @property
    def prefix(self) -> str:
        return remote_of(self.remote)[1]

    @property
    def rules(self) -> Rules:
        """How to compress which shard."""
        return Rules.parsed(self.compression, tuple(self.compression_rules.items()))

    def capacity_bytes(self, filesystem_bytes: int) -> int:
        """Return the budget on a filesystem of ``filesystem_bytes``."""
        return capacity_of(self.capacity, filesystem_bytes)

    # --- checks --------------------------------------------------------------------------------

    @field_validator("cache_dir", "socket")
    @classmethod
    def _absolute(cls, path: Path | None) -> Path | None:
        return None if path is None else Path(os.path.abspath(path.expanduser()))

    @field_validator("capacity", mode="before")
    @classmethod
    def _is_capacity(cls, text: object) -> str:
        capacity_of(str(text), 1 << 40)
        return str(text)

    @field_validator("socket_mode", mode="before", json_schema_input_type=int | str)
    @classmethod
    def _octal(cls, mode: object) -> object:
        """Read ``0600`` in octal; TOML writes it ``"0600"`` or ``0o600``."""
        mode = mode_of(mode) if isinstance(mode, str) else mode
        if isinstance(mode, int) and not 0o600 <= mode & 0o777 <= 0o777:
            raise ValueError("the service itself must be able to use its socket: at least 0600")
        return mode

    @field_validator("allowed_uids", mode="before", json_schema_input_type=list[int] | int | str)
    @classmethod
    def _uids(cls, uids: object) -> object:
        if isinstance(uids, int):
            return {uids}
        return [uid for uid in re.split(r"[,\s]+", uids) if uid] if isinstance(uids, str) else uids

    @field_validator("http")
    @classmethod
    def _is_address(cls, text: str) -> str:
        if text:
            address_of(text)
        return text

    @field_validator("max_rate")
    @classmethod
    def _is_rate(cls, text: str) -> str:
        parsed_bandwidth(text, ())
        return text

    @field_validator("windows", mode="before", json_schema_input_type=list[str] | str)
    @classmethod
    def _are_windows(cls, windows: object) -> object:
        """Read a list, or from the environment a text with commas."""
        if isinstance(windows, str):
            windows = [text.strip() for text in windows.split(",") if text.strip()]
        if isinstance(windows, list | tuple):
            parsed_bandwidth("", [str(text) for text in windows])
        return windows

    @field_validator("run_weights", "compression_rules", "replicas", mode="before")
    @classmethod
    def _table(cls, table: object) -> object:
        """Read a table, or from the environment JSON."""
        return table_of(table) if isinstance(table, str) else table

    @field_validator("drain_cpus")
    @classmethod
    def _are_cpus(cls, text: str) -> str:
        parsed_cpus(text)
        return text

    @field_validator("compression_rules")
    @classmethod
    def _are_rules(cls, rules: dict[str, str]) -> dict[str, str]:
        Rules.parsed("off", tuple(rules.items()))
        return rules

    @model_validator(mode="after")
    def _fits_together(self) -> Settings:
        checked_replicas(self.replicas, (self.remote, self.remote_endpoint))
        if self.http_address and not self.token and not is_loopback(self.http_address[0]):
            raise ValueError(
                f"http {self.http} is open to other machines, and there is no token: "
                "set `token`, or bind `http` to 127.0.0.1"
            )
        if self.low_watermark > self.high_watermark:
            raise ValueError("low_watermark is above high_watermark")
        length = len(os.fsencode(self.socket_path))
        if length > SOCKET_PATH_LIMIT_BYTES:
            raise ValueError(
                f"the socket's path {self.socket_path} has {length} bytes, "
                f"the system takes {SOCKET_PATH_LIMIT_BYTES}: set a shorter `socket`"
            )
        return self


@dataclass(frozen=True)
class Sourced:
    """What the sources say.

    ``settings`` is None while there are ``problems``; ``origins`` has an entry for each setting.
    """

    settings: Settings | None
    origins: Mapping[str, str]
    problems: tuple[ConfigError, ...]
    file: Path | None


def load(flags: Mapping[str, Any] | None = None, *, config: Path | None = None) -> Settings:
    """Return the settings; ``flags`` that are None count as not given.

    Raises:
        ConfigError: A source cannot be read, names an unknown setting, or gives one a bad value.
        Says which.
    """
    found = sourced(flags, config=config)
    if found.settings is None:
        raise found.problems[0]
    return found.settings


def sourced(flags: Mapping[str, Any] | None = None, *, config: Path | None = None) -> Sourced:
    """Return the settings with who set each, or all that is wrong with them."""
    given = {name: value for name, value in (flags or {}).items() if value is not None}
    known, path = Settings.model_fields, config_file(config)
    problems = unknown_variables(known)
    in_file: dict[str, Any] = {}
    text = ""
    if path is not None:
        try:
            in_file, text = values_in(path)
        except ConfigError as error:
            problems.append(error)
    origins = origins_of(known, given, in_file, path, text)
    if path is not None:
        problems += unknown_keys(in_file, known, path, text)
    settings = None
    try:
        settings = _validated(given, {key: in_file[key] for key in in_file if key in known})
    except ValidationError as error:
        problems += problems_in(error, origins)
    return Sourced(None if problems else settings, origins, tuple(problems), path)


def _validated(given: Mapping[str, Any], in_file: dict[str, Any]) -> Settings:
    class FromAll(Settings):
        """Settings that read this file, below the environment."""

        @classmethod
        def settings_customise_sources(  # type: ignore[override]  # the other sources are not used
            cls,
            settings_cls: type[BaseSettings],
            init_settings: PydanticBaseSettingsSource,
            env_settings: PydanticBaseSettingsSource,
            **_others: PydanticBaseSettingsSource,
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            return init_settings, env_settings, InitSettingsSource(settings_cls, in_file)

    return FromAll(**given)
