"""PUT, GET, HEAD and DELETE of a shard through the real door."""

from __future__ import annotations

import os
import socket
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from cachetier_client.io.digests import BLOCK_BYTES, digest_of, to_hex

from cachetier.model.shard import INLINE_BYTES
from tests.fakes.bodies import noise
from tests.integration.serving import OWNER, Answer, Served, received, serving, shard_path

SIZES = (
    *(0, 1, INLINE_BYTES, INLINE_BYTES + 1, BLOCK_BYTES - 1, BLOCK_BYTES, BLOCK_BYTES + 1),
    2 * BLOCK_BYTES + 4097,
)
LARGE = 3 * BLOCK_BYTES + 12345


@pytest.fixture(scope="module")
def shared() -> Iterator[Served]:
    with serving() as served:
        yield served


@pytest.fixture
def served() -> Iterator[Served]:
    with serving() as served:
        yield served


@pytest.mark.parametrize("size_bytes", SIZES)
def test_what_was_put_with_a_length_comes_back(shared: Served, size_bytes: int) -> None:
    data, name = noise(size_bytes), f"length/{size_bytes}"
    answer = shared.put(name, data)
    assert answer.status == 201
    assert answer.json == {
        "run": "r",
        "step": 1,
        "name": name,
        "save_id": "http",
        "size_bytes": size_bytes,
        "digest": to_hex(digest_of(data)),
        "level": "local",
    }
    got = shared.call("GET", shard_path(name))
    assert (got.status, got.body) == (200, data)
    assert got.headers["cachetier-digest"] == to_hex(digest_of(data))
    assert got.headers["cachetier-source"] == "local"
    assert got.headers["content-length"] == str(size_bytes)


@pytest.mark.parametrize("size_bytes", SIZES)
def test_what_was_put_in_chunks_comes_back(shared: Served, size_bytes: int) -> None:
    data, name = noise(size_bytes, 1), f"chunks/{size_bytes}"
    pieces = [data[at : at + 300_007] for at in range(0, size_bytes, 300_007)]
    assert shared.call("PUT", shard_path(name), iter(pieces)).status == 201
    assert shared.call("GET", shard_path(name)).body == data


def test_a_body_of_unknown_length_may_outgrow_the_first_reservation(served: Served) -> None:
    piece = noise(1 << 20)
    answer = served.call("PUT", shard_path("x"), (piece for _ in range(70)))
    assert answer.json["size_bytes"] == 70 << 20
    assert served.call("GET", shard_path("x")).body == piece * 70
    assert served.service.store.space.used_bytes == 70 << 20


def test_slow_small_pieces_make_the_same_shard(served: Served) -> None:
    data = noise(INLINE_BYTES + 5000)
    head = f"PUT {shard_path('x')} HTTP/1.1\r\n{OWNER}Content-Length: {len(data)}\r\n\r\n"
    with served.call.raw() as connection:
        connection.sendall(head.encode())
        for at in range(0, len(data), 5000):
            connection.sendall(data[at : at + 5000])
            time.sleep(0.005)
        assert connection.recv(4096).startswith(b"HTTP/1.1 201")
    assert served.call("GET", shard_path("x")).body == data


def test_pipelined_puts_do_not_mix(served: Served) -> None:
    first, second = noise(LARGE, 1), noise(LARGE, 2)
    heads = [
        f"PUT {shard_path(name)} HTTP/1.1\r\n{OWNER}Content-Length: {LARGE}\r\n\r\n".encode()
        for name in ("a", "b")
    ]
    with served.call.raw() as connection:
        connection.sendall(heads[0] + first + heads[1] + second)
        answers = b""
        while answers.count(b"201 Created") < 2:
            answers += connection.recv(65536)
    assert served.call("GET", shard_path("a")).body == first
    assert served.call("GET", shard_path("b")).body == second


def test_the_right_digest_is_taken_and_a_wrong_one_leaves_nothing(served: Served) -> None:
    data = noise(LARGE)
    for body in (noise(10), data):
        wrong = {"Cachetier-Digest": to_hex(digest_of(body) ^ 1)}
        answer = served.call("PUT", shard_path("x"), body, wrong)
        assert (answer.status, answer.code) == (422, "digest_mismatch")
        assert served.holds_nothing()
        assert served.call("GET", shard_path("x")).status == 404
    right = {"Cachetier-Digest": to_hex(digest_of(data))}
    assert served.call("PUT", shard_path("x"), data, right).status == 201


