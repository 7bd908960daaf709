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
