"""What the last word of an unfinished command line could become. Silent, whatever is wrong."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any

from cachetier.cli.completion import FILES
from cachetier.cli.group import built
from cachetier.cli.offers import offered_for
from cachetier.cli.verbs import GROUPS, VERBS


def candidates(words: Sequence[str]) -> Iterator[str]:
    """Yield what ``words[-1]`` could become, each with a tab and what it is; or ``FILES``."""
    *before, last = words
    verb, rest = _verb_of([part for word in before for part in _apart(word)])
    if verb not in VERBS:
        yield from _starting(last, _verbs_after(verb))
        return
    parameters = list(built(verb).params)
    options = {name: each for each in parameters for name in each.opts + each.secondary_opts}
    asked = options.get(rest[-1]) if rest else None
    option, *value = _apart(last)
    if asked is not None and not asked.is_flag:
        yield from _values(asked, rest, options, last)
    elif value and option in options:
        found = _values(options[option], rest, options, *value)
        yield from (each if each == FILES else f"{option}={each}" for each in found)
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


def _apart(word: str) -> list[str]:
    """Return ``--option=value`` as two words, and any other as it is."""
    option, sign, value = word.partition("=")
    return [option, value] if sign and option.startswith("--") else [word]


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
    offered = offered_for(parameter.name, _given(words, options))
    yield from (FILES,) if offered is None else _starting(last, offered)


def _given(words: list[str], options: dict[str, Any]) -> dict[str, str]:
    """Return what is known already: the values of options by name, and the arguments in order."""
    known = {each.name: os.environ.get(each.envvar or "", "") for each in options.values()}
    pairs = pairwise(words)
    given = {options[word].name: value for word, value in pairs if word in options}
    return {
        **known,
        **given,
        **{str(i): word for i, word in enumerate(_arguments_in(words, options))},
    }


def _starting(last: str, found: Iterable[tuple[str, str]]) -> Iterator[str]:
    for word, line in found:
        if word.startswith(last):
            yield f"{word}\t{' '.join(line.split())}"