@pytest.mark.parametrize("declared", [100, LARGE + 1])
@pytest.mark.parametrize("sent", [0, 50, 2 * BLOCK_BYTES + 1])
def test_a_body_cut_short_leaves_nothing(served: Served, declared: int, sent: int) -> None:
    head = f"PUT {shard_path('x')} HTTP/1.1\r\n{OWNER}Content-Length: {declared}\r\n\r\n"
    with served.call.raw() as connection:
        connection.sendall(head.encode() + noise(min(sent, declared - 1)))
        connection.shutdown(socket.SHUT_WR)
        received(connection)
    _wait_until_nothing_is_left(served)
    assert served.call("GET", shard_path("x")).status == 404


def test_a_chunked_body_cut_short_leaves_nothing(served: Served) -> None:
    head = f"PUT {shard_path('x')} HTTP/1.1\r\n{OWNER}Transfer-Encoding: chunked\r\n\r\n"
    with served.call.raw() as connection:
        connection.sendall(head.encode() + b"500000\r\n" + noise(0x500000) + b"\r\n")
        time.sleep(0.2)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    _wait_until_nothing_is_left(served)
    assert served.call("GET", shard_path("x")).status == 404


def _wait_until_nothing_is_left(served: Served) -> None:
    deadline = time.monotonic() + 60
    while not served.holds_nothing():
        assert time.monotonic() < deadline, served.data_files()
        time.sleep(0.01)


def test_the_same_bytes_again_get_the_same_receipt(served: Served) -> None:
    data = noise(LARGE)
    first, second = served.put("x", data), served.put("x", data)
    assert first.json == second.json
    assert len(served.data_files()) == 1
    assert served.service.store.space.used_bytes == LARGE


def test_other_bytes_replace_until_the_seal_and_are_refused_after(served: Served) -> None:
    served.put("x", noise(LARGE, 1))
    assert served.put("x", noise(LARGE, 2)).status == 201
    assert served.call("GET", shard_path("x")).body == noise(LARGE, 2)
    assert served.call.post("/v1/runs/r/steps/1/seal", {}).json == {"sealed_ranks": [0]}
    refused = served.put("x", noise(LARGE, 3))
    assert (refused.status, refused.code) == (409, "sealed")
    assert served.put("x", noise(LARGE, 2)).status == 201
    assert served.call("GET", shard_path("x")).body == noise(LARGE, 2)


def test_delete_removes_a_shard_until_its_rank_seals(served: Served) -> None:
    served.put("x", noise(LARGE))
    assert served.call("DELETE", shard_path("x")).status == 204
    assert served.holds_nothing()
    assert served.call("DELETE", shard_path("x")).code == "not_found"
    served.put("y", b"y")
    served.call.post("/v1/runs/r/steps/1/seal", {})
    assert served.call("DELETE", shard_path("y")).code == "sealed"


RANGES = [
    ("bytes=0-0", (0, 1)),
    ("bytes=5-", (5, LARGE)),
    ("bytes=-1", (LARGE - 1, LARGE)),
    (f"bytes=-{LARGE * 2}", (0, LARGE)),
    (f"bytes={BLOCK_BYTES - 1}-{BLOCK_BYTES}", (BLOCK_BYTES - 1, BLOCK_BYTES + 1)),
    (f"bytes={BLOCK_BYTES}-{2 * BLOCK_BYTES - 1}", (BLOCK_BYTES, 2 * BLOCK_BYTES)),
    (f"bytes=100-{LARGE * 9}", (100, LARGE)),
    ("Bytes = 3-4", (3, 5)),
    (f"bytes={LARGE}-", None),
    ("bytes=-0", None),
    (f"bytes={LARGE * 9}-{LARGE * 10}", None),
    ("bytes=5-4", "whole"),
    ("bytes=0-1,4-5", "whole"),
    ("bytes=-", "whole"),
    ("bytes=a-b", "whole"),
    ("lines=1-2", "whole"),
]


@pytest.mark.parametrize(("wanted", "expected"), RANGES)
def test_a_range_gives_those_bytes_and_no_others(
    shared: Served, wanted: str, expected: tuple[int, int] | str | None
) -> None:
    data = noise(LARGE, 7)
    shared.put("ranged", data)
    answer = shared.call("GET", shard_path("ranged"), headers={"Range": wanted})
    if expected is None:
        assert (answer.status, answer.code) == (416, "invalid_request")
    elif isinstance(expected, str):
        assert (answer.status, answer.body) == (200, data)
    else:
        start, end = expected
        assert (answer.status, answer.body) == (206, data[start:end])
        assert answer.headers["content-range"] == f"bytes {start}-{end - 1}/{LARGE}"
    assert answer.headers.get("cachetier-digest", to_hex(digest_of(data))) == to_hex(
        digest_of(data)
    )


