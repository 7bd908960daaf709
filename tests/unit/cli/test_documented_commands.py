"""Each command that a page shows is one that the command line takes."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

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
        ROOT / "deploy" / "helm" / "cachetier" / "files" / "try.sh",
        ROOT / "deploy" / "helm" / "cachetier" / "templates" / "NOTES.txt",
    ]
)
MANIFESTS = [ROOT / "docker-compose.yml", *sorted((ROOT / "deploy").glob("kubernetes*.yml"))]
TEMPLATES = sorted((ROOT / "deploy" / "helm" / "cachetier" / "templates").iterdir())
BLOCK = re.compile(r"^ *```.*?^ *```", re.DOTALL | re.MULTILINE)
SPAN = re.compile(r"`([^`\n]+)`")
# At the begin of a line or a span, after a prompt, variables, an `exec`, a pipe or a semicolon.
COMMAND = re.compile(
    r"(?:^|[`;|(] *|\$ |\bexec \S+ (?:-- )?|/bin/)(?:[A-Z_]+=\S+ )*cachetier ([a-z][^`|;&#()\n]*)",
    re.MULTILINE,
)


# Words that stand for others, and what could stand there, by the type of the option before.
OPEN = re.compile(r"\$|[{<]|^[A-Z][A-Z_0-9/]*$")
SAMPLES = {
    "DURATION": "1s",
    "SIZE": "1MB",
    "RATE": "1MB/s",
    "N": "1",
    "NUMBER": "1",
    "LEVEL": "durable",
    "RANKS": "0-7",
    "RANGE": "0-1",
    "KEY=VALUE": "pack=on",
}
LEFT_OUT = re.compile(r"[.…]+|\[.*|.*\]")  # `...`, and what a usage says may be given


def commands(text: str) -> Iterator[list[str]]:
    """Yield the words of each command in the code of a page."""
    code = [*BLOCK.findall(text), *(f"`{span}`" for span in SPAN.findall(BLOCK.sub("", text)))]
    for piece in code or [text]:
        for found in COMMAND.findall(piece.replace("\\\n", " ")):
            yield shlex.split(re.sub(r"\s[12]?>.*", "", found).rstrip("'"), comments=True)


def called(document: Any) -> Iterator[list[str]]:
    """Yield the words of each command in a manifest: a list of them, or a script."""
    if isinstance(document, str):
        yield from commands(document)
    elif isinstance(document, list) and document[:1] == ["cachetier"]:
        yield [str(word) for word in document[1:]]
    elif isinstance(document, list | dict):
        for each in document.values() if isinstance(document, dict) else document:
            yield from called(each)


def wrong_in(words: list[str], *, is_whole: bool = False) -> str:
    """Say what the command line would not take of these words; in prose some may be left out."""
    if words[0] == "help":  # of any verb, which is given as `<verb>`
        return ""
    groups = {group.split()[0] for group in GROUPS}
    name = " ".join(words[:2] if words[0] in groups else words[:1])
    if name not in VERBS:
        return "" if name in GROUPS else f"no verb {name}"
    verb = built(name)
    args = [word for word in words[len(name.split()) :] if not LEFT_OUT.fullmatch(word)]
    kinds = {
        spelt: each.type.name
        for each in verb.params
        if isinstance(each, click.Option) and not each.is_flag
        for spelt in each.opts
    }
    try:
        verb.make_context(name, list(_given(args, kinds)))
    except click.MissingParameter as error:
        return f"{name} lacks {error.param}" if is_whole else ""
    except click.UsageError as error:
        return f"{name}: {error.format_message()}"
    except click.exceptions.Exit:  # of --help
        pass
    return ""


def _given(args: list[str], kinds: dict[str, str]) -> Iterator[str]:
    """Yield the words, with a value for each that stands for one."""
    for before, word in zip(["", *args], args, strict=False):
        if not OPEN.search(word):
            yield word
        elif before in kinds:
            yield SAMPLES.get(kinds[before], "x")
        else:
            yield {"HOW": "ours"}.get(word, "1000" if "step" in word.lower() else "run")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_command_on_a_page_has_a_verb_and_options_that_there_are(page: Path) -> None:
    found = commands(page.read_text(encoding="utf-8"))
    assert [wrong for words in found if (wrong := wrong_in(words))] == []


@pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda page: page.name)
def test_every_command_of_a_manifest_is_one_that_the_command_line_takes(manifest: Path) -> None:
    found = list(called(list(yaml.safe_load_all(manifest.read_text(encoding="utf-8")))))
    assert [wrong for words in found if (wrong := wrong_in(words, is_whole=True))] == []


def test_every_command_of_a_template_is_one_that_the_command_line_takes() -> None:
    texts = [page.read_text(encoding="utf-8") for page in TEMPLATES]
    lists = [each for text in texts for each in re.findall(r"command: \[cachetier, (.*)\]", text)]
    found = [[word.strip(' "') for word in each.split(",")] for each in lists]
    assert len(found) >= 3
    assert [wrong for words in found if (wrong := wrong_in(words, is_whole=True))] == []


def test_a_command_that_is_none_is_found() -> None:
    page = (
        "`cachetier statsu`, or\n```sh\n$ X=1 cachetier flush --dead 3; cachetier top --once\n```\n"
    )
    wrong = [wrong_in(words) for words in commands(page)]
    assert sorted(wrong) == ["", "flush: No such option '--dead'.", "no verb statsu"]


def test_nearly_every_verb_is_shown_somewhere() -> None:
    texts = [page.read_text(encoding="utf-8") for page in PAGES if page.name != "cli.md"]
    shown = {words[0] for text in texts for words in commands(text)}
    assert {name.split()[0] for name in VERBS} - shown <= {"dev"}  # in the reference
