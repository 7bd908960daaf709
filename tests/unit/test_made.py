"""What is made from the code is as the code is now: after a change, `make docs`."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from cachetier_client.transport.connect import VERSION

import cachetier
from cachetier.cli.verbs import VERBS
from cachetier.config.settings import SETTINGS
from tools.made import documents
from tools.pages import ROOT, with_parts

MADE = documents()


@pytest.mark.parametrize("path", MADE, ids=lambda path: str(path.relative_to(ROOT)))
def test_what_is_committed_is_what_the_code_makes(path: Path) -> None:
    assert path.read_text(encoding="utf-8") == MADE[path], "run `make docs`"


def test_every_verb_and_every_setting_has_its_place() -> None:
    cli, settings = MADE[ROOT / "docs/cli.md"], MADE[ROOT / "docs/configuration.md"]
    for verb in VERBS:
        assert cli.count(f"### `cachetier {verb}`\n") == 1, verb
    for name, field in SETTINGS.items():
        assert f"| `{name}` | " in settings
        assert f" | {field.description} |" in settings


def test_what_a_person_wrote_around_a_part_stays(tmp_path: Path) -> None:
    page = tmp_path / "a.md"
    begin, end = "<!-- begin: x (made by `make docs`) -->", "<!-- end: x -->"
    page.write_text(f"before\n{begin}\nold \\1\n{end}\nafter\n")
    assert with_parts(page, {"x": "new \\1"}) == f"before\n{begin}\nnew \\1\n{end}\nafter\n"
    with pytest.raises(ValueError, match="needs one"):
        with_parts(page, {"y": ""})


def test_each_distribution_has_one_version() -> None:
    service, client = (
        tomllib.loads((ROOT / folder / "pyproject.toml").read_text(encoding="utf-8"))
        for folder in ("", "client")
    )

    assert service["project"]["version"] == cachetier.__version__
    assert client["project"]["version"] == VERSION
