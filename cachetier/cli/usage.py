"""What is said about a command line that cannot be run: what is wrong, and what was meant."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import typer

from cachetier.cli.output import refuse
from cachetier.cli.verbs import ALSO_CALLED
from cachetier.nearest import nearest

_EXTRA = re.compile(r"unexpected extra argument\(s\) \((\S+).*\)")


class UnknownVerbError(typer.BadParameter):
    """There is no such verb; ``hint`` names the one that was meant, if one is near."""

    def __init__(self, ctx: Any, verb: str, verbs: Iterable[str]) -> None:
        command, known = ctx.command_path, list(verbs)
        also = ALSO_CALLED.get(verb.lower())
        meant = also if also in known else nearest(verb, known)
        super().__init__(f"there is no verb `{command} {verb}`", ctx)
        listed = f"`{command} --help` lists the verbs."
        self.hint = f"Did you mean `{command} {meant}`?" if meant else listed


@contextmanager
def reported_usage(words: list[str]) -> Iterator[None]:
    """Turn what typer found wrong into an error, a next move and exit code 2.

    Args:
        words: Those of the command line; ``--json`` among them asks for a document too.
    """
    try:
        yield
    except typer.TyperException as error:
        if error.exit_code != 2:
            raise
        message, hint = _explained(error, words)
        refuse(message, hint, as_json="--json" in words)


def _explained(error: Any, words: list[str]) -> tuple[str, str]:
    """Return what is wrong and what to do. The kinds of error are told apart by what they carry."""
    ctx, option = error.ctx, getattr(error, "option_name", "")
    if isinstance(error, UnknownVerbError):
        return error.message, error.hint
    if ctx is None:
        what = f"{option} needs a value" if option else error.format_message()
        return what, f"Give it one: {option} VALUE" if option else "See `cachetier --help`."
    command, parameter = ctx.command_path, getattr(error, "param", None)
    if hasattr(error, "possibilities"):
        if re.fullmatch(r"-\d+", option):
            return (
                f"STEP: {option} is negative, and steps begin at 0",
                f"Its usage is: {_usage(ctx)}",
            )
        return f"`{command}` has no option {option}", _option_meant(ctx, option)
    if parameter is not None and error.message:
        return f"{_named(parameter)}: {error.message}", f"`{command} --help` says what it takes."
    if parameter is not None:
        return f"`{command}` needs {_named(parameter)}", f"Give it: {_usage(ctx)}"
    if extra := _EXTRA.search(error.format_message()):
        return _too_many(ctx, extra[1], words)
    return error.format_message(), f"Its usage is: {_usage(ctx)}"


def _too_many(ctx: Any, word: str, words: list[str]) -> tuple[str, str]:
    """Tell of the first word that nothing takes; it may have been meant for a flag before it."""
    before = words[words.index(word) - 1] if word in words[1:] else ""
    if before in _options(ctx, only_flags=True):
        hint = f"Give {before} alone, or leave it out."
        return f"{before} takes no value, not {word!r} either", hint
    return f"`{ctx.command_path}` does not take {word!r}", f"Its usage is: {_usage(ctx)}"


def _option_meant(ctx: Any, option: str) -> str:
    meant = "--help" if option in ("-h", "-?") else nearest(option, _options(ctx))
    if meant:
        return f"Did you mean {meant}?"
    if hasattr(ctx.command, "list_commands"):
        return f"Options of a verb come after it: {ctx.command_path} VERB {option}"
    return f"`{ctx.command_path} --help` lists its options."


def _options(ctx: Any, *, only_flags: bool = False) -> list[str]:
    parameters = (each for each in ctx.command.get_params(ctx) if each.param_type_name == "option")
    return [name for each in parameters if each.is_flag or not only_flags for name in each.opts]


def _named(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return str(parameter.name).upper()
    variable = f" (or {parameter.envvar})" if parameter.envvar else ""
    return f"{parameter.opts[0]}{variable}"


def _usage(ctx: Any) -> str:
    return " ".join((ctx.command_path, *ctx.command.collect_usage_pieces(ctx)))
