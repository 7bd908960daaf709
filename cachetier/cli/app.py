"""The command as a table of verbs, each imported when it is called. The table is in ``verbs``."""

from __future__ import annotations

import math
from importlib import import_module
from pathlib import Path
from typing import Any, get_args

import typer
from cachetier_client.units import parsed_span
from typer._click.shell_completion import CompletionItem
from typer.core import TyperCommand, TyperGroup

from cachetier.cli.output import SPAN
from cachetier.cli.usage import UnknownVerbError, reported_usage
from cachetier.cli.verbs import GROUPS, SECTIONS, VERBS

PLAIN: dict[str, Any] = {
    "add_completion": False,
    "pretty_exceptions_enable": False,
    "rich_markup_mode": None,  # plain help needs no rich, which takes longer than the help itself
}
_READ: dict[Any, tuple[Any, str]] = {
    str: (str, "a text"),
    int: (int, "a whole number"),
    float: (float, "a number"),
    bool: (bool, "a flag"),
    Path: (Path, "a path"),
}


def _span(word: str) -> float:
    try:
        return float(word)
    except ValueError:
        return parsed_span(word)


_READ_SPAN = _span, "a span of time such as 90, 4m or 12h"


class VerbCommand(TyperCommand):
    """One verb. Its usage says what must be given."""

    def get_params(self, ctx: Any) -> Any:
        return [_adapted(each) for each in super().get_params(ctx)]

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return what comes after the verb: what must be given, then what may be."""
        parameters = self.get_params(ctx)
        arguments = [each for each in parameters if each.param_type_name == "argument"]
        needed = [each for each in parameters if each.required and each not in arguments]
        return [
            *(each.metavar for each in arguments if each.required),
            *(f"[{each.metavar}]" for each in arguments if not (each.required or each.hidden)),
            *(f"{each.opts[0]} {each.name.upper()}" for each in needed),
            "[OPTIONS]",
        ]


class VerbGroup(TyperGroup):
    """All verbs, or those of a group (``config``)."""

    prefix = ""

    def get_params(self, ctx: Any) -> Any:
        return [_adapted(each) for each in super().get_params(ctx)]

    def collect_usage_pieces(self, ctx: Any) -> list[str]:  # noqa: ARG002  typer's signature
        return ["VERB [OPTIONS]"]

    # --- which verbs there are -------------------------------------------------------------------

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002  typer's signature
        return [name for rows in self._sections().values() for name in rows]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002  typer's signature
        if cmd_name not in self.commands and (command := built(f"{self.prefix}{cmd_name}")):
            self.commands[cmd_name] = command
        return self.commands.get(cmd_name)

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002  typer's signature
        for title, rows in self._sections().items():
            with formatter.section(title):
                formatter.write_dl(list(rows.items()), col_max=12)

    def shell_complete(self, ctx: Any, incomplete: str) -> list[CompletionItem]:  # noqa: ARG002
        """Return the verbs from the table: typer would import them all for their help."""
        lines = {name: line for rows in self._sections().values() for name, line in rows.items()}
        named = (name for name in lines if name.startswith(incomplete))
        return [CompletionItem(name, help=lines[name]) for name in named]

    def _sections(self) -> dict[str, dict[str, str]]:
        """Return the verbs of each section with their lines; a group is one of the verbs."""
        shown: dict[str, dict[str, str]] = {}
        for title, verbs in SECTIONS.items():
            for name, (_, line) in verbs.items():
                if not name.startswith(self.prefix):
                    continue
                first, _, rest = name.removeprefix(self.prefix).partition(" ")
                rows = shown.setdefault("Verbs" if self.prefix else title, {})
                rows[first] = GROUPS[f"{self.prefix}{first}"] if rest else line
        return shown

    # --- what is wrong ---------------------------------------------------------------------------

    def make_context(
        self, info_name: Any, args: list[str], parent: Any = None, **extra: Any
    ) -> Any:
        with reported_usage(args):
            return super().make_context(info_name, args, parent, **extra)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args and not ctx.resilient_parsing:
            typer.echo(ctx.get_help(), err=True)
            raise typer.Exit(2)
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        with reported_usage(ctx.args):
            return super().invoke(ctx)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if self.get_command(ctx, args[0]) is None:
            raise UnknownVerbError(ctx, args[0], self.list_commands(ctx))
        return super().resolve_command(ctx, args)


def built(name: str) -> Any:
    """Return the verb, or the group, of this name as typer runs it; None if there is none."""
    if name in GROUPS:
        return _group(name)
    if name not in VERBS:
        return None
    (where, line), last = VERBS[name], name.rpartition(" ")[2]
    module, _, function = where.partition(":")
    app = typer.Typer(**PLAIN)
    does = getattr(import_module(f"cachetier.cli.{module}"), function)
    app.command(last, cls=VerbCommand, short_help=line)(does)
    return typer.main.get_command(app)


def _group(name: str) -> Any:
    app = typer.Typer(name=name.rpartition(" ")[2], cls=VerbGroup, help=GROUPS[name], **PLAIN)
    app.callback()(lambda: None)
    group = typer.main.get_command(app)
    assert isinstance(group, VerbGroup)
    group.prefix = f"{name} "
    return group


# --- parameters ----------------------------------------------------------------------------------


def _adapted(parameter: Any) -> Any:
    """Return a parameter that reads its words, and completes them, by the rules of this command.

    typer would ask pydantic, whose import takes as long as the rest of the command together.
    """
    if parameter.param_type_name == "argument":
        parameter.metavar = parameter.metavar or parameter.name.upper()
    kind = parameter.type_descriptor.annotation
    kind = get_args(kind)[0] if parameter.type_descriptor.is_list else kind
    reader = _WordReader(*(_READ_SPAN if parameter.metavar == SPAN else _READ[kind]))
    parameter.get_runtime_param = lambda: reader
    parameter._custom_shell_complete = _completed
    return parameter


class _WordReader:
    """Makes values of the words of one parameter; typer calls ``coerce``."""

    def __init__(self, read: Any, noun: str) -> None:
        self._read = read
        self._noun = noun

    def coerce(self, value: Any, *, param: Any, ctx: Any) -> Any:
        if param.multiple or param.nargs == -1:
            return tuple(self._one(word, param, ctx) for word in value or ())
        return None if value is None else self._one(value, param, ctx)

    def _one(self, word: Any, param: Any, ctx: Any) -> Any:
        try:
            value = self._read(word)
        except ValueError:
            value = math.nan
        wrong = ""
        if value != value:
            wrong = f"is not {self._noun}"
        elif param.min is not None and value < param.min:
            wrong = f"is less than {param.min:g}"
        elif param.max is not None and value > param.max:
            wrong = f"is more than {param.max:g}"
        if wrong:
            raise typer.BadParameter(f"{word!r} {wrong}", ctx=ctx, param=param)
        return value


def _completed(ctx: Any, parameter: Any, incomplete: str) -> list[CompletionItem]:
    from cachetier.cli.offers import completed

    return completed(ctx, parameter, incomplete)


# --- the command ---------------------------------------------------------------------------------

app = typer.Typer(
    name="cachetier",
    cls=VerbGroup,
    help="Node-local write-back cache for checkpoints: NVMe speed now, object storage behind it.",
    epilog="`cachetier VERB --help` describes a verb. CACHETIER_URL says where the service is.",
    **PLAIN,
)


def _show_version(wanted: bool) -> None:
    if wanted:
        from cachetier import __version__

        typer.echo(f"cachetier {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: bool = typer.Option(
        False, "--version", help="Show the version and exit.", callback=_show_version, is_eager=True
    ),
) -> None:
    """Absorb checkpoint shards at NVMe speed, carry them to S3, give them back verified."""
