"""Read settings from the environment and ``cachetier.toml``, and remember the source of each.

Source: docs/configuration.md.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cachetier.config.types import WrongValueError
from cachetier.errors import ConfigError
from cachetier.nearest import nearest

PREFIX = "CACHETIER_"
DEFAULT_FILE = "cachetier.toml"
DEFAULT = "default"
# The settings that are options of their own on the command line; `--set KEY=VALUE` is for all.
OPTIONS = (
    "cache_dir",
    "capacity",
    "remote",
    "remote_endpoint",
    "http",
    "s3",
    "socket",
    "log",
)
FILE_VARIABLE = "CACHETIER_CONFIG"
# Variables that share the prefix but are not the service's: the client's, the tests', the
# deployment's.
FOREIGN_VARIABLES = frozenset(
    f"{PREFIX}{name}"
    for name in (
        "ACCEPTANCE",
        "BASE_IMAGE",
        "CA",
        "CONFIG",
        "FALLBACK",
        "HTTP_PORT",
        "IMAGE",
        "NODE",
        "RUN",
        "SAVE_ID",
        "IGNORE_UNFLUSHED",
        "SERVICE_UID",
        "SOCKET_DIR",
        "URL",
    )
)
FOREIGN_PREFIXES = (f"{PREFIX}BENCH_", f"{PREFIX}CLIENT_", f"{PREFIX}DEMO_", f"{PREFIX}TEST_")
# What Kubernetes tells every pod of a Service whose name begins with `cachetier`: NAME=value.
_SERVICE_LINK = re.compile(
    rf"{PREFIX}(\w+_)?(SERVICE_(HOST|PORT(_\w+)?)=|PORT(_\d+_[A-Z]+(_\w+)?=|=\w+://)).*"
)
_SHOWN_CHARACTERS = 300


def variable_of(name: str) -> str:
    """Return the environment variable of a setting."""
    return f"{PREFIX}{name.upper()}"


def values_of_variables(names: Iterable[str]) -> dict[str, str]:
    """Return the values that the environment has."""
    named = {name: variable_of(name) for name in names}
    return {name: os.environ[each] for name, each in named.items() if each in os.environ}


def unknown_variables(names: Collection[str]) -> list[ConfigError]:
    """Return one error for each variable that has our prefix and is not a setting."""
    problems = []
    for variable in sorted(os.environ):
        ours = variable.startswith(PREFIX) and variable not in FOREIGN_VARIABLES
        if not ours or variable.startswith(FOREIGN_PREFIXES):
            continue
        if _SERVICE_LINK.fullmatch(f"{variable}={os.environ[variable]}"):
            continue
        if variable.removeprefix(PREFIX).lower() not in names:
            known = [variable_of(name) for name in names]
            problems.append(unknown(f"environment variable {variable}", variable, known))
    return problems


def config_file(config: Path | None) -> Path | None:
    """Return the file to read: the one given, the environment's, or the usual one if it exists."""
    if config is not None:
        return config
    if os.environ.get(FILE_VARIABLE):
        return Path(os.environ[FILE_VARIABLE])
    return Path(DEFAULT_FILE) if Path(DEFAULT_FILE).exists() else None


@dataclass(frozen=True)
class SettingsFile:
    """The contents of a ``cachetier.toml``, and its path; without ``path`` there is none."""

    path: Path | None = None
    text: str = ""
    values: Mapping[str, Any] = field(default_factory=dict)
    open_to_others: bool = False

    def place(self, *keys: str) -> str:
        """Return the path, and the line of the innermost of ``keys`` that can be found."""
        lines, found = self.text.splitlines(), 0
        for depth, key in enumerate(keys):
            for number in range(max(found, 1), len(lines) + 1):
                if _names(lines[number - 1], key, inner=depth > 0):
                    found = number
                    break
        return f"{self.path}, line {found}" if found else str(self.path)


def _names(line: str, key: str, *, inner: bool) -> bool:
    """Whether ``line`` begins the entry of ``key``, or of ``inner`` below it."""
    name = rf"[\"']?{re.escape(key)}[\"']?\s*"
    if inner:
        return re.search(rf"(^|[\s.{{,\[]){name}[=.\]]", line) is not None
    return re.match(rf"\s*{name}[=.]|\s*\[\s*{name}[.\]]", line) is not None


