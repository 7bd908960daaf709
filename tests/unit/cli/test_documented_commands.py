"""Each command that a page shows is one that the command line takes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from cachetier.cli.app import built
from cachetier.cli.verbs import GROUPS, VERBS

ROOT = Path(__file__).parents[3]
FOLDERS = ("benchmarks", "changes", "client", "deploy", "docs", "examples")
PAGES = sorted(
    [
        *ROOT.glob("*.md"),
        *(
            page
            for folder in FOLDERS
            for page in (ROOT / folder).rglob("*.md")
            if page.name != "renames.md" and page.parent.name != "design"
        ),
        ROOT / "deploy" / "alerts.yml",
        *(ROOT / "deploy" / "systemd").iterdir(),
        *(ROOT / "deploy" / "slurm").iterdir(),
    ]
)
BLOCK = re.compile(r"^ *```.*?^ *```", re.DOTALL | re.MULTILINE)
SPAN = re.compile(r"`([^`\n]+)`")
# At the begin of a line or a span, after a prompt, variables, an `exec`, a pipe or a semicolon.
COMMAND = re.compile(
    r"(?:^|[`;|(] *|\$ |\bexec \S+ (?:-- )?|/bin/)(?:[A-Z_]+=\S+ )*cachetier ([a-z][^`|;&#()\n]*)",
    re.MULTILINE,
)


def commands(text: str) -> Iterator[list[str]]:
    """Yield the words of each command in the code of a page."""
    code = [*BLOCK.findall(text), *(f"`{span}`" for span in SPAN.findall(BLOCK.sub("", text)))]
    for piece in code or [text]:
        for found in COMMAND.findall(piece.replace("\\\n", " ")):
            yield found.split()


def wrong_in(words: list[str]) -> str:
    """Say what the command line would not take of these words."""
    if words[0] == "help":  # of any verb, which is given as `<verb>`
        return ""
    groups = {group.split()[0] for group in GROUPS}
    name = " ".join(words[:2] if words[0] in groups else words[:1])
    if name not in VERBS:
        return "" if name in GROUPS else f"no verb {name}"
    known = {option for each in built(name).params for option in (*each.opts, *each.secondary_opts)}
    given = {word.partition("=")[0] for word in words if re.match(r"--[a-z]", word)}
    unknown = sorted(given - known - {"--help"})
    return f"{name} has no {unknown[0]}" if unknown else ""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_command_on_a_page_has_a_verb_and_options_that_there_are(page: Path) -> None:
    found = commands(page.read_text(encoding="utf-8"))
    assert [wrong for words in found if (wrong := wrong_in(words))] == []


def test_a_command_that_is_none_is_found() -> None:
    page = (
        "`cachetier statsu`, or\n```sh\n$ X=1 cachetier flush --dead 3; cachetier top --once\n```\n"
    )
    wrong = [wrong_in(words) for words in commands(page)]
    assert sorted(wrong) == ["", "flush has no --dead", "no verb statsu"]


def test_nearly_every_verb_is_shown_somewhere() -> None:
    texts = [page.read_text(encoding="utf-8") for page in PAGES if page.name != "cli.md"]
    shown = {words[0] for text in texts for words in commands(text)}
    assert {name.split()[0] for name in VERBS} - shown <= {"dev"}  # in the reference
