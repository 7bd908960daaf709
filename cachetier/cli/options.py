"""Options and arguments of verbs, each declared once, and the types of their words.

A type says how a word is read, and what a shell offers for it. A verb is called with values: a word
that is wrong is answered before the verb begins.
"""

from __future__ import annotations

import functools
import os
import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from cachetier_client.units import parsed_size, parsed_span

from cachetier.cli.output import UsageMistakeError, reported
from cachetier.cli.verbs import RENAMED
from cachetier.nearest import nearest
from cachetier.number_lists import parsed_numbers

if TYPE_CHECKING:
    from cachetier_client import Client
    from click.shell_completion import CompletionItem

    from cachetier.cli.connection import StepOrPath

INCOMPLETE = "word"  # among what is given: the word at which the shell stands
SECONDS = 1.0  # a service that does not answer by then offers nothing: somebody waits for the shell

Offers = list[tuple[str, str]]
Given = Mapping[str, Any]


def named(parameter: click.Parameter) -> str:
    """Return how a parameter is called in a message."""
    if parameter.param_type_name == "argument":
        return parameter.name.upper()
    variable = f" (or {parameter.envvar})" if parameter.envvar else ""
    return f"{parameter.opts[0]}{variable}"


# --- what a shell offers --------------------------------------------------------------------------


def _each(kind: str, *words: str) -> Callable[[Given], Offers]:
    return lambda _given: [(word, kind) for word in words]


def _modes(_given: Given) -> Offers:
    from cachetier.model.compression import LEVELS_OF, Method

    plain = [str(method) for method in (Method.OFF, Method.AUTO)]
    leveled = [f"{method}:{each}" for method, levels in LEVELS_OF.items() for each in levels]
    return [(mode, "compression") for mode in plain + leveled]


def _checks(_given: Given) -> Offers:
    from cachetier.doctor.checks import GROUPS, NAMES

    return [(group, "group of checks") for group in GROUPS] + [(name, "check") for name in NAMES]


def _replicas(given: Given) -> Offers:
    from cachetier.config.settings import sourced

    flags = {"cache_dir": "/", "remote": given.get("remote")}
    settings = sourced(flags, config=given.get("config")).settings
    found = {} if settings is None else settings.replicas
    return [(name, each.url) for name, each in found.items()]


def _from_service(ask: Callable[[Any, Given], Offers], *needed: str) -> Callable[[Given], Offers]:
    """Return offers that ask the service, none if it fails: a shell has no place for errors.

    The thread that asks is left behind when the time is over: not all that it may wait for has a
    limit, as the system's look-up of a host has none.

    Args:
        ask: Returns what a client finds, by what the command line says already.
        needed: The parameters without which there is nothing to ask about.
    """

    def offers(given: Given) -> Offers:
        found: Offers = []

        def try_it() -> None:
            try:
                from cachetier.cli.connection import reach

                with reach(given.get("url"), seconds=None) as client:
                    found.extend(ask(client, given))
            except Exception:
                found.clear()

        if all(given.get(each) not in (None, "") for each in needed):
            asking = threading.Thread(target=try_it, daemon=True)
            asking.start()
            asking.join(2 * SECONDS)
        return list(found)

    return offers


_runs = _from_service(
    lambda client, _given: [(run, "run") for run in client.runs(timeout_seconds=SECONDS)]
)
_steps = _from_service(
    lambda client, given: [
        (str(each.step), each.state) for each in client.steps(given["run"], timeout_seconds=SECONDS)
    ],
    "run",
)


def _runs_or_steps(given: Given) -> Offers:
    """Return the runs, and the steps of the usual one; in a path its steps, then its shards."""
    run, sign, rest = given[INCOMPLETE].partition("/")
    if sign and "/" not in rest:
        return [(f"{run}/{step}", state) for step, state in _steps({**given, "run": run})]
    if sign:
        step = rest.partition("/")[0]
        there = {**given, "run": run, "step": int(step) if step.isdecimal() else None}
        return [(f"{run}/{step}/{name}", what) for name, what in _names(there)]
    usual = os.environ.get("CACHETIER_RUN")
    return _runs(given) + (_steps({**given, "run": usual}) if usual else [])


_names = _from_service(
    lambda client, given: [
        (shard.name, f"shard of rank {shard.rank}")
        for shard in client.step(given["run"], given["step"], timeout_seconds=SECONDS).shards
    ],
    "run",
    "step",
)


