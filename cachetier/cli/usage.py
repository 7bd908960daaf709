"""What is said about a command line that cannot be run: what is wrong, and what was meant."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import typer

from cachetier.cli.output import refuse
from cachetier.cli.verbs import ALSO_CALLED
from cachetier.nearest import nearest

_EXTRA = re.compile(r"unexpected extra arguments? ?\(?s?\)? ?\((.*)\)")


@contextmanager
def told(words: list[str]) -> Iterator[None]:
    """Turn what typer found wrong into an error, a next move and exit code 2.

    Args:
        words: Those of the command line; ``--json`` among them asks for a document too.
    """
    as_json = "--json" in words
    try:
        yield
    except typer.TyperException as error:
        if getattr(error, "exit_code", None) != 2:
            raise
        message, hint = _explained(error, words)
        refuse(message, hint, as_json=as_json)


def no_such_verb(command: str, verb: str, verbs: Iterable[str], words: list[str]) -> NoReturn:
    """End with the verb that was meant, if one is near."""
    verbs = list(verbs)
    also = ALSO_CALLED.get(verb.lower())
    meant = also if also in verbs else nearest(verb, verbs)
    hint = f"Did you mean `{command} {meant}`?" if meant else f"`{command} --help` lists the verbs."
    refuse(f"there is no verb `{command} {verb}`", hint, as_json="--json" in words)


def _explained(error: Any, words: list[str]) -> tuple[str, str]:
    """Return what is wrong and what to do. The kinds of error are told apart by what they carry."""
    ctx, option = error.ctx, getattr(error, "option_name", None)
    if ctx is None:
        what = f"{option} needs a value" if option else error.format_message()
        return what, f"Give it one: {option} VALUE" if option else "See `cachetier --help`."
    command, parameter = ctx.command_path, getattr(error, "param", None)
    if hasattr(error, "possibilities"):
        return _no_such_option(ctx, error.option_name)
    if parameter is not None and error.message:
        return f"{_named(parameter)}: {error.message}", f"`{command} --help` says what it takes."
    if parameter is not None:
        return f"`{command}` needs {_named(parameter)}", f"Give it: {_usage(ctx)}"
    extra = _EXTRA.search(error.format_message())
    if extra is not None:
        return _too_many(ctx, extra[1], words)
    return error.format_message(), f"Its usage is: {_usage(ctx)}"


def _too_many(ctx: Any, extra: str, words: list[str]) -> tuple[str, str]:
    """Tell of the first word that nothing takes; it may have been meant for a flag before it."""
    word = extra.split(maxsplit=1)[0]
    before = words[words.index(word) - 1] if word in words[1:] else ""
    flags = {
        name
        for each in ctx.command.get_params(ctx)
        if getattr(each, "is_flag", False)
        for name in each.opts
    }
    if before in flags:
        return (
            f"{before} takes no value, not {word!r} either",
            f"Give {before} alone, or leave it out.",
        )
    return f"`{ctx.command_path}` does not take {word!r}", f"Its usage is: {_usage(ctx)}"


def _no_such_option(ctx: Any, option: str) -> tuple[str, str]:
    command = ctx.command
    known = [
        name for each in command.get_params(ctx) for name in (*each.opts, *each.secondary_opts)
    ]
    message = f"`{ctx.command_path}` has no option {option}"
    if option in ("-h", "-?"):
        return message, "Did you mean --help?"
    if meant := nearest(option, known):
        return message, f"Did you mean {meant}?"
    if hasattr(command, "list_commands"):
        return message, f"Options of a verb come after it: {ctx.command_path} VERB {option}"
    return message, f"`{ctx.command_path} --help` lists its options."


def _named(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return str(parameter.name).upper()
    variable = f" (or {parameter.envvar})" if parameter.envvar else ""
    return f"{parameter.opts[0]}{variable}"


def _usage(ctx: Any) -> str:
    return " ".join((ctx.command_path, *ctx.command.collect_usage_pieces(ctx)))
