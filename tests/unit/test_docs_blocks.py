"""What the pages show is taken: Python compiles, settings load, and commands have their options."""

from __future__ import annotations

import ast
import json
import re
import textwrap
import tomllib
from pathlib import Path

import click
import pytest

from cachetier.cli.app import app
from cachetier.config.settings import load

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    *(page for page in sorted((ROOT / "docs").rglob("*.md")) if page.parent.name != "design"),
]
BLOCK = re.compile(r"^ *```(\w*)\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(
    r"(?:^|\$ |&& |exec cachetier |-- |\$\() *cachetier ([a-z][^|;&)#>\n]*)", re.MULTILINE
)
IN_TEXT = re.compile(r"`cachetier ([a-z][^`|]*)`")
OF_EVERY_NODE = {"cache_dir": "/nvme/cachetier", "remote": "s3://bucket/prefix"}
WITHOUT_OPTIONS = frozenset(["help"])


def blocks(page: Path, language: str) -> list[str]:
    found = BLOCK.findall(page.read_text(encoding="utf-8"))
    return [textwrap.dedent(body) for named, body in found if named == language]


def names(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=names)
def test_python_and_json_of_a_page_can_be_read(page: Path) -> None:
    for body in blocks(page, "python"):
        flags = ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        compile(body, str(page), "exec", flags, dont_inherit=True)
    for body in blocks(page, "json"):
        json.loads(body if body.lstrip().startswith("{") else f"{{{body}}}")


@pytest.mark.parametrize("page", PAGES, ids=names)
def test_the_settings_that_a_page_shows_are_taken(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for body in blocks(page, "toml"):
        shown = tomllib.loads(body)
        lacking = [f'{key} = "{OF_EVERY_NODE[key]}"\n' for key in OF_EVERY_NODE if key not in shown]
        file = tmp_path / "cachetier.toml"
        file.write_text("".join(lacking) + body, encoding="utf-8")
        file.chmod(0o600)  # tokens stand in some
        load(config=file)


@pytest.mark.parametrize("page", [page for page in PAGES if page.name != "renames.md"], ids=names)
def test_the_commands_that_a_page_shows_have_these_options(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    shown = [
        line
        for language in ("sh", "bash", "")
        for body in blocks(page, language)
        for line in COMMAND.findall(body)
    ]
    unknown = {
        f"{line}: {word}"
        for line in (*shown, *IN_TEXT.findall(text))
        if line.split()[0] not in WITHOUT_OPTIONS
        for word in unknown_words(line.removeprefix("cachetier ").split())
    }
    assert unknown == set()


def unknown_words(words: list[str]) -> list[str]:
    """Return what is no verb, or no option of its verb."""
    command: click.Command = app
    context = click.Context(app)
    rest = list(words)
    while isinstance(command, click.Group) and rest:
        found = command.get_command(context, rest[0])
        if found is None:
            return rest[:1]
        command, context = found, click.Context(found, parent=context)
        del rest[0]
    options = {
        "--help",
        *(name for each in command.params for name in (*each.opts, *each.secondary_opts)),
    }
    given = [
        word.partition("=")[0].rstrip('.,:"')
        for word in rest
        if word.startswith("--") and word != "--"
    ]
    return [word for word in given if word not in options]
