"""Stores and proxies that differ from S3: each works, or is refused with the reason and the fix."""

from __future__ import annotations

import logging
import socket
import ssl
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from awscrt.checksums import crc64nvme
from cachetier_client import Client
from cachetier_client.clock import SystemClock
from cachetier_client.deadline import Deadline
from cachetier_client.fallback.direct.remote import from_hello
from cachetier_client.fallback.direct.s3.address import S3Address
from cachetier_client.fallback.direct.s3.bucket import S3Bucket
from cachetier_client.fallback.direct.s3.requests import Requests

from cachetier.config import settings as config
from cachetier.doctor.checks import examine
from cachetier.doctor.findings import State
from cachetier.doctor.subject import Subject
from cachetier.errors import ConfigError, ObjectMissingError, RemoteRefusedError, TransientError
from cachetier.remote.factory import open_store
from cachetier.remote.s3 import boto_client, reconnecting
from cachetier.remote.s3.boto_client import Credentials, connect
from cachetier.remote.s3.inquiry import found_style
from cachetier.remote.s3.reconnecting import Renewed
from cachetier.remote.s3.scheme import FOUND_FILE, for_clients, identity, keep, resolved
from cachetier.remote.s3.store import S3ObjectStore
from cachetier.remote.scheme import scheme_of
from cachetier.remote.settings import RemoteSettings
from cachetier.service.first_start import refuse_wrong_remote
from cachetier.service.wiring import remotes_of
from tests.fakes.odd_store import BUCKET, Kept, Oddity, OddStore, odd_store
from tests.integration.doctoring import found, patient
from tests.integration.serving import running
from tests.integration.test_first_start import self_signed

ANYBODY = Credentials("anybody", "believed")


def store_on(server: OddStore, **change: Any) -> S3ObjectStore:
    client = connect(endpoint=server.url, credentials=ANYBODY)
    return S3ObjectStore(BUCKET, Renewed(lambda: client), verify="readback", **change)


# --- listings ------------------------------------------------------------------------------------

KEYS = [f"p/{number:05}" for number in range(1200)]


def paged(store: S3ObjectStore, delimiter: str = "", limit: int = 1000) -> list[str]:
    """Return what all pages have, in their order."""
    found: list[str] = []
    after: str | None = ""
    while after is not None:
        page = store.list_page("p/", delimiter, after, limit)
        found += sorted([each.key for each in page.objects] + list(page.prefixes))
        after = page.next_after
    return found


UNLIKE = [
    Oddity(order="hashed"),
    Oddity(order="hashed", start_after="ignored", page=300),
    Oddity(order="hashed", start_after="refused"),
    Oddity(start_after="refused", page=500),
    Oddity(start_after="ignored"),
]


@pytest.mark.parametrize("oddity", UNLIKE, ids=lambda odd: f"{odd.order}-{odd.start_after}")
def test_a_listing_that_is_not_sorted_or_cannot_begin_behind_a_key_has_all_keys(
    oddity: Oddity,
) -> None:
    with odd_store(oddity) as server:
        server.fill(*KEYS)
        assert paged(store_on(server)) == KEYS
        assert server.count("continuation-token") > 0
        assert sorted(store_on(server).list("p/").keys) == KEYS


def test_the_first_page_asked_of_an_unsorted_store_may_be_one_in_the_middle() -> None:
    with odd_store(Oddity(order="hashed")) as server:
        server.fill(*KEYS)
        page = store_on(server).list_page("p/", "", KEYS[500], 300)
    assert [each.key for each in page.objects] == KEYS[501:801]
    assert page.next_after == KEYS[800]


def test_pages_too_short_to_tell_an_order_are_read_to_the_end() -> None:
    with odd_store(Oddity(order="hashed", page=3)) as server:
        server.fill(*KEYS[:10])
        assert paged(store_on(server), limit=4) == KEYS[:10]


