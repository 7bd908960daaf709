"""Sizes and spans as people read and write them."""

from __future__ import annotations

import pytest
from cachetier_client.units import parsed_size, parsed_span, shown_size, shown_span


@pytest.mark.parametrize(
    "text", ["", "x", "1 XB", "1 iB", "-1", "1e3", "0x10", "1 GBB", "\u0661 GB"]
)
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parsed_size(text)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("0s", 0), ("90s", 90), ("1.5 s", 1.5), ("30min", 1800), ("30m", 1800), ("12 h", 43_200)],
)
def test_a_span_is_read(text: str, seconds: float) -> None:
    assert parsed_span(text) == seconds


@pytest.mark.parametrize("text", ["", "90", "0", "soon", "-1h", "1 w", "h", "1e3", "\u0661h"])
def test_what_is_no_span_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parsed_span(text)


def test_large_sizes_are_exact() -> None:
    assert parsed_size("9007199254740993") == 9007199254740993
    assert parsed_size("0.1 GB") == 100_000_000


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (99_950, "100 kB"),
        (999_499, "999 kB"),
        (999_500, "1.0 MB"),
        (123_456_789, "123 MB"),
        (2 * 10**12, "2.0 TB"),
        (5 * 10**18, "5000 PB"),
    ],
)
def test_a_size_is_shown_in_three_digits(size_bytes: int, text: str) -> None:
    assert shown_size(size_bytes) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0.0 s"),
        (9.94, "9.9 s"),
        (42, "42 s"),
        (90, "1.5 min"),
        (3_600, "1.0 h"),
        (40_000, "11 h"),
        (200_000, "2.3 d"),
    ],
)
def test_a_span_is_shown_roughly(seconds: float, text: str) -> None:
    assert shown_span(seconds) == text
