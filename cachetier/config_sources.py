"""Where settings come from: the environment and ``cachetier.toml``, and whom to blame for each.

Source: docs/configuration.md.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from cachetier.config_types import WrongValueError
from cachetier.errors import ConfigError
from cachetier.nearest import nearest

PREFIX = "CACHETIER_"
DEFAULT_FILE = "cachetier.toml"
DEFAULT = "default"
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


def variable_of(name: str) -> str:
    """Return the environment variable of a setting."""
    return f"{PREFIX}{name.upper()}"


def values_of_variables(names: Iterable[str]) -> dict[str, str]:
    """Return the values that the environment has."""
    named = {name: variable_of(name) for name in names}
    return {name: os.environ[each] for name, each in named.items() if each in os.environ}


def unknown_variables(names: Collection[str]) -> list[ConfigError]:
    """Return one error for each variable that has our prefix and is none of the settings."""
    problems = []
    for variable in sorted(os.environ):
        ours = variable.startswith(PREFIX) and variable not in FOREIGN_VARIABLES
        if not ours or variable.startswith(FOREIGN_PREFIXES):
            continue
        if variable.removeprefix(PREFIX).lower() not in names:
            known = [variable_of(name) for name in names]
            problems.append(_unknown(f"environment variable {variable}", variable, known))
    return problems


def config_file(config: Path | None) -> Path | None:
    """Return the file to read: the one given, the environment's, or the usual one if it exists."""
    if config is not None:
        return config
    if os.environ.get(FILE_VARIABLE):
        return Path(os.environ[FILE_VARIABLE])
    return Path(DEFAULT_FILE) if Path(DEFAULT_FILE).exists() else None


def values_in(path: Path) -> tuple[dict[str, Any], str]:
    """Return the values in a file, and its text.

    Raises:
        ConfigError: It cannot be read.
    """
    import tomllib

    try:
        text = path.read_bytes().decode()
        return tomllib.loads(text), text
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}", hint=_FILE_HINT) from None
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise ConfigError(f"{path} is not UTF-8 (at line {line})", hint=_FILE_HINT) from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not TOML: {error}", hint=_TOML_HINT) from None


def unknown_keys(
    values: Mapping[str, Any], names: Collection[str], path: Path, text: str
) -> list[ConfigError]:
    """Return one error for each key of a file that is none of the settings ``names``."""
    return [
        _unknown(f"setting `{name}` in {path}{_line_of(name, text)}", name, names)
        for name in values
        if name not in names
    ]


_TOML_HINT = 'Mend that line; what is no plain number stands in quotes: capacity = "80%".'
_FILE_HINT = "Give a readable TOML file by --config or CACHETIER_CONFIG."


def _unknown(what: str, name: str, known: Iterable[str]) -> ConfigError:
    near = nearest(name, known)
    meant = f"did you mean {near}?" if near else "see docs/configuration.md for all settings"
    return ConfigError(f"unknown {what}: {meant}", hint="Correct or remove it, then start again.")


def _line_of(name: str, text: str) -> str:
    for number, line in enumerate(text.splitlines(), start=1):
        if re.match(rf"\s*[\"']?{re.escape(name)}[\"']?\s*[=.\]]|\s*\[{re.escape(name)}\b", line):
            return f", line {number}"
    return ""


def origins_of(
    names: Iterable[str],
    given: Mapping[str, Any],
    in_file: Mapping[str, Any],
    path: Path | None,
    text: str,
) -> dict[str, str]:
    """Return who sets each setting: a flag, a variable, a line of the file, or ``default``."""
    origins = {}
    for name in names:
        if name in given:
            origins[name] = _flag(name)
        elif variable_of(name) in os.environ:
            origins[name] = variable_of(name)
        elif name in in_file:
            origins[name] = f"{path}{_line_of(name, text)}"
        else:
            origins[name] = DEFAULT
    return origins


def missing(name: str) -> ConfigError:
    """Say that ``name`` must be given, and all ways to do so."""
    ways = f"Give {_flag(name)}, set {variable_of(name)}, or write {name} = ... in {DEFAULT_FILE}."
    return ConfigError(f"`{name}` is not set", hint=ways)


def wrong_values(error: ValueError, origins: Mapping[str, str]) -> list[ConfigError]:
    """Say which settings are wrong, how, and who set them."""
    if not isinstance(error, WrongValueError):
        return [ConfigError(str(error))]
    problems = []
    for where, cause in error.causes:
        name, _, within = where.partition(".")
        told = f"{within}: {cause}" if within else cause
        problems.append(ConfigError(f"`{name}` from {origins[name]}: {told}"))
    return problems


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"
