"""Each alert has a page that a person can follow at night."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cachetier.cli.verbs import VERBS
from tests.operate.rules import ROOT, RUNBOOKS, alerts, page_of

PROCEDURES = {"README.md", "leave-a-node.md"}  # which belong to no alert
PAGES = sorted(page for page in RUNBOOKS.glob("*.md") if page.name not in PROCEDURES)
SECTIONS = [
    "What it means for the data",
    "How urgent",
    "Confirm",
    "What to do",
    "It resolves by itself",
    "Silence",
]
each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)


def headings(page: Path) -> list[str]:
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    return re.findall(r"^#+ (.+)$", text, re.MULTILINE)


def test_there_is_one_page_for_each_alert_and_no_other() -> None:
    assert {page.name for page in PAGES} == {page_of(rule["alert"]) for rule in alerts()}


@each_page
def test_a_page_answers_the_same_questions_in_the_same_order(page: Path) -> None:
    title, *sections = headings(page)

    assert page_of(title) == page.name
    assert sections == SECTIONS


@each_page
def test_a_page_says_the_severity_that_the_alert_has(page: Path) -> None:
    severities = {
        rule["labels"]["severity"] for rule in alerts() if page_of(rule["alert"]) == page.name
    }
    opening = page.read_text(encoding="utf-8").split("##")[0]
    said = {word.lower() for word in re.findall(r"\*\*(Critical|Warning)\b", opening)}

    assert said == severities


@each_page
def test_a_page_names_verbs_and_metrics_that_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    groups = {name.split()[0] for name in VERBS}
    verbs = re.findall(r"(?:`|^|\$ )cachetier ([a-z]+)", text, re.MULTILINE)
    metrics = re.findall(r"cachetier_[a-z_]+[a-z]", text)
    known = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")

    assert set(verbs) <= groups
    assert [name for name in metrics if name not in known] == []


def test_the_index_names_every_alert_with_its_severities() -> None:
    index = (RUNBOOKS / "README.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| \[(\w+)\]\([\w-]+\.md\) \| ([a-z, ]+) \|", index, re.MULTILINE))

    assert rows.keys() == {rule["alert"] for rule in alerts()}
    for rule in alerts():
        assert rule["labels"]["severity"] in rows[rule["alert"]]
