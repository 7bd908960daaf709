"""The verbs in docs/cli.md, each as ``--help`` shows it, from the code of the command."""

from __future__ import annotations

import re
from collections.abc import Iterator
from inspect import cleandoc
from pathlib import Path
from typing import Any

import typer

from cachetier.cli.app import built
from cachetier.cli.output import EXITS
from cachetier.cli.verbs import SECTIONS, VERBS
from tools.pages import DOCS, table, with_parts

PAGE = DOCS / "cli.md"
KINDS = {"str": "TEXT", "int": "NUMBER", "float": "NUMBER", "Path": "PATH"}
# Verbs that take the options of `serve` beside their own.
OF_SERVE = "serve"


def documents() -> dict[Path, str]:
    """Return the page with its parts as they should be."""
    parts = {"verbs": verbs(), "exits": exits(), "reference": "\n\n".join(reference())}
    return {PAGE: with_parts(PAGE, parts)}


def verbs() -> str:
    """Return the verbs with a line for each, by section."""
    rows = []
    for title, named in SECTIONS.items():
        rows.append((f"**{title}**", ""))
        rows += [
            (f"[`cachetier {name}`](#{_anchor(name)})", line) for name, (_, line) in named.items()
        ]
    return table(("verb", ""), rows)


def exits() -> str:
    return table(("code", ""), ((str(code), meaning) for code, meaning in EXITS.items()))


def reference() -> Iterator[str]:
    """Yield a section for each verb."""
    for name in VERBS:
        command = built(name)
        ctx = typer.Context(command, info_name=f"cachetier {name}")
        usage = " ".join((ctx.command_path, *command.collect_usage_pieces(ctx)))
        described = _prose(cleandoc(command.help or ""))
        rows = [(_written(each), _meaning(each)) for each in own_parameters(name)]
        shared = takes_those_of_serve(name)
        more = f"\n\nAnd the options of [`serve`](#{_anchor(OF_SERVE)})." if shared else ""
        options = f"\n\n{table(('', ''), rows)}" if rows else ""
        yield f"### `cachetier {name}`\n\n```\n{usage}\n```\n\n{described}{options}{more}"


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


def own_parameters(name: str) -> list[Any]:
    """Return the arguments and options of a verb, less those that it shares with `serve`."""
    shared = {each.name for each in built(OF_SERVE).params} if takes_those_of_serve(name) else set()
    return [
        each for each in built(name).params if each.name not in shared or each.name == "as_json"
    ]


def takes_those_of_serve(name: str) -> bool:
    """Return whether a verb takes all that `serve` takes."""
    if name == OF_SERVE:
        return False
    of_serve = {each.name for each in built(OF_SERVE).params}
    return of_serve <= {each.name for each in built(name).params}


def _written(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return f"`{parameter.name.upper()}`"
    names = ", ".join(f"`{each}`" for each in (*parameter.opts, *parameter.secondary_opts))
    kind = "" if parameter.is_flag else f" {KINDS.get(parameter.bare_type(), 'TEXT')}"
    return f"{names}{kind}"


def _meaning(parameter: Any) -> str:
    return " ".join((_marked(parameter.help or ""), *notes(parameter)))


def notes(parameter: Any) -> Iterator[str]:
    """Yield what there is to say of a parameter beside what its help says."""
    if parameter.required:
        yield "Must be given."
    elif parameter.default not in (None, False, "", ()) and parameter.show_default:
        yield f"Default `{parameter.default}`."
    if parameter.envvar:
        yield f"Or `{parameter.envvar}`."
    if parameter.multiple:
        yield "May be repeated."


def _anchor(name: str) -> str:
    return f"cachetier-{name.replace(' ', '-')}"
