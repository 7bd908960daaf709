"""What is kept of a put's headers, and what no bucket would take."""

from __future__ import annotations

import pytest

from cachetier.doors.s3.errors import S3RefusedError
from cachetier.doors.s3.heads import head_of


@pytest.mark.parametrize("name", ["x-amz-meta-who", "content-disposition", "cache-control"])
@pytest.mark.parametrize("value", ["gr\xfcn", "a\x01b", "a\x7f"])
def test_characters_that_a_header_cannot_have_are_refused(name: str, value: str) -> None:
    with pytest.raises(S3RefusedError, match="printable ASCII") as refusal:
        head_of({name: value})
    assert refusal.value.s3_code == "InvalidArgument"


def test_content_headers_and_metadata_are_kept_and_nothing_else() -> None:
    sent = {"content-type": "a/b", "x-amz-meta-who": "me", "x-amz-date": "now", "host": "here"}
    head = head_of({**sent, "content-encoding": "aws-chunked,gzip"})
    assert head.headers == {"content-type": "a/b", "content-encoding": "gzip"}
    assert head.metadata == {"who": "me"}


@pytest.mark.parametrize(
    "date",
    [
        "Tue, 24 Nov 2026 17:00:00 GMT",
        "Tuesday, 24-Nov-26 17:00:00 GMT",
        "Tue Nov 24 17:00:00 2026",
        "tue, 24 nov 2026 17:0:0 GMT",
    ],
)
def test_an_expires_in_a_form_of_http_is_kept_in_the_one_that_every_bucket_takes(date: str) -> None:
    assert head_of({"expires": date}).headers == {"expires": "Tue, 24 Nov 2026 17:00:00 GMT"}


@pytest.mark.parametrize(
    "date",
    [
        "",
        "soon",
        "2026-11-24T17:00:00Z",
        "24 Nov 2026",
        "Tue, 24 Nov 2026 17:00:60 GMT",
        "Tue, 24 Nov 2026 17:00:00 +0100",
        "Tue, 24 Nov 99999999999999999999 17:00:00 GMT",
        "Tue, 24 Nov 2026 17:00:00 GMT" + " " * 4000,
        "9" * 5000,
    ],
)
def test_an_expires_that_some_bucket_would_refuse_is_refused(date: str) -> None:
    with pytest.raises(S3RefusedError, match="no date"):
        head_of({"expires": date})
