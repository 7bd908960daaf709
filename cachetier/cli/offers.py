"""What a shell can offer as the value of an option or an argument: words, runs, steps, names."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

from typer._click.shell_completion import CompletionItem

from cachetier.cli.completion import SHELLS
from cachetier.cli.shards import LEVELS

SECONDS = 1.0  # who does not answer by then has nothing to say: somebody waits at the keyboard

Offers = list[tuple[str, str]]
Given = Mapping[str, Any]


def completed(ctx: Any, parameter: Any, incomplete: str) -> list[CompletionItem]:
    """Return what a value that begins with ``incomplete`` could be; typer calls it."""
    offered = offered_for(parameter.name, ctx.params)
    if offered is None:
        return [CompletionItem(incomplete, type="file")]
    return [
        CompletionItem(each, help=line) for each, line in offered if each.startswith(incomplete)
    ]


def offered_for(parameter: str, given: Given) -> Offers | None:
    """Return words with what they are, in the order they are shown in; None: names of files.

    Args:
        parameter: Its name, as the verb's function has it.
        given: What the command line and the environment say already, by name.
    """
    if parameter in _KNOWN:
        return _KNOWN[parameter](given)
    if parameter in ("file", "config"):
        return None
    return _of_setting(parameter)


# --- words ---------------------------------------------------------------------------------------


def _each(kind: str, *words: str) -> Callable[[Given], Offers]:
    return lambda _given: [(word, kind) for word in words]


def _of_setting(name: str) -> Offers | None:
    """Return the words that a setting takes, if it is one of a few."""
    from cachetier.config.settings import SETTINGS

    if name not in SETTINGS:
        return []
    setting = SETTINGS[name]
    if setting.kind.schema.get("format") == "path":
        return None
    kinds = (setting.kind.schema, *setting.kind.schema.get("anyOf", ()))
    words = next((kind["enum"] for kind in kinds if "enum" in kind), ())
    usual = setting.shown_default
    return [(word, "the default" if word == usual else name) for word in words]


def _modes(_given: Given) -> Offers:
    from cachetier.model.compression import LEVELS, Method

    plain = [(str(method), "compression") for method in (Method.OFF, Method.AUTO)]
    leveled = [f"{method}:{level}" for method in (Method.ZSTD, Method.PLANES) for level in LEVELS]
    return plain + [(mode, "compression") for mode in leveled]


def _checks(_given: Given) -> Offers:
    from cachetier.doctor.checks import GROUPS, NAMES

    return [(group, "group of checks") for group in GROUPS] + [(name, "check") for name in NAMES]


def _replicas(given: Given) -> Offers:
    from cachetier.config.settings import sourced

    flags = {"cache_dir": "/", "remote": given.get("remote")}
    settings = sourced(flags, config=given.get("config")).settings
    found = {} if settings is None else settings.replicas
    return [(name, each.remote) for name, each in found.items()]


# --- from the service ----------------------------------------------------------------------------


def _runs(given: Given) -> Offers:
    def runs(client: Any) -> Offers:
        return [(run, "run") for run in client.runs(timeout_seconds=SECONDS)]

    return _asked(given, runs)


def _steps(given: Given) -> Offers:
    run = given.get("run")

    def steps(client: Any) -> Offers:
        found = client.steps(run, timeout_seconds=SECONDS)
        return [(str(each.step), each.state) for each in found]

    return _asked(given, steps) if run else []


def _names(given: Given) -> Offers:
    run, step = given.get("run"), given.get("step")

    def names(client: Any) -> Offers:
        found = client.step(run, step, timeout_seconds=SECONDS)
        return [(shard.name, f"shard of rank {shard.rank}") for shard in found.shards]

    return _asked(given, names) if run and step is not None else []


def _asked(given: Given, ask: Callable[[Any], Offers]) -> Offers:
    """Return what the service says in time, or nothing: a shell has no place for errors.

    The asking is left to itself when the time is over: not all that it may wait for has a limit, as
    the system's look-up of a host has none.
    """
    found: Offers = []

    def try_it() -> None:
        try:
            from cachetier.cli.output import reach

            with reach(given.get("url"), seconds=None) as client:
                found.extend(ask(client))
        except Exception:
            found.clear()

    asking = threading.Thread(target=try_it, daemon=True)
    asking.start()
    asking.join(2 * SECONDS)
    return list(found)


_LEVELS = _each("level", *LEVELS)
_KNOWN: dict[str, Callable[[Given], Offers]] = {
    "run": _runs,
    "step": _steps,
    "name": _names,
    "level": _LEVELS,
    "ack": _LEVELS,
    "compression": _modes,
    "element_size": _each("bytes of one value", "2", "4", "8"),
    "only": _checks,
    "replica": _replicas,
    "shell": _each("shell", *SHELLS),
}