# --- types ----------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Word(click.ParamType[Any]):
    """A type whose words a function reads.

    Args:
        name: The metavar, as ``--help`` and the pages show it.
        read: Returns the value of a word; its ValueError says what is wrong, and perhaps the hint.
        hint: The next move of a word that is wrong; default: the help of the verb.
        least: The least value.
        most: The largest value.
        sign: What stands between the name of the option and what is wrong.
        offers: Returns what a shell offers, by what the command line says already.
    """

    name: str
    read: Callable[[str], Any] = str
    hint: str = ""
    least: float | None = None
    most: float | None = None
    sign: str = ":"
    offers: Callable[[Given], Offers] = lambda _given: []

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):  # a default
            return value
        assert param is not None
        try:
            found = self.read(value)
            if self.least is not None and found < self.least:
                raise ValueError(f"{value!r} is less than {self.least:g}")
            if self.most is not None and found > self.most:
                raise ValueError(f"{value!r} is more than {self.most:g}")
        except ValueError as error:
            wrong, *hints = error.args
            hint = hints[0] if hints else self.hint
            raise UsageMistakeError(f"{named(param)}{self.sign} {wrong}", hint, ctx) from None
        return found

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str | None:
        """Return a few words as they are; click would write them in capitals."""
        return f"[{self.name}]" if "|" in self.name else None

    def shell_complete(
        self,
        ctx: click.Context,
        param: click.Parameter,
        incomplete: str,
    ) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        offered = self.offers({**ctx.params, INCOMPLETE: incomplete})
        return [
            CompletionItem(each, help=line) for each, line in offered if each.startswith(incomplete)
        ]


def _read(kind: Callable[[str], Any], noun: str) -> Callable[[str], Any]:
    def read(word: str) -> Any:
        try:
            value = kind(word)
        except ValueError:
            value = None
        if value is None or value != value:
            raise ValueError(f"{word!r} is not {noun}")
        return value

    return read


def _with_unit(read: Callable[[str], Any], unit: str) -> Callable[[str], Any]:
    """Return what reads a word that is no number alone."""

    def checked(word: str) -> Any:
        if re.fullmatch(r"\d+(\.\d+)?", word):
            raise ValueError(f"{word!r} has no unit", f"Write {word}{unit}.")
        return read(word)

    return checked


_span = _with_unit(parsed_span, "s")


def one_of(name: str, *words: str) -> Word:
    """Return the type of a few words."""

    def read(word: str) -> str:
        if word in words:
            return word
        meant = nearest(word, words)
        hint = f"Did you mean {meant}?" if meant else "Choose one of these."
        raise ValueError(f"{word!r} is not one of {', '.join(words[:-1])} and {words[-1]}", hint)

    return Word(name, read, sign="", offers=_each(name.lower(), *words))


def _step(word: str) -> StepOrPath:
    path = tuple(filter(None, word.split("/")))
    if "/" not in word or (len(path) == 1 and path[0].isdecimal()):
        return int(_read(int, "a whole number")("".join(path) or word))
    return path


def _byte_range(word: str) -> tuple[int | None, int | None]:
    found = re.fullmatch(r"(\d*)-(\d*)", word, re.ASCII)
    if found is None or word == "-":
        raise ValueError(f"{word!r} is no range of bytes")
    first, last = (int(each) if each else None for each in found.groups())
    return first, last


def _rate(word: str) -> float:
    from cachetier.model.bandwidth import parsed_rate

    return parsed_rate(word)


def _setting(word: str) -> tuple[str, str]:
    from cachetier.config.settings import NAMED
    from cachetier.config.sources import unknown

    name, sign, value = word.partition("=")
    if not sign:
        raise ValueError(f"{word!r} has no value", "Write it as KEY=VALUE: --set pack=on.")
    if name not in NAMED:
        problem = unknown(f"setting `{name}`", name, NAMED)
        raise ValueError(problem.message, problem.hint)
    return name, value


def _settings(given: Given) -> Offers:
    """Return each setting, and with each of the words that it takes, if they are few."""
    from cachetier.config.settings import NAMED

    found: Offers = []
    for name, setting in NAMED.items():
        kind = type_of_setting(name)
        words = kind.offers(given) if isinstance(kind, Word) else []
        found += [(f"{name}=", setting.description), *((f"{name}={word}", "") for word, _ in words)]
    return found


