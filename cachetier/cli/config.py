"""``cachetier config``: the settings as the service would read them, and what is wrong with them.

They take the options of ``serve``, so that the very command line of a service can be asked about.
"""

from __future__ import annotations

import json
import shutil
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cachetier_client.units import shown_size

from cachetier.cli import options
from cachetier.cli.output import USAGE, complain, echo, print_json, refuse, show
from cachetier.config.fields import schema_of
from cachetier.config.settings import SETTINGS, Settings, sourced
from cachetier.config.sources import DEFAULT
from cachetier.config.types import Secret, plain
from cachetier.model.bandwidth import parsed_bandwidth
from cachetier.remote.scheme import scheme_of

if TYPE_CHECKING:
    from cachetier.config.settings import Sourced


@options.verb()
@options.flag("--check", help="Say all that is wrong with them; exit 2 if there is anything.")
@options.flag("--schema", help="Print the JSON schema of cachetier.toml, for editors.")
@options.flag("--origin", help="Say who sets each of them.")
@options.settings()
@options.as_json
def config(
    flags: dict[str, Any],
    config: Path | None,
    check: bool,
    schema: bool,
    origin: bool,
    as_json: bool,
) -> int:
    """Show each setting as the service would read it now, in the form of a cachetier.toml.

    With --origin each says where it comes from: an option, a variable, a line of the file, or the
    default. A token is never shown. With --check only what is wrong is said, each with its place;
    nothing is started, and no remote is asked: `cachetier doctor` does that.

    JSON: `file`, `settings`: `value` and `origin` of each, of `max_rate` also `bytes_per_second`;
    with --check `file`, `problems`: `message` and `hint` of each; `warnings`: right, perhaps not
    meant; with --schema a JSON schema (draft 2020-12).
    """
    if check + schema + origin > 1:
        refuse("--check, --schema and --origin go one by one", "Leave out all but one of them.")
    if schema:
        head = {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "title": "cachetier.toml",
            "description": "Settings of the cachetier service.",
        }
        print_json({**head, **schema_of(Settings)})
        return 0
    found = sourced(flags, config=config)
    if check:
        return _checked(found, as_json)
    if found.settings is None:
        raise found.problems[0]
    document = {"file": _text(found.file), "settings": _described(found)}
    show(as_json, document, partial(echo, *written(found, with_origins=origin)))
    return 0


def _checked(found: Sourced, as_json: bool) -> int:
    """Say what is wrong with the settings; return the exit code."""
    warnings = _warnings(found) if found.settings is not None else []
    if as_json:
        problems = [{"message": each.message, "hint": each.hint} for each in found.problems]
        print_json({"file": _text(found.file), "problems": problems, "warnings": warnings})
    for problem in found.problems:
        complain(problem.message, problem.hint)
    if not (found.problems or as_json):
        echo(f"The settings are well: {_summary(found)}.", *warnings)
    return USAGE if found.problems else 0


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)


def _described(found: Sourced) -> dict[str, dict[str, Any]]:
    assert found.settings is not None
    values = plain(found.settings)
    values["socket"] = str(found.settings.socket_path)
    described = {name: {"value": values[name], "origin": found.origins[name]} for name in values}
    described["max_rate"]["bytes_per_second"] = parsed_bandwidth(found.settings.max_rate).max_rate
    return described


def _summary(found: Sourced) -> str:
    given = sum(origin != DEFAULT for origin in found.origins.values())
    where = f"file {found.file}" if found.file else "no file"
    return f"{given} given, {len(found.origins) - given} by default, {where}"


def _warnings(found: Sourced) -> list[str]:
    """Return what is right, but may not be meant: names, rates in bits, and shares."""
    settings = found.settings
    assert settings is not None
    return [
        *(
            f"Warning: {each.called}: {oddity}"
            for each in settings.remotes
            if (oddity := scheme_of(each).oddity(each)) is not None
        ),
        *(
            f"Note: `max_rate` = {toml_of(plain(settings.max_rate))} is {meant}."
            for meant in (_meaning(settings),)
            if meant
        ),
        *_promised_beyond(found),
    ]


def _meaning(settings: Settings) -> str:
    """Return rates in bytes if they are written in bits, or may look so; else nothing."""
    if not any("b" in text for text in settings.max_rate):
        return ""
    limits = parsed_bandwidth(settings.max_rate)
    rates = [limits.max_rate, *(each.bytes_per_second for each in limits.windows)]
    return ", ".join(f"{shown_size(rate)}/s" for rate in rates if rate is not None)


def _promised_beyond(found: Sourced) -> list[str]:
    """Say if principals may together have more than there is: allowed, but maybe not meant."""
    assert found.settings is not None
    promised, where = found.settings.promised_bytes, found.settings.cache_dir.absolute()
    there = next(each for each in (where, *where.parents) if each.exists())
    capacity = found.settings.capacity_bytes(shutil.disk_usage(there).total)
    if promised <= capacity:
        return []
    more = f"{shown_size(promised)} together, `capacity` is {shown_size(capacity)}"
    return [f"Warning: the principals may have {more}: it can be full before a share is."]


# --- as TOML --------------------------------------------------------------------------------------


def written(found: Sourced, *, with_origins: bool) -> list[str]:
    """Return the lines of a ``cachetier.toml`` that gives the same settings again.

    A setting that is not set, or a secret, is a comment.
    """
    assert found.settings is not None
    settings = found.settings
    values = {name: getattr(settings, name) for name in found.origins}
    values["socket"] = settings.socket_path
    width = max(map(len, values))
    lines = {name: _line(name.ljust(width), value) for name, value in values.items()}
    column = min(44, max(map(len, lines.values())))
    shown = []
    for name, line in lines.items():
        meaning = _meaning(settings) if name == "max_rate" else ""
        notes = [meaning] * bool(meaning) + [found.origins[name]] * with_origins
        shown.append(f"{line.ljust(column)}  # {', '.join(notes)}" if notes else line)
    return shown


def _line(name: str, value: Any) -> str:
    if value is None:
        return f"# {name} not set"
    if isinstance(value, Secret):
        return f"# {name} {value!r}"
    return f"{name} = {toml_of(SETTINGS[name.strip()].kind.written(value))}"


def toml_of(value: Any) -> str:
    """Return a plain value as TOML writes it, on one line."""
    if isinstance(value, dict):
        given = ((key, each) for key, each in value.items() if each is not None)
        pairs = [f"{_quoted(key)} = {toml_of(each)}" for key, each in given]
        return f"{{ {', '.join(pairs)} }}" if pairs else "{}"
    if isinstance(value, list):
        return f"[{', '.join(map(toml_of, value))}]"
    if isinstance(value, bool):
        return "true" if value else "false"
    return _quoted(value) if isinstance(value, str) else str(value)


def _quoted(text: str) -> str:
    """Return ``text`` as TOML quotes it: as JSON, but for pairs of surrogates, and DEL."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