def test_common_prefixes_of_an_unsorted_listing_are_all_there_once() -> None:
    with odd_store(Oddity(order="hashed", page=100)) as server:
        server.fill(*(f"p/{step:04}/x" for step in range(300)), "p/note")
        assert paged(store_on(server), "/", 70) == [*(f"p/{at:04}/" for at in range(300)), "p/note"]


def test_a_sorted_store_is_asked_for_the_page_alone() -> None:
    with odd_store(Oddity()) as server:
        server.fill(*KEYS)
        assert paged(store_on(server)) == KEYS
        assert server.count("continuation-token") == 0
        assert len(server.asked) <= 4


@pytest.mark.parametrize("order", ["sorted", "hashed"])
def test_an_order_that_is_stated_holds_from_the_first_page_on(order: Any) -> None:
    stated = "sorted" if order == "sorted" else "unsorted"
    remote = RemoteSettings.of("durable", {"url": f"s3://{BUCKET}", "assume": [stated]})
    with odd_store(Oddity(order=order, page=100)) as server:
        server.fill(*KEYS)
        store = store_on(server, in_order=remote.in_order)
        page = store.list_page("p/", "", KEYS[500], 7)
        assert [each.key for each in page.objects] == KEYS[501:508]
        pages = 1 if order == "sorted" else len(KEYS) // 100
        assert len(server.asked) == pages


# --- lengths -------------------------------------------------------------------------------------

BODY = bytes(range(256)) * 40


@pytest.mark.parametrize("framing", ["chunked", "until_close"])
def test_answers_without_a_length_are_read_whole(framing: Any) -> None:
    with odd_store(Oddity(framing=framing)) as server:
        store = store_on(server)
        put = store.put("a", BODY, digest=crc64nvme(BODY), metadata={"cachetier-save": "s"})
        server.objects["empty"] = Kept(b"", {})

        found, empty = store.head("a"), store.head("empty")
        assert found is not None and empty is not None
        assert (found.size_bytes, found.etag) == (len(BODY), put.etag)
        assert found.metadata == {"cachetier-save": "s"}
        assert empty.size_bytes == 0
        assert store.head("missing") is None
        assert store.get("a") == BODY
        assert store.get("a", 10, 20) == BODY[10:30]
        assert store.get("a", 10) == BODY[10:]
        into = memoryview(bytearray(5000))
        store.read_into("a", 1000, into)
        assert into == BODY[1000:6000]
        with pytest.raises(ObjectMissingError):
            store.get("missing")