PATH = click.Path(path_type=Path)
FILE = click.Path()
COUNT = Word("N", _read(int, "a whole number"))
NUMBER = Word("NUMBER", _read(float, "a number"))
DURATION = Word("DURATION", _span, hint="Write 30s, 4min or 12h.")
EXPIRY = Word(
    "DURATION",
    lambda word: None if word == "never" else _span(word),
    hint="Write 12h, 30d or never.",
)
SIZE = Word("SIZE", _with_unit(parsed_size, "MB"))
RATE = Word("RATE", _rate)
RUN = Word("RUN", offers=_runs_or_steps)
STEP = Word("STEP", _step, offers=_steps)
NAME = Word("NAME", offers=_names)
LEVEL = one_of("LEVEL", "memory", "local", "replicated", "durable")
RANKS = Word(
    "RANKS",
    lambda word: list(parsed_numbers(word, "ranks")),
    hint="Write them as 0-7, or 0,8.",
)
RANGE_HINT = "Give FIRST-LAST, both included and counted from 0; FIRST-; or -COUNT."
RANGE = Word("RANGE", _byte_range, hint=RANGE_HINT, sign="")
ELEMENT_SIZE = replace(COUNT, offers=_each("bytes of one value", "2", "4", "8"))
CHECK = Word("CHECK", offers=_checks)
REPLICA = Word("REPLICA", offers=_replicas)
SHELL = one_of("SHELL", "bash", "zsh", "fish")
SETTING = Word("KEY=VALUE", _setting, offers=_settings)
URL = Word("URL")


def type_of_setting(name: str) -> click.ParamType[Any]:
    """Return the type of a setting as an option: its words are read with all the others, later."""
    from cachetier.config.settings import NAMED

    setting = NAMED[name]
    schema = setting.kind.schema
    if schema.get("format") == "path":
        return FILE
    if name == "compression":
        return Word("MODE", offers=_modes)
    kinds = (schema, *schema.get("anyOf", ()))
    words = next((kind["enum"] for kind in kinds if "enum" in kind), ())
    usual = setting.shown_default
    offered = [(word, "the default" if word == usual else name) for word in words]
    return Word("|".join(words) or _metavar(name, schema), offers=lambda _given: offered)


def _metavar(name: str, schema: Mapping[str, Any]) -> str:
    """Return what a setting is called that takes no fixed words: its kind, or its last word."""
    kind = schema.get("type")
    if name in ("http", "s3", "health"):
        return "ADDRESS"
    if kind in (["string", "integer"], ["string", "number"]):
        return "SIZE" if kind[1] == "integer" else "DURATION"
    known = {"object": "JSON", "array": "JSON", "integer": "N", "number": "NUMBER"}
    found = known.get(kind) if isinstance(kind, str) else None
    return found or name.rpartition("_")[2].upper()


# --- verbs and their options ----------------------------------------------------------------------

CONTEXT = {"help_option_names": ["-h", "--help"], "show_default": True}
DEFAULT_SAVE_ID = "cli"
NOWHERE = "/nonexistent"  # for `cache_dir`, which must be set even if nobody looks at it
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
            from cachetier.cli.connection import spread

            options = (each for each in self.params if isinstance(each, click.Option))
            values_after = {name: not each.is_flag for each in options for name in each.opts}
            args = spread(args, values_after, names.index("run"))
        if ctx.resilient_parsing and args and args[-1].startswith("-") and "=" not in args[-1]:
            args = args[:-1]  # the option to be completed: click reads no line that ends with one
        extra = super().parse_args(ctx, args)
        if extra and not ctx.resilient_parsing:
            raise _too_many(ctx, extra[0], words)
        return extra


def renamed(old: str, now: str, ctx: click.Context) -> UsageMistakeError:
    """Return the error of a verb that has another name now."""
    return UsageMistakeError(f"`{old}` was renamed", f"Call it: cachetier {now}", ctx)


def _too_many(ctx: click.Context, word: str, words: list[str]) -> UsageMistakeError:
    """Return the error about the first word too many; a flag before it may have been its aim."""
    old = f"{ctx.command_path} {word}"
    if (now := RENAMED.get(old.removeprefix("cachetier "))) is not None:
        return renamed(old, now, ctx)
    before = words[words.index(word) - 1] if word in words[1:] else ""
    if before in options_of(ctx, only_flags=True):
        hint = f"Give {before} alone, or leave it out."
        return UsageMistakeError(f"{before} takes no value: {word!r} is one too many", hint)
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
    from cachetier.cli.connection import located

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


def timeout(default: str, help: str = "Deadline of each call.") -> Decorator:
    return duration("--timeout", help, default=default)


def level(default: str | None, help: str = "memory, local, replicated or durable.") -> Decorator:
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
