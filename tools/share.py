"""What the wheel puts beside the program, from the code of the commands: a man page, completions.

It lies in ``share/`` as it will lie under the prefix of an environment or a system.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from cachetier.cli.app import SCRIPTS
from cachetier.cli.output import EXITS
from cachetier.cli.verbs import SECTIONS
from tools.cli_page import OF_SERVE, kind_of, notes, of_verb, own_parameters, takes_those_of_serve
from tools.pages import ROOT
from tools.versions import version

SHARE = ROOT / "share"
COMPLETIONS = {
    "bash": "bash-completion/completions/cachetier",
    "zsh": "zsh/site-functions/_cachetier",
    "fish": "fish/vendor_completions.d/cachetier.fish",
}


def documents() -> dict[Path, str]:
    """Return the man page, and the script of each shell."""
    scripts = {SHARE / path: f"{SCRIPTS[shell]}\n" for shell, path in COMPLETIONS.items()}
    return {SHARE / "man" / "man1" / "cachetier.1": "\n".join(man_page()) + "\n", **scripts}


def man_page() -> Iterator[str]:
    """Yield the lines of cachetier(1)."""
    yield '.\\" Made by `make docs` from the code of the commands.'
    yield f'.TH CACHETIER 1 "" "cachetier {version()}" "User commands"'
    yield from (".SH NAME", r"cachetier \- node\-local write\-back cache for checkpoints")
    yield from (".SH SYNOPSIS", r".B cachetier", r"\fIVERB\fR [\fIOPTIONS\fR]")
    yield ".SH DESCRIPTION"
    yield from _text(
        "Ranks hand their checkpoint shards to a service on their node, at the speed of its disk."
        " It acknowledges what would survive the loss of power, carries it to S3 in the background,"
        " and gives it back, verified, from the nearest copy."
    )
    for title, verbs in SECTIONS.items():
        yield f".SH {_escaped(title.upper())}"
        for name in verbs:
            yield from _verb(name)
    yield ".SH EXIT STATUS"
    for code, meaning in EXITS.items():
        yield from (".TP", f".B {code}", *_text(meaning))
    yield ".SH ENVIRONMENT"
    yield from (".TP", ".B CACHETIER_URL")
    yield from _text("Where the service is: unix:///path/to/cachetier.sock or http://host:port.")
    yield from (".TP", ".B CACHETIER_TOKEN", *_text("What a caller over HTTP shows."))
    yield from (".TP", r".B CACHETIER_\fISETTING\fR")
    yield from _text("A setting of the service: `cachetier config` lists them, with origins.")
    yield ".SH FILES"
    yield from (".TP", ".I cachetier.toml")
    yield from _text("Settings, where --config or CACHETIER_CONFIG names no other file.")


def _verb(name: str) -> Iterator[str]:
    command, ctx = of_verb(name)
    usage = " ".join(command.collect_usage_pieces(ctx))
    yield from (f'.SS "cachetier {_escaped(name)} {_escaped(usage)}"', "")
    for number, paragraph in enumerate((command.help or "").split("\n\n")):
        yield from (".PP",) if number else ()
        yield from _text(paragraph)
    for each in own_parameters(name):
        if each.param_type_name == "argument":
            written = rf"\fI{_escaped(each.name.upper())}\fR"
        else:
            names = ", ".join(each.opts + each.secondary_opts)
            written = rf"\fB{_escaped(names)}\fR\fI{_escaped(kind_of(each, ctx))}\fR"
        yield from (".TP", written, *_text(" ".join((each.help or "", *notes(each)))))
    if takes_those_of_serve(name):
        yield from (".PP", *_text(f"And the options of cachetier {OF_SERVE}."))


def _text(text: str) -> Iterator[str]:
    """Yield a paragraph as lines of roff, none of which is taken for a request."""
    line = _escaped(" ".join(text.replace("`", "").split()))
    yield f"\\&{line}" if line.startswith((".", "'")) else line


def _escaped(text: str) -> str:
    return text.replace("\\", r"\e").replace("-", r"\-").replace('"', r"\(dq")
