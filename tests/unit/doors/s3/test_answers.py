"""What documents of S3 say of errors."""

from __future__ import annotations

import pytest

from cachetier.doors.s3.answers import error_fields
from cachetier.errors import NoSuchKeyError


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ("there is no object under a/b", "there is no object under a/b. Look at the key."),
        ("it went away.", "it went away. Look at the key."),
        ("which one?", "which one? Look at the key."),
    ],
)
def test_message_and_hint_are_two_sentences(message: str, said: str) -> None:
    error = NoSuchKeyError(message, hint="Look at the key.")
    assert error_fields(error) == [("Code", "NoSuchKey"), ("Message", said)]