def test_an_inline_shard_has_ranges_too(shared: Served) -> None:
    shared.put("small", b"0123456789")
    answer = shared.call("GET", shard_path("small"), headers={"Range": "bytes=2-4"})
    assert (answer.status, answer.body) == (206, b"234")


def test_who_has_the_bytes_is_told_so(shared: Served) -> None:
    shared.put("tagged", b"tagged")
    etag = shared.call("GET", shard_path("tagged")).headers["etag"]
    for given in (etag, f'"other", W/{etag}', "*"):
        answer = shared.call("GET", shard_path("tagged"), headers={"If-None-Match": given})
        assert (answer.status, answer.body) == (304, b"")
    other = shared.call("GET", shard_path("tagged"), headers={"If-None-Match": '"other"'})
    assert other.body == b"tagged"
    stale = {"Range": "bytes=0-1", "If-Range": '"other"'}
    assert shared.call("GET", shard_path("tagged"), headers=stale).body == b"tagged"


def test_head_describes_and_fetches_nothing(served: Served) -> None:
    data = noise(LARGE)
    served.put("x", data)
    served.drained("x", data)
    _evict(served)
    answer = served.call("HEAD", shard_path("x"))
    assert (answer.status, answer.body) == (200, b"")
    assert answer.headers["content-length"] == str(LARGE)
    assert answer.headers["cachetier-source"] == "remote"
    assert not served.data_files()
    assert served.call("HEAD", shard_path("nothing")).status == 404


def test_an_evicted_shard_comes_from_the_remote(served: Served) -> None:
    data = noise(LARGE)
    served.put("x", data)
    served.drained("x", data)
    _evict(served)
    first = served.call("GET", shard_path("x"))
    behind = served.service.operations.restore.open("r", 1, "x", 20.0)  # waits for the copy here
    assert behind.descriptor is not None
    os.close(behind.descriptor)
    second = served.call("GET", shard_path("x"))
    assert first.body == second.body == data
    assert first.headers["cachetier-source"] == "remote"
    assert second.headers["cachetier-source"] == "local"


def _evict(served: Served) -> None:
    from cachetier.local.catalog import shards

    store = served.service.store
    for shard in store.read(shards.clean_local_shards):
        assert store.evict(shard)
    assert not served.data_files()


def _flip(path: Path, at: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)
        file.seek(at)
        file.write(bytes([byte[0] ^ 1]))


def test_a_damaged_first_block_is_an_error_not_bytes(served: Served) -> None:
    served.put("x", noise(LARGE))
    _flip(served.data_files()[0], 10)
    answer = served.call("GET", shard_path("x"))
    assert (answer.status, answer.code) == (500, "integrity")
    assert served.call("GET", "/v1/runs/r/steps/1").json["step"]["state"] == "damaged"


def test_a_damaged_later_block_cuts_the_answer_before_it(served: Served) -> None:
    data = noise(LARGE)
    served.put("x", data)
    _flip(served.data_files()[0], 2 * BLOCK_BYTES + 10)
    with served.call.raw() as connection:
        connection.sendall(f"GET {shard_path('x')} HTTP/1.1\r\n{OWNER}\r\n".encode())
        head, _, body = received(connection).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200")
    assert body == data[: 2 * BLOCK_BYTES]


@pytest.mark.parametrize("block", [0, 2])
def test_a_damaged_local_block_is_replaced_by_the_remote_one(served: Served, block: int) -> None:
    data = noise(LARGE)
    served.put("x", data)
    served.drained("x", data)
    _flip(served.data_files()[0], block * BLOCK_BYTES + 10)
    assert served.call("GET", shard_path("x")).body == data
    assert served.call("GET", shard_path("x")).body == data


def test_a_full_cache_says_when_to_come_again() -> None:
    with serving(capacity="4 MB", when_full="reject") as served:
        answer = served.put("x", noise(LARGE))
        assert (answer.status, answer.code) == (507, "backpressure")
        assert int(answer.headers["retry-after"]) > 0
        assert served.holds_nothing()
        assert served.put("small", noise(3_000_000)).status == 201
        assert served.put("inline", noise(INLINE_BYTES)).status == 201
        assert b"cachetier_backpressure_total 1.0" in served.call("GET", "/metrics").body


def test_a_full_cache_that_waits_takes_the_shard_once_there_is_room() -> None:
    with serving(capacity="20 MB", when_full="wait") as served:
        first, second = noise(LARGE, 1), noise(LARGE, 2)
        served.put("x", first)
        late = served.put("y", second, timeout_seconds=0.2)
        assert (late.status, late.code) == (507, "backpressure")
        served.drained("x", first)
        assert served.put("y", second).status == 201
        assert served.call("HEAD", shard_path("x")).headers["cachetier-source"] == "remote"


