"""Fragments in changes/ have a name the release can sort and are short enough to be read."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

CHANGES = Path(__file__).parents[2] / "changes"
NAME = re.compile(r"[1-9]\d*\.(added|changed|fixed|removed|security)(\.\d+)?\.md")
FRAGMENTS = sorted(path for path in CHANGES.iterdir() if path.name != "README.md")


@pytest.mark.parametrize("path", FRAGMENTS, ids=lambda path: path.name)
def test_a_fragment_is_named_for_its_issue_and_kind(path: Path) -> None:
    assert NAME.fullmatch(path.name)


@pytest.mark.parametrize("path", FRAGMENTS, ids=lambda path: path.name)
def test_a_fragment_is_a_few_sentences_without_headings(path: Path) -> None:
    text = path.read_text(encoding="utf-8")

    assert 0 < len(text) <= 1000
    assert not text.startswith("#")
