"""Which requests the proxy strikes, and how heads are read to decide it."""

from __future__ import annotations

import pytest

from cachetier.testing.http_wire import Framing, WireError, WireHead
from cachetier.testing.s3_answers import flawed
from cachetier.testing.s3_operations import OPERATIONS, operation_of
from cachetier.testing.s3proxy import parsed_fault
from cachetier.testing.troubles import (
    ALWAYS,
    Fault,
    Trouble,
    Troubles,
    When,
    can_strike,
    every,
    first,
    nth,
    share,
)

ANSWER = (
    b'HTTP/1.1 200 OK\r\nETag: "09af"\r\nTransfer-Encoding: chunked\r\n'
    b"x-amz-checksum-crc64nvme: AAAAAAAAAAA=\r\n\r\n"
)


def request(method: str, length: int = 0, target: str = "/b/k") -> WireHead:
    return WireHead.parse(
        f"{method} {target} HTTP/1.1\r\nContent-Length: {length}\r\n\r\n".encode()
    )


def answer(line: str, *fields: str) -> WireHead:
    return WireHead.parse("\r\n".join([line, *fields, "", ""]).encode())


@pytest.mark.parametrize(
    ("method", "target", "operation"),
    [
        ("PUT", "/b/k/with/slashes", "PutObject"),
        ("PUT", "/b/k?partNumber=1&uploadId=u", "UploadPart"),
        ("POST", "/b/k?uploads", "CreateMultipartUpload"),
        ("POST", "/b/k?uploadId=u", "CompleteMultipartUpload"),
        ("DELETE", "/b/k?uploadId=u", "AbortMultipartUpload"),
        ("DELETE", "/b/k", "DeleteObject"),
        ("HEAD", "/b/k", "HeadObject"),
        ("HEAD", "/b", "HeadBucket"),
        ("GET", "/b/k?uploadId=u", "ListParts"),
        ("GET", "/b/k", "GetObject"),
        ("GET", "/b?uploads&prefix=p", "ListMultipartUploads"),
        ("GET", "/b?list-type=2&prefix=p", "ListObjectsV2"),
        ("GET", "/b/", "ListObjects"),
        ("GET", "/", "Other"),
        ("PATCH", "/b/k", "Other"),
    ],
)
def test_a_request_is_known_by_its_method_path_and_query(
    method: str, target: str, operation: str
) -> None:
    assert operation_of(request(method, target=target)) == operation


def test_a_put_that_names_a_source_copies() -> None:
    def operation(target: str) -> str:
        head = f"PUT {target} HTTP/1.1\r\nx-amz-copy-source: b/other\r\n\r\n"
        return operation_of(WireHead.parse(head.encode()))

    assert operation("/b/k?partNumber=1&uploadId=u") == "UploadPartCopy"
    assert operation("/b/k") == "CopyObject"


def test_nothing_happens_unless_it_is_planned() -> None:
    troubles = Troubles()

    assert [troubles.strike(request(method, 5)) for method in ("PUT", "GET")] == [None, None]
    assert not troubles.fired
    assert troubles.seen == {"PutObject": 1, "GetObject": 1}


def test_replies_are_lost_to_requests_that_change_something() -> None:
    troubles = Troubles([Fault(Trouble.LOST_REPLY, when=first(2))])
    targets = {"GET": "/b/k", "PUT": "/b/k", "DELETE": "/b/k", "POST": "/b/k?uploads"}
    struck = [troubles.strike(request(method, 0, target)) for method, target in targets.items()]

    assert struck == [None, Trouble.LOST_REPLY, Trouble.LOST_REPLY, None]
    assert troubles.fired == {Trouble.LOST_REPLY: 2}
    assert troubles.struck[Trouble.LOST_REPLY, "DeleteObject"] == 1


def test_resets_strike_requests_with_a_body() -> None:
    troubles = Troubles([Fault(Trouble.RESET)])

    assert troubles.strike(request("PUT")) is None
    assert troubles.strike(request("PUT", 5)) is Trouble.RESET
    assert troubles.strike(request("PUT", 5)) is None


@pytest.mark.parametrize(
    ("when", "struck"),
    [
        (nth(3), "..x......"),
        (first(2), "xx......."),
        (every(4), "...x...x."),
        (When(start=2, every=3, times=2), ".x..x...."),
        (ALWAYS, "xxxxxxxxx"),
    ],
)
def test_a_rule_strikes_when_it_says(when: When, struck: str) -> None:
    troubles = Troubles([Fault(Trouble.CLOSED, "HeadObject", when)])
    marks = ""
    for _ in range(9):
        troubles.strike(request("GET"))  # another operation, which counts for nothing
        marks += "x" if troubles.strike(request("HEAD")) else "."

    assert marks == struck


def test_a_share_is_struck_at_random_and_the_same_with_the_same_seed() -> None:
    def struck(seed: int) -> list[bool]:
        troubles = Troubles([Fault(Trouble.CLOSED, when=share(0.2))], seed=seed)
        return [troubles.strike(request("HEAD")) is not None for _ in range(1000)]

    assert 150 < sum(struck(1)) < 250
    assert struck(1) == struck(1) != struck(2)


def test_the_first_rule_that_is_due_strikes_and_all_can_be_cleared() -> None:
    troubles = Troubles([Fault(Trouble.CLOSED), Fault(Trouble.STALL, when=ALWAYS)])

    assert [troubles.strike(request("HEAD")) for _ in range(2)] == [Trouble.CLOSED, Trouble.STALL]
    troubles.clear()
    assert troubles.strike(request("HEAD")) is None
    assert troubles.fired == {Trouble.CLOSED: 1, Trouble.STALL: 1}


