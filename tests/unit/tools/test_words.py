"""Texts for people: the words that they avoid, how long sentences are, and that none is missed."""

from __future__ import annotations

import pytest

from tools.house import messages, words


def test_no_text_uses_an_opening_or_a_word_of_the_list() -> None:
    assert words.found() == []


def test_at_most_a_twentieth_of_the_sentences_of_the_pages_is_long() -> None:
    lengths = [
        len(sentence.split())
        for page in words.pages()
        for sentence in words.sentences(page.read_text(encoding="utf-8"))
    ]
    long = sum(length > words.LONG_SENTENCE_WORDS for length in lengths)

    assert len(lengths) > 3000
    assert long <= len(lengths) / 20


@pytest.mark.parametrize(
    ("page", "expected"),
    [
        ("# A title\n\nOne thing. Another *thing.* `Code` goes.\n", 3),
        ("- an item\n- another\n  of two lines\n\n1. a step\n", 3),
        ("| a | b |\n|---|---|\n| one | two |\n", 2),
        ("```sh\nWhat a command. And more.\n```\n", 0),
        ("<!-- begin: x -->\nMade of code.\n<!-- end: x -->\n", 0),
    ],
)
def test_a_page_is_read_as_sentences(page: str, expected: int) -> None:
    assert len(words.sentences(page)) == expected


@pytest.mark.parametrize("text", ["What is kept of it.", "Those who wait.", "Ask whoever made it."])
def test_a_riddle_is_found_unless_it_is_excepted(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(words, "read", lambda: iter([words.Sentence("page.md", text)]))
    monkeypatch.setattr(words, "excepted", dict)
    assert len(words.found()) == 1

    monkeypatch.setattr(words, "excepted", lambda: {f"page.md: {text}": "quoted"})
    assert words.found() == []

    monkeypatch.setattr(words, "excepted", lambda: {"other.md: nothing": "no use"})
    assert len(words.found()) == 2


def test_a_question_may_begin_with_what(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = words.Sentence("page.md", "What did I lose?")
    monkeypatch.setattr(words, "read", lambda: iter([asked]))
    monkeypatch.setattr(words, "excepted", dict)

    assert words.found() == []


def test_texts_of_every_kind_are_listed() -> None:
    listed = messages.texts()

    assert {each.kind for each in listed} >= {
        *("alert", "cli", "console", "doctor", "error", "event", "fsck", "help", "hint"),
        *("simulate", "status", "warning"),
    }
    assert all(not each.text.startswith("SELECT") for each in listed)
