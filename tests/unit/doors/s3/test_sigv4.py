"""Signatures that botocore and AWS's own documents make are known; any other request is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachetier.doors.s3.errors import S3RefusedError
from cachetier.doors.s3.sigv4 import (
    SKEW_SECONDS,
    Payload,
    RawRequest,
    read_signature,
)
from tests.fakes.s3_signing import KEY_ID, SECRET, date_of, presigned, signed

EXAMPLE_SECRET = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
EXAMPLE_DATE = datetime(2013, 5, 24, tzinfo=UTC).timestamp()
EMPTY = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


def refusal(request: RawRequest, now: float | None = None) -> tuple[str, str]:
    with pytest.raises(S3RefusedError) as refused:
        read_signature(request, date_of(request) if now is None else now)
    return refused.value.s3_code, refused.value.message


def is_known(request: RawRequest, secret: str = SECRET) -> bool:
    return read_signature(request, date_of(request)).is_signed_by(secret)


def with_header(request: RawRequest, name: str, value: str | None) -> RawRequest:
    kept = [each for each in request.headers if each[0] != name.encode()]
    return replace(
        request, headers=kept if value is None else [*kept, (name.encode(), value.encode())]
    )


def header(request: RawRequest, name: str) -> str:
    return dict(request.headers)[name.encode()].decode()


@pytest.mark.parametrize(
    ("method", "path", "headers", "signature"),
    [
        (
            "GET",
            "/test.txt",
            {"range": "bytes=0-9", "x-amz-content-sha256": EMPTY},
            "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41",
        ),
        (
            "PUT",
            "/test%24file.text",
            {
                "date": "Fri, 24 May 2013 00:00:00 GMT",
                "x-amz-content-sha256": (
                    "44ce7dd67c959e0d3524ffac1771dfbba87d2b6b4b4e99e42034a8b803f8b072"
                ),
                "x-amz-storage-class": "REDUCED_REDUNDANCY",
            },
            "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd",
        ),
        (
            "GET",
            "/?lifecycle",
            {"x-amz-content-sha256": EMPTY},
            "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543",
        ),
        (
            "GET",
            "/?max-keys=2&prefix=J",
            {"x-amz-content-sha256": EMPTY},
            "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7",
        ),
    ],
)
def test_the_examples_of_aws_are_signed_as_it_says(
    method: str, path: str, headers: dict[str, str], signature: str
) -> None:
    """Source: https://docs.aws.amazon.com/AmazonS3/latest/API/sig-v4-header-based-auth.html."""
    all_headers = {
        "host": "examplebucket.s3.amazonaws.com",
        "x-amz-date": "20130524T000000Z",
        **headers,
    }
    names = ";".join(sorted(all_headers))
    all_headers["authorization"] = (
        "AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request,"
        f"SignedHeaders={names},Signature={signature}"
    )
    raw = [(name.encode(), value.encode()) for name, value in all_headers.items()]
    where, _, query = path.partition("?")
    request = read_signature(RawRequest(method, where.encode(), query.encode(), raw), EXAMPLE_DATE)
    assert request.key_id == "AKIAIOSFODNN7EXAMPLE"
    assert request.is_signed_by(EXAMPLE_SECRET)


def test_the_presigned_example_of_aws_is_known_for_its_day() -> None:
    """Source: https://docs.aws.amazon.com/AmazonS3/latest/API/sigv4-query-string-auth.html."""
    query = (
        "X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=AKIAIOSFODNN7EXAMPLE%2F20130524%2F"
        "us-east-1%2Fs3%2Faws4_request&X-Amz-Date=20130524T000000Z&X-Amz-Expires=86400&"
        "X-Amz-SignedHeaders=host&X-Amz-Signature="
        "aeeed9bbccd4d02ee5c0109b86d86835f995330da4c265957d157751f604d404"
    )
    host = [(b"host", b"examplebucket.s3.amazonaws.com")]
    request = RawRequest("GET", b"/test.txt", query.encode(), host)
    assert read_signature(request, EXAMPLE_DATE).is_signed_by(EXAMPLE_SECRET)
    assert refusal(request, EXAMPLE_DATE + 86_401) == ("AccessDenied", "Request has expired")
    before = EXAMPLE_DATE - SKEW_SECONDS - 1
    assert refusal(request, before) == ("AccessDenied", "Request is not valid yet")


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/bucket",
        "/bucket/key",
        "/bucket/a%20b%2Bc/d~e",
        "/bucket/" + quote("größe/日本.txt"),
        "/bucket/a//b/",
        "/bucket?list-type=2&prefix=a%2Fb&delimiter=%2F&max-keys=7",
        "/bucket?uploads",
        "/bucket/key?partNumber=3&uploadId=x%3D%3D",
        "/bucket?prefix=b&prefix=a&x-id=ListObjects",
        "/bucket?prefix=%C3%A4%20%26%2B",
    ],
)
@pytest.mark.parametrize("method", ["GET", "PUT"])
def test_what_botocore_signs_is_known(method: str, path: str) -> None:
    body = b"bytes" if method == "PUT" else b""
    headers = {"x-amz-meta-a": "  two   words ", "content-type": "text/plain"}
    request = signed(method, path, headers=headers, body=body)
    assert is_known(request)
    assert not is_known(request, SECRET + "x")
    assert is_known(presigned(method, path))


