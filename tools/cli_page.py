"""The verbs in docs/cli.md, each as ``--help`` shows it, from the code of the command."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click

from cachetier.cli.app import built
from cachetier.cli.options import usage
from cachetier.cli.output import EXITS
from cachetier.cli.verbs import RENAMED, SECTIONS, VERBS
from cachetier.config import sources
from tools.pages import DOCS, table, with_parts

PAGE, RENAMES = DOCS / "cli.md", DOCS / "renames.md"
# Verbs that take the options of `serve` beside their own.
OF_SERVE = "serve"
OF_ALL = "as_json"  # the page says once that every verb takes it


def documents() -> dict[Path, str]:
    """Return the page with its parts as they should be."""
    parts = {"verbs": verbs(), "exits": exits(), "reference": "\n\n".join(reference())}
    return {
        PAGE: with_parts(PAGE, parts),
        RENAMES: with_parts(RENAMES, {"verbs": renames(), "settings": settings()}),
    }


def verbs() -> str:
    """Return the verbs with a line for each, by section."""
    rows = []
    for title, named in SECTIONS.items():
        rows.append((f"**{title}**", ""))
        rows += [
            (f"[`cachetier {name}`](#{_anchor(name)})", line) for name, (_, line) in named.items()
        ]
    return table(("verb", ""), rows)


def settings() -> str:
    """Return where each setting of before went."""
    rows = [(f"`{before}`", now) for before, now in sorted(sources.RENAMED.items())]
    for name, keys in sources.RENAMED_WITHIN.items():
        rows += [(f"`{name}.{before}`", f"`{now.strip('`')}`") for before, now in keys.items()]
    return table(("setting before", "now"), rows)


def renames() -> str:
    rows = ((f"`cachetier {old}`", f"`cachetier {new}`") for old, new in RENAMED.items())
    return table(("verb before", "now"), rows)


def exits() -> str:
    return table(("code", ""), ((str(code), meaning) for code, meaning in EXITS.items()))


def reference() -> Iterator[str]:
    """Yield a section for each verb."""
    for name in VERBS:
        command, ctx = of_verb(name)
        described = _prose(command.help or "")
        own = [each for each in own_parameters(name) if each.name != OF_ALL]
        asks = any(_finds_the_service(each) for each in own)
        rows = [
            (_written(each, ctx), _meaning(each)) for each in own if not _finds_the_service(each)
        ]
        shared = takes_those_of_serve(name)
        more = f"\n\nAnd the options of [`serve`](#{_anchor(OF_SERVE)})." if shared else ""
        more += "\n\nAnd `--url`." if asks else ""
        options = f"\n\n{table(('', ''), rows)}" if rows else ""
        yield f"### `cachetier {name}`\n\n```\n{usage(ctx)}\n```\n\n{described}{options}{more}"


def of_verb(name: str) -> tuple[click.Command, click.Context]:
    """Return a verb, and the context in which it is called."""
    command = built(name)
    return command, command.make_context(f"cachetier {name}", [], resilient_parsing=True)


def _prose(text: str) -> str:
    """Return a docstring as Markdown: paragraphs on one line each, options as code."""
    paragraphs = [" ".join(part.split()) for part in text.split("\n\n")]
    return "\n\n".join(_marked(part) for part in paragraphs).replace("JSON: ", "**JSON:** ")


def _marked(text: str) -> str:
    pieces = re.split(r"(`[^`]*`)", text)
    mark = re.compile(r"(?<![\w`-])(--[a-z][a-z-]*)")
    return "".join(
        each if each.startswith("`") else mark.sub(r"`\1`", _escaped(each)) for each in pieces
    )


def _escaped(text: str) -> str:
    return text.replace("<", "&lt;").replace("*", r"\*")


def own_parameters(name: str) -> list[click.Argument | click.Option]:
    """Return the arguments and options of a verb, less those that it shares with `serve`."""
    shared = _names(OF_SERVE) if takes_those_of_serve(name) else set()
    return [
        each
        for each in of_verb(name)[0].params
        if isinstance(each, click.Argument | click.Option)
        and (each.name not in shared or each.name == "as_json")
    ]


def _finds_the_service(parameter: click.Parameter) -> bool:
    """Return whether this is ``--url``, which the page explains once; ``top`` takes several."""
    return parameter.name == "url" and not parameter.multiple


def takes_those_of_serve(name: str) -> bool:
    """Return whether a verb takes all that `serve` takes."""
    return name != OF_SERVE and _names(OF_SERVE) <= _names(name)


def _names(verb: str) -> set[str]:
    return {each.name for each in of_verb(verb)[0].params}


def kind_of(parameter: click.Parameter, ctx: click.Context) -> str:
    """Return what is written after an option; nothing after a flag."""
    is_flag = isinstance(parameter, click.Option) and parameter.is_flag
    return "" if is_flag else f" {parameter.make_metavar(ctx)}"


def _written(parameter: click.Parameter, ctx: click.Context) -> str:
    if isinstance(parameter, click.Argument):
        return f"`{parameter.name.upper()}`"
    names = ", ".join(f"`{each}`" for each in (*parameter.opts, *parameter.secondary_opts))
    return f"{names}{kind_of(parameter, ctx)}"


def _meaning(parameter: click.Argument | click.Option) -> str:
    return " ".join((_marked(parameter.help or ""), *notes(parameter)))


def notes(parameter: click.Parameter) -> Iterator[str]:
    """Yield what there is to say of a parameter beside what its help says."""
    if parameter.required:
        yield "Must be given."
    elif isinstance(parameter.default, str | int | float) and parameter.default:
        yield f"Default `{parameter.default}`."
    if parameter.envvar:
        yield f"Or `{parameter.envvar}`."
    if parameter.multiple:
        yield "May be repeated."


def _anchor(name: str) -> str:
    return f"cachetier-{name.replace(' ', '-')}"
