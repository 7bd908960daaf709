"""The search of the site, in a browser: questions as people type them lead to their page."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page

from tests.integration.browsers import chromium, needs_chromium, tab
from tests.unit.test_docs import QUESTIONS, anchor_of
from tools.pages import ROOT
from tools.site import NOTES, README, SEARCH, linked

pytestmark = needs_chromium
# Asks the worker one question after the other; each answer becomes the places of its hits.
ASK = """
    async ([source, items, questions]) => {
        const worker = new Worker(URL.createObjectURL(new Blob([source])));
        const answer = message => new Promise(done => {
            worker.onmessage = ({data}) => done(data);
            worker.postMessage(message);
        });
        await answer({type: 0, data: {items, config: {}}});
        const found = [];
        for (const input of questions) {
            const {data} = await answer({type: 2, data: {input}});
            found.push(data.items.map(({id}) => items[id].location));
        }
        return found;
    }
"""


def sections(page: Path) -> list[dict[str, Any]]:
    """Return the sections of a page, as the site's index has them."""
    place = str(page.relative_to(ROOT).with_suffix("")).removesuffix("README").strip("/") + "/"
    parts = re.split(r"^(?=#+ )", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    found: list[dict[str, Any]] = []
    for heading, _, text in (part.partition("\n") for part in parts if part.startswith("#")):
        title = heading.lstrip("# ")
        anchor = f"#{anchor_of(heading)}" if found else ""
        path = [found[0]["title"], title] if found else [title]
        text = re.sub(r"\]\([^)]*\)", "]", text)
        found.append({"location": place + anchor, "title": title, "text": text, "path": path})
    return found


def index() -> list[dict[str, Any]]:
    pages = sorted(page for page in linked(README) if page.suffix == ".md" and page.parent != NOTES)
    return [section for page in pages for section in sections(page)]


def hits(page: Page, questions: list[str]) -> list[list[str]]:
    """Return the places that the search finds for each question, the best first."""
    found: list[list[str]] = page.evaluate(
        ASK, [SEARCH.read_text(encoding="utf-8"), index(), questions]
    )
    return found


def test_a_question_typed_whole_has_its_page_among_the_first_three_hits() -> None:
    with chromium() as browser, tab(browser) as page:
        found = hits(page, list(QUESTIONS))

    for (question, (address, _)), places in zip(QUESTIONS.items(), found, strict=True):
        wanted = f"docs/{address.partition('.md')[0]}/"
        assert wanted in [place.partition("#")[0] for place in places[:3]], (question, places[:5])


@pytest.mark.parametrize(
    ("typed", "wanted"),
    [
        ("peers", "docs/remotes/#peers-one-fetch-for-a-cluster"),
        ("lifecykle rule", "docs/operations/#delete-and-collect"),  # a letter is another
        ("kuberne", "docs/kubernetes/"),  # not all is typed yet
    ],
)
def test_a_few_words_or_a_part_of_one_are_enough(typed: str, wanted: str) -> None:
    with chromium() as browser, tab(browser) as page:
        places = hits(page, [typed])[0]

    assert wanted in places[:3]


def test_no_word_and_an_unknown_word_find_nothing() -> None:
    with chromium() as browser, tab(browser) as page:
        assert hits(page, ["", "zzyzzxqq"]) == [[], []]