@given(key=st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40))
def test_any_key_is_signed_as_it_is_sent(key: str) -> None:
    path = f"/bucket/{quote(key, safe='/~')}"
    assert is_known(signed("GET", path))
    assert is_known(presigned("GET", path))
    prefix = f"/bucket?prefix={quote(key, safe='-_.~')}"
    assert is_known(signed("GET", prefix))


def test_percent_encoding_is_made_canonical_and_not_undone() -> None:
    request = signed("GET", "/bucket/a%2Fb%7E%28c%29")
    as_sent = replace(request, raw_path=b"/bucket/a%2fb~(c%29")
    assert is_known(replace(request, raw_path=b"/bucket/a%2fb%7e(c%29")) == is_known(as_sent)
    assert not is_known(replace(request, raw_path=b"/bucket/a/b~(c%29"))


def test_a_header_that_is_no_ascii_is_signed_as_its_bytes() -> None:
    request = signed("PUT", "/bucket/key", headers={"x-amz-meta-a": "plain"})
    assert is_known(request)
    # UTF-8 that, read byte by byte, has what Unicode calls white space.
    changed = with_header(request, "x-amz-meta-a", "à\u0085")
    assert not is_known(changed)


@pytest.mark.parametrize(
    "change",
    [
        lambda request: replace(request, method="DELETE"),
        lambda request: replace(request, raw_path=b"/bucket/other"),
        lambda request: replace(request, raw_query=b"versionId=1"),
        lambda request: with_header(request, "x-amz-meta-a", "c"),
        lambda request: with_header(request, "x-amz-meta-a", None),
        lambda request: with_header(request, "host", "127.0.0.1:7072"),
        lambda request: with_header(request, "x-amz-content-sha256", EMPTY),
    ],
)
def test_nothing_that_is_signed_can_be_changed(
    change: Callable[[RawRequest], RawRequest],
) -> None:
    request = signed("PUT", "/bucket/key", headers={"x-amz-meta-a": "b"}, body=b"x")
    assert is_known(request)
    assert not is_known(change(request))


def test_a_header_of_amz_that_somebody_adds_is_refused() -> None:
    for request in (signed("PUT", "/bucket/key"), presigned("PUT", "/bucket/key")):
        added = with_header(request, "x-amz-meta-a", "b")
        assert refusal(added)[0] == "AccessDenied"
        assert "x-amz-meta-a is there and not signed" in refusal(added)[1]


@pytest.mark.parametrize("by_seconds", [-SKEW_SECONDS - 1, SKEW_SECONDS + 1, 1e12, -1e12])
def test_a_clock_that_is_wrong_is_told_so(by_seconds: float) -> None:
    request = signed("GET", "/bucket/key")
    assert refusal(request, date_of(request) + by_seconds)[0] == "RequestTimeTooSkewed"


def test_a_clock_may_be_wrong_by_a_quarter_of_an_hour() -> None:
    request = signed("GET", "/bucket/key")
    for by_seconds in (-SKEW_SECONDS, SKEW_SECONDS):
        assert read_signature(request, date_of(request) + by_seconds).is_signed_by(SECRET)


def test_any_region_will_do_and_no_other_service() -> None:
    assert is_known(signed("GET", "/b", region="eu-central-7"))
    assert refusal(signed("GET", "/b", service="sqs"))[0] == "AuthorizationHeaderMalformed"


@pytest.mark.parametrize(
    ("text", "payload"),
    [
        ("UNSIGNED-PAYLOAD", Payload.UNSIGNED),
        ("STREAMING-AWS4-HMAC-SHA256-PAYLOAD", Payload.CHUNKS),
        ("STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER", Payload.CHUNKS_AND_TRAILER),
        ("STREAMING-UNSIGNED-PAYLOAD-TRAILER", Payload.UNSIGNED_CHUNKS),
        (EMPTY, Payload.WHOLE),
    ],
)
def test_how_the_body_is_covered_is_told(text: str, payload: Payload) -> None:
    unsigned = signed("PUT", "/b/k")
    assert read_signature(unsigned, date_of(unsigned)).payload_sha256 == EMPTY
    request = with_header(unsigned, "x-amz-content-sha256", text)
    found = read_signature(request, date_of(request))
    assert found.payload is payload
    assert found.payload_sha256 == (EMPTY if payload is Payload.WHOLE else None)
    assert payload.is_chunked == text.startswith("STREAMING")


def test_a_presigned_put_has_a_body_that_nobody_signed() -> None:
    request = presigned("PUT", "/b/k")
    assert read_signature(request, date_of(request)).payload is Payload.UNSIGNED


def _credential(part: int, value: str) -> Callable[[RawRequest], RawRequest]:
    def change(request: RawRequest) -> RawRequest:
        text = header(request, "authorization")
        credential = text.partition("Credential=")[2].partition(",")[0]
        parts = credential.split("/")
        parts[part] = value
        return with_header(request, "authorization", text.replace(credential, "/".join(parts)))

    return change