@pytest.mark.parametrize("chunked", [False, True])
def test_a_full_cache_may_write_through(chunked: bool) -> None:
    with serving(capacity="4 MB", when_full="write_through") as served:
        data = noise(LARGE)
        answer = served.call("PUT", shard_path("x"), iter([data]) if chunked else data)
        assert (answer.status, answer.json["level"]) == (201, "durable")
        assert served.objects.get("p/r/1/x") == data
        assert served.holds_nothing()


def test_an_ack_of_durable_waits_and_says_what_is_safe(served: Served) -> None:
    answer = served.put("x", b"x", ack="durable", timeout_seconds=0.1)
    assert (answer.status, answer.code) == (504, "not_durable")
    assert served.call("GET", shard_path("x")).body == b"x"
    assert ("r", 1) in served.drain.hurried


BAD_PARAMETERS = [
    ("rank=-1", "invalid_request"),
    ("rank=1", "invalid_request"),
    ("rank=x", "invalid_request"),
    ("world_size=0", "invalid_request"),
    ("save_id=%00", "invalid_name"),
    ("save_id=", "invalid_name"),
    ("ack=never", "invalid_request"),
    ("timeout_seconds=nan", "invalid_request"),
    ("timeout_seconds=-1", "invalid_request"),
    ("overwrite=perhaps", "invalid_request"),
    ("rnak=1", "invalid_request"),
    ("rank=0&rank=0", "invalid_request"),
    ("rank=%ff", "invalid_request"),
]


@pytest.mark.parametrize(("query", "code"), BAD_PARAMETERS)
def test_a_bad_parameter_is_refused(shared: Served, query: str, code: str) -> None:
    answer = shared.call("PUT", f"{shard_path('bad')}?{query}", b"x")
    assert (answer.status, answer.code) == (400, code)


def test_bad_headers_are_refused(shared: Served) -> None:
    digest = shared.call("PUT", shard_path("bad"), b"x", {"Cachetier-Digest": "abc"})
    assert (digest.status, digest.code) == (422, "digest_mismatch")
    for wrong in ("3", "two", "", "-2", "2"):
        elements = shared.call("PUT", shard_path("bad"), b"x", {"Cachetier-Element-Size": wrong})
        assert (elements.status, elements.code) == (400, "invalid_request")
    part = shared.call("PUT", shard_path("bad"), b"x", {"Content-Range": "bytes 0-0/2"})
    assert (part.status, part.code) == (400, "invalid_request")


def _expecting(served: Served, path: str, size_bytes: int) -> bytes:
    head = (
        f"PUT {path} HTTP/1.1\r\n{OWNER}Content-Length: {size_bytes}\r\n"
        "Expect: 100-continue\r\n\r\n"
    )
    with served.call.raw() as connection:
        connection.sendall(head.encode())
        first = connection.recv(4096)
        if first.startswith(b"HTTP/1.1 100"):
            connection.sendall(noise(size_bytes))
            return first + connection.recv(4096)
        return first + received(connection)


def test_who_expects_a_go_ahead_gets_it_or_an_answer_at_once(shared: Served) -> None:
    taken = _expecting(shared, shard_path("expected"), LARGE)
    assert taken.startswith(b"HTTP/1.1 100 Continue\r\n\r\n")
    assert b"HTTP/1.1 201" in taken
    refused = _expecting(shared, "/v1/runs/../steps/1/shards/x", LARGE)
    assert refused.startswith(b"HTTP/1.1 400")
    assert b"connection: close" in refused


def test_equal_blocks_read_at_once_do_not_mix(served: Served) -> None:
    bodies = {"zeros": bytes(5 * BLOCK_BYTES), "noise": noise(5 * BLOCK_BYTES)}
    for name, body in bodies.items():
        served.put(name, body)
    wrong: list[str] = []

    def get(name: str) -> None:
        for _ in range(5):
            if served.call("GET", shard_path(name)).body != bodies[name]:
                wrong.append(name)

    threads = [threading.Thread(target=get, args=(name,)) for name in [*bodies, *bodies]]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_two_uploads_at_once_do_not_mix(served: Served) -> None:
    bodies = {name: noise(2 * LARGE, number) for number, name in enumerate("abcd")}
    answers: dict[str, Answer] = {}

    def put(name: str) -> None:
        answers[name] = served.put(name, bodies[name])

    threads = [threading.Thread(target=put, args=(name,)) for name in bodies]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {answer.status for answer in answers.values()} == {201}
    for name, body in bodies.items():
        assert served.call("GET", shard_path(name)).body == body
