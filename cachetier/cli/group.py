"""The command as a table of verbs, each imported when it is called."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from cachetier.cli.usage import no_such_verb, told
from cachetier.cli.verbs import GROUPS, SECTIONS, VERBS
from cachetier.cli.words import bound_to

PLAIN: dict[str, Any] = {
    "add_completion": False,
    "pretty_exceptions_enable": False,
    "rich_markup_mode": None,  # plain help needs no rich, which takes longer than the help itself
}


class VerbCommand(TyperCommand):
    """One verb. Reads its words without pydantic; its usage says what must be given."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.params = [bound_to(parameter) for parameter in self.params]

    def get_help_option(self, ctx: Any) -> Any:
        option = super().get_help_option(ctx)
        return option and bound_to(option)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return what comes after the verb: what must be given, then what may be."""
        parameters: list[Any] = list(self.get_params(ctx))
        options = [each for each in parameters if each.param_type_name == "option"]
        arguments = [each for each in parameters if each.param_type_name == "argument"]
        needed = [f"{each.opts[0]} {each.name.upper()}" for each in options if each.required]
        given = [f"{each.name.upper()}" for each in arguments if each.required]
        may = [each for each in arguments if not each.required and not each.hidden]
        optional = [f"[{each.name.upper()}]" for each in may]
        return [*given, *optional, *needed, "[OPTIONS]"]


class VerbGroup(TyperGroup):
    """All verbs, or those of a group (``config``)."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.params = [bound_to(parameter) for parameter in self.params]
        self.prefix = ""

    def get_help_option(self, ctx: Any) -> Any:
        option = super().get_help_option(ctx)
        return option and bound_to(option)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:  # noqa: ARG002  typer's signature
        return ["VERB [OPTIONS]"]

    # --- which verbs there are -------------------------------------------------------------------

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002  typer's signature
        return list(dict.fromkeys(name for rows in self._sections().values() for name in rows))

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002  typer's signature
        if cmd_name not in self.commands and (command := built(f"{self.prefix}{cmd_name}")):
            self.commands[cmd_name] = command
        return self.commands.get(cmd_name)

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002  typer's signature
        for title, rows in self._sections().items():
            with formatter.section(title):
                formatter.write_dl(list(rows.items()), col_max=12)

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
        with told(args):
            return super().make_context(info_name, args, parent, **extra)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args and not ctx.resilient_parsing:
            typer.echo(ctx.get_help(), err=True)
            raise typer.Exit(2)
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        with told(ctx.args):
            return super().invoke(ctx)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if not ctx.resilient_parsing and self.get_command(ctx, args[0]) is None:
            no_such_verb(ctx.command_path, args[0], self.list_commands(ctx), args)
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
