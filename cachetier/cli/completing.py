"""What the last word of an unfinished command line could become. Silent, whatever is wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any

from cachetier.cli.completion import FILES, SHELLS
from cachetier.cli.group import built
from cachetier.cli.verbs import GROUPS, VERBS

SECONDS = 1.0  # a service that does not answer by then has nothing to say
_LEVELS = ("local", "replicated", "durable")


def candidates(words: Sequence[str]) -> Iterator[str]:
    """Yield what ``words[-1]`` could become, each with a tab and what it is; or ``FILES``."""
    *before, last = words
    verb, rest = _verb_of(before)
    if verb not in VERBS:
        yield from _starting(last, _verbs_after(verb))
        return
    parameters = list(built(verb).params)
    options = {name: each for each in parameters for name in each.opts + each.secondary_opts}
    asked = options.get(rest[-1]) if rest else None
    if asked is not None and not asked.is_flag:
        yield from _values(asked, rest, options, last)
    elif last.startswith("-"):
        described = ((name, each.help or "") for name, each in options.items())
        yield from _starting(last, [*described, ("--help", "Show what the verb does.")])
    else:
        given = _arguments_in(rest, options)
        arguments = [each for each in parameters if each.param_type_name == "argument"]
        if len(given) < len(arguments):
            yield from _values(arguments[len(given)], rest, options, last)


def _verb_of(words: Sequence[str]) -> tuple[str, list[str]]:
    """Return the verb or group that the words begin with, and what comes after it."""
    name = words[0] if words else ""
    if name in GROUPS and len(words) > 1:
        return f"{name} {words[1]}", list(words[2:])
    return name, list(words[1:])


def _verbs_after(group: str) -> Iterator[tuple[str, str]]:
    prefix = f"{group} " if group in GROUPS else ""
    if group and not prefix:
        return
    for name, (_, line) in VERBS.items():
        if name.startswith(prefix) and " " not in (rest := name.removeprefix(prefix)):
            yield rest, line
    if not prefix:
        yield from GROUPS.items()


def _arguments_in(words: Iterable[str], options: dict[str, Any]) -> list[str]:
    """Return the words that are neither options nor their values."""
    given, is_value = [], False
    for word in words:
        if not is_value and not (word.startswith("-") and word != "-"):
            given.append(word)
        is_value = not is_value and word in options and not options[word].is_flag
    return given


def _values(parameter: Any, words: list[str], options: dict[str, Any], last: str) -> Iterator[str]:
    known = _KNOWN.get(parameter.name)
    if known is not None:
        yield from _starting(last, known(_given(words, options)))
    elif parameter.name in ("file", "config") or parameter.name.endswith(("_dir", "socket")):
        yield FILES


def _given(words: list[str], options: dict[str, Any]) -> dict[str, str]:
    """Return what is known already: the values of options by name, and the arguments in order."""
    pairs = pairwise(words)
    given = {options[word].name: value for word, value in pairs if word in options}
    return {**given, **{str(i): word for i, word in enumerate(_arguments_in(words, options))}}


def _starting(last: str, found: Iterable[tuple[str, str]]) -> Iterator[str]:
    for word, line in found:
        if word.startswith(last):
            yield f"{word}\t{' '.join(line.split())}"


# --- from the service ----------------------------------------------------------------------------


def _runs(given: dict[str, str]) -> list[tuple[str, str]]:
    return _asked(
        given, lambda client: [(run, "run") for run in client.runs(timeout_seconds=SECONDS)]
    )


def _steps(given: dict[str, str]) -> list[tuple[str, str]]:
    run = given.get("run") or given.get("0")
    if not run:
        return []

    def steps(client: Any) -> list[tuple[str, str]]:
        found = client.steps(run, timeout_seconds=SECONDS)
        return [(str(each.step), each.state) for each in found]

    return _asked(given, steps)


def _asked(
    given: dict[str, str], ask: Callable[[Any], list[tuple[str, str]]]
) -> list[tuple[str, str]]:
    """Return what the service says, or nothing: a shell waits, and has no place for errors."""
    try:
        from cachetier.cli.output import reach

        with reach(given.get("url")) as client:
            return ask(client)
    except Exception:
        return []


_KNOWN: dict[str, Callable[[dict[str, str]], list[tuple[str, str]]]] = {
    "run": _runs,
    "step": _steps,
    "level": lambda _given: [(level, "level") for level in _LEVELS],
    "ack": lambda _given: [(level, "level") for level in _LEVELS],
    "shell": lambda _given: [(shell, "shell") for shell in SHELLS],
}
