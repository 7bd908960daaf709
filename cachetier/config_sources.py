"""Where settings come from: the environment and ``cachetier.toml``, and whom to blame for each.

Source: docs/configuration.md.
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from cachetier.errors import ConfigError

PREFIX = "CACHETIER_"
DEFAULT_FILE = "cachetier.toml"
FILE_VARIABLE = "CACHETIER_CONFIG"
# Variables that share the prefix but are not the service's: the client's, the tests', the
# deployment's.
FOREIGN_VARIABLES = frozenset(
    f"{PREFIX}{name}"
    for name in (
        "ACCEPTANCE",
        "BASE_IMAGE",
        "CONFIG",
        "FALLBACK",
        "FALLBACK_AFTER",
        "HTTP_PORT",
        "IMAGE",
        "RUN",
        "SAVE_ID",
        "SOCKET_DIR",
        "URL",
    )
)
FOREIGN_PREFIXES = (f"{PREFIX}BENCH_", f"{PREFIX}CLIENT_", f"{PREFIX}DEMO_", f"{PREFIX}TEST_")


def refuse_unknown_variables(names: Collection[str]) -> None:
    """Raise ConfigError if a variable has our prefix and is none of the settings ``names``."""
    for variable in os.environ:
        ours = variable.startswith(PREFIX) and variable not in FOREIGN_VARIABLES
        if not ours or variable.startswith(FOREIGN_PREFIXES):
            continue
        name = variable.removeprefix(PREFIX).lower()
        if name not in names:
            known = [f"{PREFIX}{field.upper()}" for field in names]
            raise _unknown(f"environment variable {variable}", variable, known)


def config_file(config: Path | None) -> Path | None:
    """Return the file to read: the one given, the environment's, or the usual one if it exists."""
    if config is not None:
        return config
    if os.environ.get(FILE_VARIABLE):
        return Path(os.environ[FILE_VARIABLE])
    return Path(DEFAULT_FILE) if Path(DEFAULT_FILE).exists() else None


def values_in(path: Path, names: Collection[str]) -> tuple[dict[str, Any], str]:
    """Return the values in a file, and its text.

    Raises:
        ConfigError: It cannot be read, or has values that are none of the settings ``names``.
    """
    try:
        text = path.read_bytes().decode()
        values = tomllib.loads(text)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}", hint=_FILE_HINT) from None
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise ConfigError(f"{path} is not UTF-8 (at line {line})", hint=_FILE_HINT) from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not TOML: {error}", hint=_FILE_HINT) from None
    for name in values:
        if name not in names:
            where = f"setting `{name}` in {path}{_line_of(name, text)}"
            raise _unknown(where, name, names)
    return values, text


_FILE_HINT = "Give a readable TOML file by --config or CACHETIER_CONFIG."


def _unknown(what: str, name: str, known: Iterable[str]) -> ConfigError:
    near = difflib.get_close_matches(name, list(known), n=1)
    meant = f"did you mean {near[0]}?" if near else "see docs/configuration.md for all settings"
    return ConfigError(f"unknown {what}: {meant}", hint="Correct or remove it, then start again.")


def _line_of(name: str, text: str) -> str:
    for number, line in enumerate(text.splitlines(), start=1):
        if re.match(rf"\s*[\"']?{re.escape(name)}[\"']?\s*[=.\]]|\s*\[{re.escape(name)}\b", line):
            return f", line {number}"
    return ""


def explained(
    error: ValidationError,
    given: Mapping[str, Any],
    in_file: Mapping[str, Any],
    path: Path | None,
    text: str,
) -> ConfigError:
    """Say which setting is wrong, how, and who set it."""
    first = error.errors()[0]
    name = str(first["loc"][0]) if first["loc"] else ""
    within = ".".join(str(part) for part in first["loc"][1:])
    cause = first["msg"].removeprefix("Value error, ")
    cause = f"{within}: {cause}" if within else cause
    flag, variable = f"--{name.replace('_', '-')}", f"{PREFIX}{name.upper()}"
    if first["type"] == "missing":
        return ConfigError(
            f"`{name}` is not set",
            hint=f"Give {flag}, set {variable}, or write {name} = ... in {DEFAULT_FILE}.",
        )
    if name in given:
        origin = flag
    elif variable in os.environ:
        origin = variable
    elif name in in_file:
        origin = f"{path}{_line_of(name, text)}"
    else:
        return ConfigError(cause)
    return ConfigError(f"`{name}` from {origin}: {cause}")