def read_file(path: Path) -> SettingsFile:
    """Return what a file says.

    Raises:
        ConfigError: It cannot be read.
    """
    import tomllib

    text = ""
    try:
        with path.open("rb") as file:
            text = file.read().decode("utf-8-sig")
            mode = os.fstat(file.fileno()).st_mode
        open_to_others = bool(mode & (stat.S_IRGRP | stat.S_IROTH))
        return SettingsFile(path, text, tomllib.loads(text), open_to_others)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}", hint=_FILE_HINT) from None
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise ConfigError(f"{path} is not UTF-8 (at line {line})", hint=_FILE_HINT) from None
    except tomllib.TOMLDecodeError as error:
        if twice := _given_twice(text):
            hint = "Keep one of the two: a key or table may appear once only."
            raise ConfigError(f"{path}: {twice}", hint=hint) from None
        raise ConfigError(f"{path} is not TOML: {error}", hint=_TOML_HINT) from None
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, and the like
        raise ConfigError(f"{path} cannot be read as TOML: {error}", hint=_TOML_HINT) from None


def unknown_keys(file: SettingsFile, names: Collection[str]) -> list[ConfigError]:
    """Return one error for each key of a file that is not one of the settings ``names``."""
    return [
        unknown(f"setting `{name}` in {file.place(name)}", name, names)
        for name in file.values
        if name not in names
    ]


def shown_secrets(file: SettingsFile, secrets: Iterable[str]) -> list[ConfigError]:
    """Return one error for each of the settings ``secrets`` that a file shows to other users."""
    return [
        ConfigError(
            f"{file.place(name)} holds `{name}`, and others can read it",
            hint=f"Run: chmod 600 {file.path}, owned by the service's user; or give it as "
            f"{variable_of(name)} instead. Others may know the old one: make a new one.",
        )
        for name in secrets
        if file.open_to_others and file.values.get(name)
    ]


def _given_twice(text: str) -> str | None:
    """Return which key or table stands in two lines, and in which; None if none does."""
    table, seen = "", dict[tuple[str, str], int]()
    for number, line in enumerate(text.splitlines(), 1):
        header = re.match(r"\s*\[([^\[\]]+)\]", line)
        if line.lstrip().startswith("["):
            table = header[1].strip() if header else f"line {number}"  # each [[x]] is a table
        key = re.match(r"\s*[\"']?([\w-]+(?:\.[\w-]+)*)[\"']?\s*=", line)
        what = (table, "") if header else (table, key[1]) if key else None
        if what in seen:
            name = f"the table [{table}]" if header else f"`{what[1]}`"
            return f"{name} is given twice, in line {seen[what]} and in line {number}"
        if what is not None:
            seen[what] = number
    return None


# Settings of before, as a file called them, and their successor.
RENAMED = {
    "block_copies": 'off is `remote.assume = ["nocopy"]`, of a replica likewise',
    "admin_socket": 'the `socket` of a principal `owner` with `role = "admin"`',
    "conditional_writes": 'off is `remote.assume = ["unconditional"]`',
    "key_layout": '`remote.assume`: ["spread"]',
    "remote_addressing_style": '`remote.assume`: ["path"] or ["virtual"]',
    "remote_encryption": "`remote.encryption`",
    "remote_endpoint": "`remote.endpoint`, beside `remote.url`",
    "remote_kms_context": "`remote.kms_context`",
    "remote_kms_key": '`remote.encryption`, behind the method: "aws:kms alias/key"',
    "remote_key_layout": '`remote.assume`: ["spread"]',
    "remote_region": "`remote.region`",
    "remote_storage_class": "`remote.storage_class`",
    "remote_verify": 'readback is `remote.assume = ["readback"]`',
    "cluster_token": "`scrape_token`, the same on all nodes; it also opens `/metrics` here",
    "compression_rules": '`compression` as a table; "*" comes last, with the mode for all others',
    "drain_cpus": '`drain_cores`: "of 2-3,7"',
    "drain_threads": "`drain_cores`",
    "drain_memory": "goes: 128 MiB for each of `drain_cores`, 256 MiB at least",
    "grace_seconds": '`grace`, with a unit: "30s"',
    "high_watermark": "the second of `watermarks`: [0.8, 0.9]",
    "http_clear_text": "`http` or `s3` as 'http://0.0.0.0:7070', each door by itself",
    "http_hosts": "`hosts`, together with `s3_hosts`",
    "log_format": '`log`, behind the level: "info:json"',
    "log_level": "`log`",
    "low_watermark": "the first of `watermarks`: [0.8, 0.9]",
    "notice_seconds": '`notice`, with a unit: "4min"',
    "s3_hosts": "`hosts`, together with `http_hosts`",
    "socket_mode": "goes: 0600, or 0666 if `allowed_uids` or a principal names a uid or gid; "
    "remove there the users that `socket_mode` kept out",
    "supersede": '`newest` in `durable_every`: "1, newest"',
    "tls_certificate": "the first of `tls`",
    "tls_client_ca": "the third of `tls`",
    "tls_key": "the second of `tls`",
    "token_file": "goes: always `<cache_dir>/tokens.json`; move the file there",
    "trace": "`OTEL_TRACES_EXPORTER=otlp` in the environment, as all of OpenTelemetry",
    "windows": '`max_rate`, as further ones: ["2 GB/s", "08:00-20:00 200 MB/s"]',
}

