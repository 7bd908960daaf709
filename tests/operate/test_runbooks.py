"""Each alert has a page that a person can follow at night."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cachetier.cli.verbs import VERBS
from cachetier.telemetry.events import EVENTS
from tests.operate.rules import ROOT, RUNBOOKS, alerts, page_of
from tools.house.messages import texts

PROCEDURES = {"README.md", "leave-a-node.md"}  # which belong to no alert
PAGES = sorted(page for page in RUNBOOKS.glob("*.md") if page.name not in PROCEDURES)
SECTIONS = [
    "What it means",
    "How urgent",
    "Confirm",
    "What to do",
    "It ends",
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


@each_page
def test_a_page_opens_with_what_to_do_first(page: Path) -> None:
    opening = page.read_text(encoding="utf-8").partition("\n## ")[0]

    assert opening.count("\n**First:** ") == 1


def test_hints_and_events_are_shown_as_the_code_has_them() -> None:
    hints = {each.text for each in texts()}
    shown = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    events = re.findall(r"^(?:ERROR|WARNING|INFO) +(\S+) +(.+)$", shown, re.MULTILINE)
    patterns = {
        name: ".+".join(map(re.escape, re.split(r"%\([^)]+\)[.\d]*[a-z]", EVENTS[name].text)))
        for name, _ in events
    }

    assert events
    assert set(re.findall(r"^Next: (.+)$", shown, re.MULTILINE)) <= hints
    assert [text for name, text in events if not re.fullmatch(patterns[name], text)] == []