def test_requests_beyond_the_rate_are_slowed_down() -> None:
    now = 0.0
    troubles = Troubles(slowdown_rate=2.0, clock=lambda: now)

    def burst(count: int) -> list[Trouble | None]:
        return [troubles.strike(request("GET")) for _ in range(count)]

    assert burst(4) == [None, None, Trouble.SLOW_DOWN, Trouble.SLOW_DOWN]
    now = 0.5
    assert burst(2) == [None, Trouble.SLOW_DOWN]
    now = 100.0
    assert burst(3) == [None, None, Trouble.SLOW_DOWN]
    troubles.limit(0)
    assert burst(9) == [None] * 9
    assert troubles.fired == {Trouble.SLOW_DOWN: 4}


def test_a_limit_may_be_of_one_operation() -> None:
    troubles = Troubles(clock=lambda: 0.0)
    troubles.limit(1.0, "PutObject")

    assert [troubles.strike(request("GET")) for _ in range(3)] == [None] * 3
    assert [troubles.strike(request("PUT")) for _ in range(2)] == [None, Trouble.SLOW_DOWN]


def test_what_missed_does_not_count() -> None:
    troubles = Troubles([Fault(Trouble.WRONG_ETAG)])
    put = request("PUT", 5)
    assert troubles.strike(put) is Trouble.WRONG_ETAG
    troubles.missed(Trouble.WRONG_ETAG, put)

    assert troubles.fired.total() == troubles.struck.total() == 0


def test_every_trouble_can_strike_some_operation_and_most_strike_all() -> None:
    places = [(name, has_body) for name in OPERATIONS for has_body in (False, True)]
    for trouble in Trouble:
        assert any(can_strike(trouble, name, has_body=body) for name, body in places)
    assert can_strike(Trouble.STALL, "Other", has_body=False)


def test_a_rule_about_no_operation_is_refused() -> None:
    with pytest.raises(ValueError, match="UploadPart"):
        Fault(Trouble.CLOSED, "upload_part")
    with pytest.raises(ValueError, match="count from 1"):
        When(start=0)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("stall", Fault(Trouble.STALL)),
        ("stall:UploadPart", Fault(Trouble.STALL, "UploadPart")),
        ("stall::times=3", Fault(Trouble.STALL, when=first(3))),
        ("stall:UploadPart:every=10", Fault(Trouble.STALL, "UploadPart", every(10))),
        ("closed::chance=0.1", Fault(Trouble.CLOSED, when=share(0.1))),
        ("closed::start=4", Fault(Trouble.CLOSED, when=nth(4))),
    ],
)
def test_the_command_line_reads_rules(text: str, fault: Fault) -> None:
    assert parsed_fault(text) == fault


@pytest.mark.parametrize("text", ["", "fire", "stall:Put", "stall::often=1", "stall::every=x"])
def test_the_command_line_refuses_what_is_no_rule(text: str) -> None:
    with pytest.raises(ValueError):
        parsed_fault(text)


def test_flaws_change_one_thing_each_and_keep_the_length_true() -> None:
    head = WireHead.parse(ANSWER)
    document = (
        b"<A><ETag>&quot;09af&quot;</ETag><ChecksumCRC64NVME>AAAAAAAAAAA=</ChecksumCRC64NVME></A>"
    )

    etag = flawed(Trouble.WRONG_ETAG, head, document)
    assert etag is not None
    assert etag.count(b"1ab0") == 2
    assert b"Content-Length: %d\r\n" % len(document) in etag
    assert b"chunked" not in etag
    checksum = flawed(Trouble.WRONG_CHECKSUM, head, document)
    assert checksum is not None
    assert checksum.count(b"AQAAAAAAAAA=") == 2
    broken = flawed(Trouble.BROKEN_XML, head, document)
    assert broken is not None
    assert broken.endswith(document[: len(document) // 2])


def test_an_answer_without_a_place_for_the_flaw_is_told() -> None:
    plain = answer("HTTP/1.1 200 OK", "Content-Length: 0")

    for trouble in (Trouble.WRONG_ETAG, Trouble.WRONG_CHECKSUM, Trouble.BROKEN_XML):
        assert flawed(trouble, plain, b"") is None


@pytest.mark.parametrize(
    ("head", "method", "framing"),
    [
        (answer("HTTP/1.1 200 OK", "Content-Length: 7"), "GET", 7),
        (answer("HTTP/1.1 200 OK", "Transfer-Encoding: chunked"), "GET", "chunked"),
        (answer("HTTP/1.1 200 OK"), "GET", "until_close"),
        (answer("HTTP/1.1 200 OK", "content-length: 7"), "HEAD", 0),
        (answer("HTTP/1.1 204 No Content"), "DELETE", 0),
        (answer("HTTP/1.1 304 Not Modified"), "GET", 0),
        (answer("HTTP/1.1 100 Continue"), "PUT", 0),
    ],
)
def test_the_length_of_an_answer_follows_from_its_head(
    head: WireHead, method: str, framing: Framing
) -> None:
    assert head.answer_framing(method) == framing


@pytest.mark.parametrize(
    ("head", "closes"),
    [
        (answer("HTTP/1.1 200 OK"), False),
        (answer("HTTP/1.1 200 OK", "Connection: close"), True),
        (answer("HTTP/1.0 200 OK"), True),
        (answer("HTTP/1.0 200 OK", "Connection: keep-alive"), False),
    ],
)
def test_a_connection_lasts_as_its_version_says(head: WireHead, closes: bool) -> None:
    assert head.closes is closes


def test_what_is_no_http_is_refused() -> None:
    with pytest.raises(WireError):
        WireHead.parse(b"nonsense\r\n\r\n")