def test_a_body_without_a_length_that_breaks_off_is_no_body(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with odd_store(Oddity(framing="until_close")) as server:
        store = store_on(server)
        store.put("a", BODY, digest=crc64nvme(BODY))
        whole = Kept.__getattribute__

        def short(kept: Kept, name: str) -> Any:
            value = whole(kept, name)
            return _Short(value) if name == "body" else value

        monkeypatch.setattr(Kept, "__getattribute__", short)
        with pytest.raises(TransientError):
            store.get("a", 10, 20)


class _Short(bytes):
    """A body whose ranges lose their last byte on the way."""

    def __getitem__(self, where: Any) -> Any:
        return bytes(self)[where][:-1]


# --- addressing ----------------------------------------------------------------------------------

NAMED = "store.example"


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Have every name under ``store.example`` lead here; returns those that were looked up."""
    asked: list[str] = []
    look_up = socket.getaddrinfo

    def here(host: Any, *arguments: Any, **options: Any) -> Any:
        asked.append(str(host))
        return look_up("127.0.0.1" if NAMED in str(host) else host, *arguments, **options)

    monkeypatch.setattr(socket, "getaddrinfo", here)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1,localhost,.example")
    return asked


def remote_at(server: OddStore, **change: Any) -> RemoteSettings:
    named = f"http://{NAMED}:{server.server_port}"
    return replace(RemoteSettings("durable", BUCKET, "p", named, verify="readback"), **change)


REFUSALS = ("SecondLevelDomainForbidden", "PathStyleDomainForbidden", "NoSuchBucket", "Anything")


@pytest.mark.usefixtures("names")
@pytest.mark.parametrize("refusal", REFUSALS)
def test_a_store_that_refuses_the_path_is_addressed_by_the_host(refusal: str) -> None:
    with odd_store(Oddity(style="virtual", refusal=refusal)) as server:
        remote = remote_at(server)
        assert found_style(remote) == "virtual"
        store = open_store(remote)
        store.put("p/a", b"hello", digest=crc64nvme(b"hello"))
        assert store.get("p/a") == b"hello"
        assert server.hosts[-1].startswith(f"{BUCKET}.{NAMED}")


@pytest.mark.usefixtures("names")
def test_a_store_without_a_name_for_each_bucket_is_addressed_by_the_path() -> None:
    with odd_store(Oddity(style="path")) as server:
        assert found_style(remote_at(server)) == "path"
        assert not any(host.startswith(BUCKET) for host in server.hosts)


def test_a_store_at_an_address_is_asked_nothing() -> None:
    with odd_store(Oddity()) as server:
        assert found_style(remote_at(server, endpoint=server.url)) == "auto"
        assert server.asked == []
        open_store(remote_at(server, endpoint=server.url)).check()
        assert server.count(f"^HEAD /{BUCKET}") == 1


@pytest.mark.usefixtures("names")
def test_a_setting_and_the_aws_configuration_are_obeyed_without_asking(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with odd_store(Oddity()) as server:
        assert found_style(remote_at(server, addressing_style="virtual")) == "virtual"
        (tmp_path / "aws").write_text("[default]\ns3 =\n  addressing_style = virtual\n")
        monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "aws"))
        assert found_style(remote_at(server)) == "virtual"
        assert resolved(remote_at(server), tmp_path).addressing_style == "virtual"
        assert found_style(remote_at(server, addressing_style="path")) == "path"
        assert server.asked == []


@pytest.mark.usefixtures("names")
def test_a_store_that_only_the_environment_names_is_asked_for_its_style(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with odd_store(Oddity(style="virtual")) as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL", str(remote_at(server).endpoint))
        assert found_style(remote_at(server, endpoint=None)) == "virtual"


def test_an_endpoint_of_the_environment_is_what_clients_and_peers_hear(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remote = RemoteSettings("durable", BUCKET)
    named = replace(remote, endpoint="http://127.0.0.1:1")

    def heard() -> object:
        return for_clients(resolved(remote, tmp_path))["endpoint"]

    assert heard() is None
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    assert heard() == "http://127.0.0.1:1"
    assert identity(resolved(remote, tmp_path)) == identity(named)
    monkeypatch.setenv("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "true")
    assert heard() is None
    monkeypatch.undo()
    (tmp_path / "aws").write_text("[default]\nendpoint_url = http://127.0.0.1:1\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "aws"))
    assert heard() == "http://127.0.0.1:1"


@pytest.mark.usefixtures("names")
def test_what_was_found_is_kept_and_a_question_that_fails_weakens_nothing(tmp_path: Path) -> None:
    with odd_store(Oddity(style="virtual")) as server:
        remote = remote_at(server)
        keep(remote, resolved(remote, tmp_path), tmp_path)
        asked = len(server.asked)
        assert asked > 0
        assert resolved(remote, tmp_path).addressing_style == "virtual"
        assert len(server.asked) == asked
        forced = replace(remote, addressing_style="path")
        keep(forced, resolved(forced, tmp_path), tmp_path)

    keep(remote, resolved(remote, tmp_path), tmp_path)  # it is away
    assert resolved(remote, tmp_path).addressing_style == "virtual"
    other = replace(remote, bucket="another")
    found = resolved(other, tmp_path)
    assert found.addressing_style == "auto"
    keep(other, found, tmp_path)
    assert "another" not in (tmp_path / FOUND_FILE).read_text()
    (tmp_path / FOUND_FILE).write_text("half a fi")
    assert resolved(remote, tmp_path).addressing_style == "auto"


@pytest.mark.usefixtures("names")
def test_a_store_that_was_away_when_it_was_asked_is_asked_again_once_it_refuses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reconnecting, "PAUSE_SECONDS", 0.0)
    with odd_store(Oddity(style="virtual")) as server:
        remote, answers = remote_at(server), boto_client.connect_to
        monkeypatch.setattr(
            "cachetier.remote.s3.inquiry.connect_to",
            lambda *_, **__: boto_client.connect(endpoint="http://127.0.0.1:1"),
        )
        store = open_store(remote)
        with pytest.raises(RemoteRefusedError):
            store.list("")
        monkeypatch.setattr("cachetier.remote.s3.inquiry.connect_to", answers)
        with pytest.raises(RemoteRefusedError):
            store.list("")
        assert store.list("").keys == ()


@pytest.mark.usefixtures("names")
def test_direct_saves_address_the_bucket_as_the_service_does_and_need_no_lengths() -> None:
    with odd_store(Oddity(style="virtual", framing="chunked")) as server:
        remote = remote_at(server, addressing_style="virtual")
        address = from_hello(scheme_of(remote).for_clients(remote))
        assert isinstance(address, S3Address)
        requests, deadline = Requests(address), Deadline(60.0, SystemClock())
        answer = requests.send("PUT", "p/a", deadline, body=[b"hello"])
        head = S3Bucket(address, SystemClock(), requests=requests).head("p/a", deadline)
        requests.close()
        assert answer.status == 200
        assert head is not None and head.size_bytes == 5
        assert server.hosts[-1].startswith(f"{BUCKET}.{NAMED}")
        assert "p/a" in server.objects


@pytest.mark.usefixtures("names", "keys")
def test_the_first_start_finds_that_no_checksum_is_kept_and_a_setting_goes_before_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    given = {"cache_dir": str(tmp_path / "new"), "remote": f"s3://{BUCKET}/p"}
    with odd_store(Oddity()) as server:
        given["remote_endpoint"] = server.url
        with caplog.at_level(logging.INFO, logger="cachetier.service.first_start"):
            refuse_wrong_remote(config.load(given))
        assert server.objects == {}
    assert "remote durable keeps no CRC-64/NVME" in caplog.text
    for _ in range(2):  # the second time it is kept although nobody was asked
        (found_remote,) = remotes_of(config.load(given))
        assert (found_remote.verify, found_remote.conditional_writes) == ("readback", True)
        keep(config.load(given).durable, found_remote, tmp_path / "new")
    (forced,) = remotes_of(config.load(given | {"remote_assume": "checksum"}))
    assert forced.verify == "checksum"
    keep(config.load(given | {"remote_assume": "checksum"}).durable, forced, tmp_path / "new")
    assert remotes_of(config.load(given))[0].verify == "readback"

    given |= {"cache_dir": str(tmp_path / "away"), "remote_endpoint": "http://127.0.0.1:1"}
    refuse_wrong_remote(config.load(given))
    assert remotes_of(config.load(given))[0].verify == "checksum"  # nothing was seen


# --- doctor, and the first start -----------------------------------------------------------------


@pytest.fixture
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "anybody")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "believed")


_UNCONDITIONAL = 'assume = ["unconditional"]'
DIFFERENCES = [
    (
        Oddity(keeps_metadata=False),
        "metadata",
        State.FAIL,
        "user metadata is dropped",
        "x-amz-meta",
    ),
    (Oddity(keeps_metadata=False), "multipart", State.FAIL, "is dropped", "x-amz-meta"),
    (Oddity(missing=403), "missing", State.FAIL, "s3:ListBucket", "StringLikeIfExists"),
    (Oddity(paths="plus"), "keys", State.FAIL, "with +", "pass on paths"),
    (Oddity(paths="merged"), "keys", State.WARN, "with //", "proxy_pass"),
    (Oddity(paths="decoded"), "keys", State.WARN, "with %2F", "pass on paths"),
    (Oddity(order="hashed"), "order", State.WARN, "not sorted", "No key is missed"),
    (Oddity(start_after="refused"), "order", State.WARN, "cannot begin", "No key is missed"),
    (Oddity(framing="chunked"), "lengths", State.WARN, "HEAD, GET", "HTTP/1.1"),
    (Oddity(framing="until_close"), "lengths", State.WARN, "HEAD, GET", "HTTP/1.1"),
    (
        Oddity(limit_bytes=1 << 20),
        "body-limit",
        State.FAIL,
        "refused (413)",
        "client_max_body_size 0",
    ),
    (
        Oddity(limit_bytes=9 << 20),
        "body-limit",
        State.FAIL,
        "refused (413)",
        "client_max_body_size 0",
    ),
    (Oddity(buffers=True), "buffering", State.OK, "whole bodies are taken", ""),
    (Oddity(buffers=True), "expect", State.OK, "is not answered", ""),
    (Oddity(proto="HTTP/1.0"), "connections", State.WARN, "of its own", "HTTP/1.1"),
    (Oddity(idle_seconds=0.05), "connections", State.WARN, "closed at once", "time-out"),
    (
        Oddity(conditions="denied"),
        "conditional",
        State.FAIL,
        "refused",
        'assume = ["unconditional',
    ),
    (
        Oddity(conditions="ignored"),
        "conditional",
        State.FAIL,
        "ignored",
        'assume = ["unconditional',
    ),
    (
        Oddity(conditions="refused"),
        "conditional",
        State.FAIL,
        "refused",
        'assume = ["unconditional',
    ),
]


@pytest.mark.usefixtures("keys")
@pytest.mark.parametrize(("oddity", "check", "state", "said", "fix"), DIFFERENCES)
def test_doctor_tells_what_differs_and_what_to_do(
    oddity: Oddity, check: str, state: State, said: str, fix: str
) -> None:
    with odd_store(oddity) as server:
        remote = RemoteSettings("durable", BUCKET, "p", server.url, verify="readback")
        finding = found(remote, [check])[check]
        assert server.objects == {}
    assert finding.state is state
    assert said in finding.measured
    assert fix in finding.fix


@pytest.mark.usefixtures("keys")
def test_doctor_finds_no_difference_in_a_store_that_has_none() -> None:
    names = {row[1] for row in DIFFERENCES} | {"addressing"}
    with odd_store(Oddity()) as server:
        remote = RemoteSettings("durable", BUCKET, "p", server.url, verify="readback")
        findings = found(remote, names)
    assert {finding.state for finding in findings.values()} == {State.OK}
    assert "before the whole body" in findings["buffering"].measured
    assert findings["addressing"].measured == "the bucket's name stands in the path"


@pytest.mark.usefixtures("keys")
def test_doctor_knows_what_the_first_start_found_out(tmp_path: Path) -> None:
    with odd_store(Oddity()) as server:
        remote = RemoteSettings("durable", BUCKET, "p", server.url)
        before = checksum_of(patient(tmp_path, remote))
        keep(remote, replace(remote, verify="readback"), tmp_path)
        after = checksum_of(patient(tmp_path, remote))
        stated = replace(remote, stated=("checksum",))
        forced = checksum_of(patient(tmp_path, stated))
    assert (before, after, forced) == (State.FAIL, State.OK, State.FAIL)


def checksum_of(node: Subject) -> State:
    ((_, finding),) = examine(node, ["checksum"])
    return finding.state


@pytest.mark.usefixtures("keys")
def test_doctor_does_not_blame_the_right_to_delete_for_that_to_list() -> None:
    with odd_store(Oddity(missing=403)) as server:
        remote = RemoteSettings("durable", BUCKET, "p", server.url, verify="readback")
        findings = found(remote, ["missing", "delete"])
    assert findings["delete"].state is State.OK
    assert f"Allow s3:ListBucket on arn:aws:s3:::{BUCKET}" in findings["missing"].fix


@pytest.mark.usefixtures("keys")
@pytest.mark.parametrize(
    ("oddity", "check", "state", "said", "fix"),
    [row for row in DIFFERENCES if row[2] is State.FAIL and row[1] != "multipart"],
)
def test_the_first_start_is_refused_where_nothing_would_become_durable(
    oddity: Oddity, check: str, state: State, said: str, fix: str, tmp_path: Path
) -> None:
    del check, state
    given = {"remote": f"s3://{BUCKET}/p", "remote_assume": "readback"}
    with odd_store(oddity) as server:
        given |= {"cache_dir": str(tmp_path / "new"), "remote_endpoint": server.url}
        with pytest.raises(ConfigError) as refusal:
            refuse_wrong_remote(config.load(given))
        assert server.objects == {}
        if oddity.conditions == "refused":
            refuse_wrong_remote(config.load(given | {"remote_assume": "readback,unconditional"}))
    assert said in refusal.value.message
    assert fix in refusal.value.hint


@pytest.mark.usefixtures("keys", "names")
def test_the_first_start_and_the_service_address_a_store_that_refuses_the_path(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with odd_store(Oddity(style="virtual")) as server:
        remote = remote_at(server)
        settings = config.load(
            {
                "cache_dir": str(tmp_path / "new"),
                "remote": remote.url,
                "remote_endpoint": remote.endpoint,
                "remote_assume": "readback",
            }
        )
        refuse_wrong_remote(settings)
        assert not caplog.records
        (found_remote,) = remotes_of(settings)
    assert found_remote.addressing_style == "virtual"


@pytest.mark.usefixtures("keys")
def test_a_node_saves_to_a_store_that_differs_in_all_that_is_supported_and_another_restores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = b"weights" * 150_000
    with odd_store(Oddity(style="virtual", framing="chunked", order="hashed")) as server:
        monkeypatch.setenv("http_proxy", server.url)  # it looks up the names, in the drain too
        remote = replace(remote_at(server), endpoint=f"http://{NAMED}")
        for name in ("saves", "restores"):
            (tmp_path / name).mkdir()
            given = {
                "cache_dir": tmp_path / name / "cache",
                "socket": tmp_path / name / "s",
                "remote": remote.url,
                "remote_endpoint": remote.endpoint,
                "capacity": "1 GB",
            }
            refuse_wrong_remote(config.load(given))  # it finds that no checksum is kept
            with running(given) as service, Client(f"unix://{service.socket}") as client:
                if name == "saves":
                    client.put_shard(body, run="run", step=1, name="model")
                    client.seal("run", 1)
                    client.wait("run", 1, level="durable", timeout_seconds=60)
                newest = client.latest("run", "durable")
                assert newest is not None and newest.step == 1
                assert client.status()["remotes"][0]["verify"] == "readback"
                into = bytearray(len(body))
                client.get_shard("run", 1, "model", out=into)
                assert into == body
            assert (tmp_path / name / "cache" / FOUND_FILE).exists()
        assert any(host.startswith(BUCKET) for host in server.hosts)


@pytest.mark.usefixtures("keys")
def test_doctor_looks_through_tls_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = self_signed(tmp_path / "server.pem")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(bundle)
    names = ["body-limit", "expect", "connections"]
    with OddStore(Oddity(limit_bytes=1 << 20)) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(
            target=server.serve_forever, args=(0.01,), name="tls", daemon=True
        )
        thread.start()
        remote = RemoteSettings("durable", BUCKET, "p", server.url.replace("http:", "https:"))
        monkeypatch.setenv("AWS_CA_BUNDLE", str(bundle))
        findings = found(replace(remote, verify="readback"), names)
        server.shutdown()
        thread.join()
    assert findings["body-limit"].state is State.FAIL
    assert findings["expect"].state is findings["connections"].state is State.OK
