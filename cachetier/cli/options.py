"""The options and arguments of verbs: one that several verbs have is declared once, here."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from cachetier.cli.output import UsageMistakeError, reported
from cachetier.cli.types import (
    COUNT,
    DURATION,
    LEVEL,
    PATH,
    RUN,
    SETTING,
    STEP,
    URL,
    type_of_setting,
)
from cachetier.cli.verbs import RENAMED

if TYPE_CHECKING:
    from cachetier_client import Client

CONTEXT = {"help_option_names": ["-h", "--help"], "show_default": True}
DEFAULT_SAVE_ID = "cli"
Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


class Verb(click.Command):
    """One verb. Its usage says what must be given."""

    allow_extra_args = True  # which are refused here, with more to say than click has

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        """Return what comes after the verb: what must be given, then what may be."""
        parameters = self.get_params(ctx)
        needed = [each for each in parameters if each.required and isinstance(each, click.Option)]
        return [
            *(each.make_metavar(ctx) for each in parameters if isinstance(each, click.Argument)),
            *(f"{each.opts[0]} {each.make_metavar(ctx)}" for each in needed),
            "[OPTIONS]",
        ]

    def invoke(self, ctx: click.Context) -> None:
        """Call the verb, and end with the exit code that it returns, if it returns one."""
        ctx.exit(super().invoke(ctx) or 0)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        words = list(args)
        names = [each.name for each in self.params if isinstance(each, click.Argument)]
        if "step" in names:
            from cachetier.cli.addresses import spread

            args = spread(args, self._values_after(), names.index("run"))
        if ctx.resilient_parsing and args and args[-1].startswith("-") and "=" not in args[-1]:
            args = args[:-1]  # the option to be completed: click reads no line that ends with one
        extra = super().parse_args(ctx, args)
        if extra and not ctx.resilient_parsing:
            raise _too_many(ctx, extra[0], words)
        return extra

    def _values_after(self) -> dict[str, bool]:
        """Return each option, and whether the word after it is its value."""
        options = (each for each in self.params if isinstance(each, click.Option))
        return {name: not each.is_flag for each in options for name in each.opts}


def renamed(old: str, now: str, ctx: click.Context) -> UsageMistakeError:
    """Return the error of a verb that has another name now."""
    return UsageMistakeError(f"`{old}` has another name now", f"Call it: cachetier {now}", ctx)


def _too_many(ctx: click.Context, word: str, words: list[str]) -> UsageMistakeError:
    """Return the error about the first word too many; a flag before it may have been its aim."""
    old = f"{ctx.command_path} {word}"
    if (now := RENAMED.get(old.removeprefix("cachetier "))) is not None:
        return renamed(old, now, ctx)
    before = words[words.index(word) - 1] if word in words[1:] else ""
    if before in options_of(ctx, only_flags=True):
        hint = f"Give {before} alone, or leave it out."
        return UsageMistakeError(f"{before} takes no value, not {word!r} either", hint)
    return UsageMistakeError(f"`{ctx.command_path}` does not take {word!r}", usage_hint(ctx))


def usage_hint(ctx: click.Context) -> str:
    return f"Its usage is: {usage(ctx)}"


def usage(ctx: click.Context) -> str:
    return " ".join((ctx.command_path, *ctx.command.collect_usage_pieces(ctx)))


def options_of(ctx: click.Context, *, only_flags: bool = False) -> list[str]:
    options = (each for each in ctx.command.get_params(ctx) if isinstance(each, click.Option))
    return [name for each in options if each.is_flag or not only_flags for name in each.opts]


verb = functools.partial(click.command, cls=Verb, context_settings=CONTEXT)
argument = click.argument
option = functools.partial(click.option, show_envvar=True)
flag = functools.partial(click.option, is_flag=True)

json_flag = flag("--json", "as_json", help="Print one JSON document.")
url = option(
    "--url",
    type=URL,
    envvar="CACHETIER_URL",
    help="unix:///path/to/cachetier.sock or http://host:port.",
)
run_argument = argument("run", type=RUN, help="The training run; or RUN/STEP, or RUN/PATH.")
step_argument = argument("step", type=STEP, help="The training step.")
rank = option("--rank", type=COUNT, help="Default: the environment's.")
world_size = option("--world-size", type=COUNT, help="Default: the environment's.")
save_id = option(
    "--save-id",
    default=DEFAULT_SAVE_ID,
    envvar="CACHETIER_SAVE_ID",
    help="Equal for all shards of a save.",
)
overwrite = flag("--overwrite", help="Replace a step that is published.")
yes = flag("--yes", "-y", help="Do not ask.")


def as_json(verb: Callable[..., Any]) -> Callable[..., Any]:
    """Give a verb ``--json``, by which its errors are reported, too."""

    @functools.wraps(verb)
    def reporting(**given: Any) -> Any:
        with reported(given["as_json"]):
            return verb(**given)

    return json_flag(reporting)


def service(verb: Callable[..., Any]) -> Callable[..., Any]:
    """Give a verb the options of all that ask a service."""
    return url(as_json(verb))


def client(
    verb: Callable[..., Any],
    *,
    patient: bool = False,
    seconds: float | None = None,
    exact: bool = False,
) -> Callable[..., Any]:
    """Give a verb the options of all that ask a service, and a client; of a path run and step.

    Args:
        verb: It gets the name that is in a path, too, if it takes one.
        patient: While there is no service, repeat: see ``reach``.
        seconds: How long a call may take; default: ``--timeout``, else that of a look.
        exact: A step is not meant by the path of one of its shards.
    """

    @functools.wraps(verb)
    def asking(url: str | None, **given: Any) -> Any:
        from cachetier.cli.connection import LOOK_SECONDS, reach

        waits = seconds or given.get("timeout", LOOK_SECONDS)
        with reach(url, patient=patient, seconds=waits) as client:
            if isinstance(given.get("step"), tuple):
                given.update(_located(client, given, exact))
            return verb(client=client, **given)

    return service(asking)


def _located(client: Client, given: dict[str, Any], exact: bool) -> dict[str, Any]:
    """Return run and step of a path, and the name, if the verb takes one."""
    from cachetier.cli.addresses import located

    named = given.get("name")
    run, step, name = located(client, given["run"], given["step"], exact=exact or named is not None)
    return {"run": run, "step": step, **({"name": named or name} if "name" in given else {})}


def run_and_step(verb: Callable[..., Any]) -> Callable[..., Any]:
    """Give a verb RUN and STEP."""
    return run_argument(step_argument(verb))


def optional_run_and_step(verb: Callable[..., Any]) -> Callable[..., Any]:
    """Give a verb RUN and STEP, either of which may be left out."""
    run = argument("run", type=RUN, required=False, help="Only this run.")
    return run(argument("step", type=STEP, required=False, help="Only this step of it.")(verb))


def run_and_newest(verb: Callable[..., Any]) -> Callable[..., Any]:
    """Give a verb RUN, and STEP that may be left out."""
    about = "Default: the newest that is durable."
    return run_argument(argument("step", type=STEP, required=False, help=about)(verb))


def duration(spelt: str, help: str, *, default: str | None = None, least: float = 0.0) -> Decorator:
    """Return an option in seconds."""
    return option(spelt, type=replace(DURATION, least=least), default=default, help=help)


def timeout(default: str, help: str = "For each call.") -> Decorator:
    return duration("--timeout", help, default=default)


def level(default: str | None, help: str = "local, replicated or durable.") -> Decorator:
    return option("--level", type=LEVEL, default=default, help=help)


# --- settings as options --------------------------------------------------------------------------


def settings(*names: str) -> Decorator:
    """Give a verb options of settings: those in ``names``, else ``OPTIONS``; ``--set`` for all.

    It is called with ``flags``, the settings that were given, and with ``config``, the file that
    was named.
    """
    from cachetier.config.settings import NAMED
    from cachetier.config.sources import OPTIONS

    chosen = names or OPTIONS

    def decorated(verb: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(verb)
        def taken(given: tuple[tuple[str, str], ...], **values: Any) -> Any:
            own = {name: values.pop(name) for name in chosen}
            flags = {name: value for name, value in own.items() if value is not None}
            return verb(flags={**dict(given), **flags}, **values)

        found: Callable[..., Any] = taken
        about = "Any setting: --set pack=on; see docs/configuration.md."
        found = option("--set", "given", type=SETTING, multiple=True, help=about)(found)
        for name in reversed(chosen):
            usual = NAMED[name].shown_default
            about = NAMED[name].description + (f" Default {usual}." if usual else "")
            found = setting(name, about)(found)
        about = "Settings file; default CACHETIER_CONFIG, ./cachetier.toml."
        return option("--config", type=PATH, help=about)(found)

    return decorated


def setting(name: str, help: str) -> Decorator:
    """Return the option of a setting whose value is a word."""
    return option(f"--{name.replace('_', '-')}", name, type=type_of_setting(name), help=help)