def _authorization(old: str, new: str) -> Callable[[RawRequest], RawRequest]:
    return lambda request: with_header(
        request, "authorization", header(request, "authorization").replace(old, new)
    )


def _set(name: str, value: str | None) -> Callable[[RawRequest], RawRequest]:
    return lambda request: with_header(request, name, value)


MALFORMED = "AuthorizationHeaderMalformed"


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (_set("authorization", None), "AccessDenied"),
        (_set("authorization", ""), "InvalidRequest"),
        (_set("authorization", "AWS AKIA:c2lnbmF0dXJl"), "InvalidRequest"),
        (_set("authorization", "Bearer ct_1_2"), "InvalidRequest"),
        (_set("authorization", "AWS4-ECDSA-P256-SHA256 Credential=a"), "InvalidRequest"),
        (_set("authorization", "AWS4-HMAC-SHA256 "), MALFORMED),
        (_set("authorization", "AWS4-HMAC-SHA256 " + "Credential=" * 1000), MALFORMED),
        (_set("x-amz-date", None), "AccessDenied"),
        (_set("x-amz-date", "2026-01-01T00:00:00Z"), "AccessDenied"),
        (_set("x-amz-date", "20260230T000000Z"), "AccessDenied"),
        (_set("x-amz-content-sha256", None), "InvalidRequest"),
        (_set("x-amz-content-sha256", "abc"), "InvalidArgument"),
        (_set("x-amz-content-sha256", "sha256"), "InvalidArgument"),
        (
            _set("x-amz-content-sha256", "STREAMING-AWS4-ECDSA-P256-SHA256-PAYLOAD"),
            "NotImplemented",
        ),
        (_credential(0, ""), MALFORMED),
        (_credential(0, "a" * 200), MALFORMED),
        (_credential(0, "a b"), MALFORMED),
        (_credential(1, "20200101"), MALFORMED),
        (_credential(1, "today"), MALFORMED),
        (_credential(2, ""), MALFORMED),
        (_credential(4, "aws3_request"), MALFORMED),
        (_authorization("host;", ""), "AccessDenied"),
        (_authorization("host;", "x;host;"), MALFORMED),
        (_authorization("host;", "Host;"), MALFORMED),
        (_authorization("host;", "host;host;"), MALFORMED),
        (_authorization(";x-amz-date", ""), "AccessDenied"),
        (_authorization("Signature=", "Signature=x"), "SignatureDoesNotMatch"),
    ],
)
def test_a_request_that_says_nothing_sound_is_refused_with_s3s_code(
    change: Callable[[RawRequest], RawRequest], code: str
) -> None:
    request = signed("GET", "/bucket/key")
    now = date_of(request)
    assert refusal(change(request), now)[0] == code


def _query(name: str, value: str) -> Callable[[RawRequest], RawRequest]:
    def change(request: RawRequest) -> RawRequest:
        pairs = [pair.split("=") for pair in request.raw_query.decode().split("&")]
        found = [f"{each}={value if each == name else old}" for each, old in pairs]
        return replace(request, raw_query="&".join(found).encode())

    return change


QUERY = "AuthorizationQueryParametersError"


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (_query("X-Amz-Expires", "604801"), QUERY),
        (_query("X-Amz-Expires", "0"), QUERY),
        (_query("X-Amz-Expires", "-1"), QUERY),
        (_query("X-Amz-Expires", "1e9"), QUERY),
        (_query("X-Amz-Expires", "9" * 5000), QUERY),
        (_query("X-Amz-Algorithm", "AWS4-HMAC-SHA1"), QUERY),
        (_query("X-Amz-Date", ""), QUERY),
        (_query("X-Amz-Date", "yesterday"), QUERY),
        (_query("X-Amz-Credential", "me"), QUERY),
        (_query("X-Amz-Signature", "0" * 63), "SignatureDoesNotMatch"),
        (_query("X-Amz-SignedHeaders", "x"), "AccessDenied"),
        (_set("authorization", "AWS4-HMAC-SHA256 a"), "InvalidArgument"),
        (lambda request: replace(request, raw_query=b"X-Amz-Signature=%zz"), QUERY),
        (lambda request: replace(request, raw_query=b"AWSAccessKeyId=a"), "InvalidRequest"),
        (lambda request: replace(request, raw_query=b""), "AccessDenied"),
    ],
)
def test_a_presigned_url_that_is_none_is_refused_with_s3s_code(
    change: Callable[[RawRequest], RawRequest], code: str
) -> None:
    request = presigned("GET", "/bucket/key")
    assert refusal(change(request), date_of(request))[0] == code


def test_the_key_that_is_claimed_is_told_before_it_is_checked() -> None:
    assert read_signature(*_with_date(signed("GET", "/b"))).key_id == KEY_ID
    assert read_signature(*_with_date(presigned("GET", "/b"))).key_id == KEY_ID


def _with_date(request: RawRequest) -> Any:
    return request, date_of(request)