# The same of keys in tables.
RENAMED_WITHIN = {
    "memory": {
        "directory": "memory = '64 GiB in /mnt/memory'",
        "size": "memory = '64 GiB'",
    },
    "peers": {
        "finish_after": "exposure_objective, three times as long",
        "room": "copies = '1, 20%'",
    },
    "replicas": {
        "remote": "url",
        "verify": "assume",
        "conditional_writes": "assume",
        "addressing_style": "assume",
        "key_layout": "assume",
        "kms_key": "encryption = 'aws:kms alias/key'",
    },
    "s3_mount": {
        "prefix": "bucket = 'bucket/prefix'",
        "release": "order = 'cluster 1h'",
        "release_seconds": "order = 'cluster 1h'",
    },
}
# What people write who come from elsewhere, where another setting is nearer in letters.
_ALSO_CALLED = {"bucket": "remote", "port": "http", "size": "capacity", "url": "remote"} | {
    key: f"remote.{key}" for key in ("endpoint", "region", "assume", "encryption")
}
_TOML_HINT = 'Correct that line; write all but plain numbers in quotes: capacity = "80%".'
_RENAMED_HINT = "Use the new name; `cachetier config --check` finds the others."
_FILE_HINT = "Give a readable TOML file by --config or CACHETIER_CONFIG."


def unknown(what: str, name: str, known: Iterable[str]) -> ConfigError:
    """Return the error about a setting that there is not: its successor, or the nearest one."""
    if successor := RENAMED.get(name.removeprefix(PREFIX).lower()):
        return ConfigError(f"{what} is no longer a setting: {successor}", hint=_RENAMED_HINT)
    near = _ALSO_CALLED.get(name) or nearest(name, known)
    meant = f"did you mean {near}?" if near else "see docs/configuration.md for all settings"
    return ConfigError(f"unknown {what}: {meant}", hint="Correct or remove it, then start again.")


def origins_of(
    names: Iterable[str], given: Mapping[str, Any], file: SettingsFile
) -> dict[str, str]:
    """Return who sets each setting: a flag, a variable, a line of the file, or ``default``."""
    origins = {}
    for name in names:
        if name in given:
            origins[name] = _flag(name)
        elif variable_of(name) in os.environ:
            origins[name] = variable_of(name)
        elif name in file.values:
            origins[name] = file.place(name)
        else:
            origins[name] = DEFAULT
    return origins


def missing(name: str) -> ConfigError:
    """Say that ``name`` must be given, and all ways to do so."""
    ways = f"Give {_flag(name)}, set {variable_of(name)}, or write {name} = ... in {DEFAULT_FILE}."
    return ConfigError(f"`{name}` is not set", hint=ways)


def wrong_values(
    error: ValueError, origins: Mapping[str, str], file: SettingsFile
) -> list[ConfigError]:
    """Say which settings are wrong, how, and who set them."""
    if not isinstance(error, WrongValueError):
        return [ConfigError(_clipped(str(error)))]
    problems = []
    for where, cause in error.causes:
        name, *within = where.split(".")
        if name == "remote" and within:  # of which each key may come from elsewhere
            alone = origins.get(f"remote_{within[0]}", DEFAULT)
            if alone != DEFAULT:
                problems.append(
                    ConfigError(f"`remote_{within[0]}` from {alone}: {_clipped(cause)}")
                )
                continue
            within = [] if within == ["url"] else within
        in_file = origins[name] == file.place(name)
        origin = file.place(name, *within) if in_file else origins[name]
        problem = f"{'.'.join(within)}: {cause}" if within else cause
        problems.append(ConfigError(f"`{name}` from {origin}: {_clipped(problem)}"))
    return problems


def _clipped(text: str) -> str:
    """Return begin and end of a text that repeats what somebody gave by mistake: a whole file."""
    if len(text) <= _SHOWN_CHARACTERS:
        return text
    return f"{text[: _SHOWN_CHARACTERS // 2]} ... {text[-_SHOWN_CHARACTERS // 2 :]}"


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}" if name in OPTIONS else f"--set {name}"
