"""Until an index has the distributions, nothing tells anybody to install them from one."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

from tools.install_page import PAGE, install, released
from tools.pages import ROOT

BY_NAME = re.compile(
    r"pip3? install[^\n`&;#]*[ '\"](cachetier(?:-client)?)(?:\[[\w,]+\])?(?=['\"`\s=]|$)"
)
NOT_READ = ("CHANGELOG.md", "tools/install_page.py", "tests/unit/tools/test_install_page.py")


def texts() -> list[Path]:
    """Return the files of the repository that people and programs read; notes are history."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.split("\0")
    kinds = (".md", ".py", ".yml", ".yaml", ".toml", ".sh", ".service", "file")
    return [
        ROOT / name
        for name in listed
        if name.endswith(kinds) and name not in NOT_READ and not name.startswith("docs/design/")
    ]


@pytest.mark.parametrize(
    ("line", "refused"),
    [
        ('pip install "cachetier-client[torch]"', True),
        ("pip install --upgrade cachetier", True),
        ("pip install cachetier-client", True),
        ("pip install cachetier==0.1.0", True),
        ("pip install ./client .", False),
        ("pip install dist/cachetier-0.1.0-py3-none-any.whl", False),
    ],
)
def test_an_install_by_name_is_known(line: str, refused: bool) -> None:
    assert (BY_NAME.search(line) is not None) == refused


def test_nothing_but_the_page_of_the_installation_says_how_to_install() -> None:
    there = [path for path in texts() if path.exists()]
    found = {
        str(path.relative_to(ROOT)): match[0]
        for path in there
        if (match := BY_NAME.search(path.read_text(encoding="utf-8", errors="replace")))
    }
    assert len(there) > 1000
    assert set(found) <= ({str(PAGE.relative_to(ROOT))} if released() else set()), found


def test_the_release_turns_the_page_over() -> None:
    before, after = install(released=False), install(released=True)
    assert "somebody else's" in before
    assert "pip install ./client ." in before
    assert BY_NAME.search(before) is None
    assert BY_NAME.search(after) is not None
    assert "./client" not in after


def test_the_page_has_every_extra() -> None:
    text = PAGE.read_text(encoding="utf-8")
    for name in ("pyproject.toml", "client/pyproject.toml"):
        project = tomllib.loads((ROOT / name).read_text(encoding="utf-8"))["project"]
        for extra in project["optional-dependencies"]:
            assert f"`{extra}`" in text, extra


def test_an_image_that_nobody_can_pull_is_told_as_one_to_build() -> None:
    named = [
        path
        for path in texts()
        if path.suffix in (".yml", ".yaml")
        and path.parent in (ROOT, ROOT / "deploy")
        and re.search(
            r"image: .*cachetier:|repository: cachetier", path.read_text(encoding="utf-8")
        )
    ]
    assert len(named) >= 5
    for path in named:
        text = path.read_text(encoding="utf-8")
        assert "docs/install.md" in text or "dockerfile: deploy/Dockerfile" in text, path
