"""HTTPS: who speaks it, with which certificate, and who is let in."""

from __future__ import annotations

import http.client
import logging
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from cachetier_client import (
    Client,
    ForbiddenError,
    InvalidRequestError,
    ServiceUnavailableError,
)

from cachetier.config.settings import load
from cachetier.doors.http.door import HttpDoor
from cachetier.doors.http.limits import RequestLimits
from cachetier.doors.http.server import HttpServer
from cachetier.errors import ConfigError
from cachetier.tls import Tls, TlsFiles
from tests.fakes.access import BEARER
from tests.integration.certificates import Authority, Issued
from tests.integration.serving import SECONDS, Served, serving

LOCALHOST = ("127.0.0.1", 0)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "tls")


def settings_for(issued: Issued, **more: Any) -> dict[str, Any]:
    return {"tls": [issued.certificate, issued.key], **more}


def trusting(authority: Authority, issued: Issued | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(authority.ca))
    if issued is not None:
        context.load_cert_chain(issued.certificate, issued.key)
    return context


def asked(port: int, context: ssl.SSLContext, path: str = "/livez") -> tuple[int, bytes, Any]:
    """Ask on a new connection; return status, body and what the certificate shown there says."""
    connection = http.client.HTTPSConnection("127.0.0.1", port, context=context, timeout=SECONDS)
    try:
        connection.request("GET", path)
        shown = connection.sock.getpeercert()
        assert shown is not None
        answer = connection.getresponse()
        return answer.status, answer.read(), shown
    finally:
        connection.close()


@contextmanager
def opened(
    files: TlsFiles, app: Any, told: list[str | None] | None = None, *, seconds: float = 600.0
) -> Iterator[int]:
    tls = Tls(files, (told if told is not None else []).append)
    limits = RequestLimits(header_seconds=seconds)
    server = HttpServer("http", LOCALHOST, app, limits=limits, tls=tls)
    server.start()
    try:
        yield int(server.url.rsplit(":", 1)[1])
    finally:
        server.stop(0.0)


def until(reached: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not reached():
        assert time.monotonic() < deadline
        time.sleep(0.05)


async def names_peer(scope: Any, _receive: Any, send: Any) -> None:
    peer = scope["extensions"].get("tls", {})
    body = f"{scope['scheme']} {peer.get('client_cert_name')} {peer.get('client_cert_alt_names')}"
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": body.encode()})


def test_with_a_certificate_the_door_speaks_https_alone(authority: Authority) -> None:
    with serving(**settings_for(authority.issue("node"))) as served:
        assert served.service.url is not None
        assert served.service.url.startswith("https://127.0.0.1:")
        assert asked(served.call.port, trusting(authority))[0] == 200
        with pytest.raises((http.client.HTTPException, ConnectionError)):
            served.call("GET", "/livez")


def test_bytes_go_both_ways_in_blocks(authority: Authority) -> None:
    data = bytes(range(256)) * (40 << 10)
    with serving(**settings_for(authority.issue("node"))) as served:
        connection = http.client.HTTPSConnection(
            "127.0.0.1", served.call.port, context=trusting(authority), timeout=20
        )
        connection.request("PUT", "/v1/runs/r/steps/1/shards/x", data, BEARER)
        assert connection.getresponse().read()
        connection.request("GET", "/v1/runs/r/steps/1/shards/x", headers=BEARER)
        assert connection.getresponse().read() == data
        connection.close()


def test_nothing_older_than_tls_1_2_is_spoken(authority: Authority) -> None:
    issued = authority.issue("node")
    context, _certificate = TlsFiles(issued.certificate, issued.key).read()
    assert context.minimum_version >= ssl.TLSVersion.TLSv1_2


def test_a_client_without_a_certificate_of_the_authority_is_refused(authority: Authority) -> None:
    issued = authority.issue("node")
    stranger = Authority(authority.ca.parent / "other", "other").issue("stranger")
    with opened(TlsFiles(issued.certificate, issued.key, authority.ca), names_peer) as port:
        for context in (trusting(authority), trusting(authority, stranger)):
            with pytest.raises(OSError):
                asked(port, context)
        rank = authority.issue("rank", common_name="rank-7,O=admin")
        _status, body, _shown = asked(port, trusting(authority, rank))
    assert body == b"https CN=rank-7\\,O\\=admin,O=cachetier ['IP Address:127.0.0.1']"


def test_a_renewed_certificate_is_used_without_a_restart(authority: Authority) -> None:
    first, told = authority.issue("node", common_name="first"), list[str | None]()
    with opened(TlsFiles(first.certificate, first.key), names_peer, told) as port:
        authority.issue("node", common_name="second")
        until(lambda: "second" in str(asked(port, trusting(authority))[2]["subject"]))
        assert told == [None]


def test_a_disk_that_hangs_holds_up_no_connection_that_is_there(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    issued, hangs, goes_on = authority.issue("node"), threading.Event(), threading.Event()
    with opened(TlsFiles(issued.certificate, issued.key), names_peer) as port:
        there = http.client.HTTPSConnection("127.0.0.1", port, context=trusting(authority))
        there.connect()

        def hang(_files: TlsFiles) -> None:
            hangs.set()
            assert goes_on.wait(SECONDS)

        with monkeypatch.context() as patched:
            patched.setattr(TlsFiles, "signature", hang)
            with socket.create_connection(("127.0.0.1", port)):
                assert hangs.wait(SECONDS)
                there.request("GET", "/")
                assert there.getresponse().status == 200
                goes_on.set()
        there.close()


def test_new_files_that_are_no_good_change_nothing(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    issued = authority.issue("node", common_name="sound")
    with serving(**settings_for(issued)) as served, caplog.at_level(logging.WARNING):
        issued.certificate.write_text("no certificate")
        shown = asked(served.call.port, trusting(authority))[2]
        assert "sound" in str(shown["subject"])
        assert any("the earlier ones stay in use" in each.getMessage() for each in caplog.records)
        warnings = served.service.report.status()["warnings"]
        assert any(str(issued.certificate) in each for each in warnings)


def test_a_certificate_that_soon_expires_is_a_warning(authority: Authority) -> None:
    with serving(**settings_for(authority.issue("node", days=9.5))) as served:
        (warning,) = served.service.report.status()["warnings"]
        assert "expires in 9 days" in warning or "expires in 10 days" in warning


def test_silent_handshakes_end_and_keep_nobody_out(authority: Authority) -> None:
    issued = authority.issue("node")
    files = TlsFiles(issued.certificate, issued.key)
    with opened(files, names_peer) as port, ExitStack() as held:
        for _ in range(50):
            held.enter_context(socket.create_connection(("127.0.0.1", port)))
        assert asked(port, trusting(authority))[0] == 200
    with opened(files, names_peer, seconds=0.5) as port:
        for each in [socket.create_connection(("127.0.0.1", port)) for _ in range(50)]:
            each.settimeout(SECONDS)
            assert each.recv(100) == b""
            each.close()


# --- the client ----------------------------------------------------------------------------------


@pytest.fixture
def mutual(authority: Authority, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    """Serve to who has a certificate of the authority; the environment is that of such a client."""
    rank, issued = authority.issue("rank"), authority.issue("node")
    monkeypatch.setenv("CACHETIER_CA", str(authority.ca))
    monkeypatch.setenv("CACHETIER_CLIENT_CERT", str(rank.certificate))
    monkeypatch.setenv("CACHETIER_CLIENT_KEY", str(rank.key))
    with serving(tls=[issued.certificate, issued.key, authority.ca]) as served:
        yield served


def test_a_client_speaks_https_to_a_door_that_wants_its_certificate(mutual: Served) -> None:
    data = bytes(9 << 20)
    with Client(mutual.service.url, fallback="fail") as client:
        client.put_shard(data, run="r", step=1, name="a", save_id="s", rank=0, world_size=1)
        assert client.get_shard(run="r", step=1, name="a") == data


@pytest.mark.parametrize(
    ("changed", "kind", "said"),
    [
        ("CACHETIER_CA", ForbiddenError, "not trusted.*Set CACHETIER_CA"),
        ("CACHETIER_CLIENT_CERT", ServiceUnavailableError, "set CACHETIER_CLIENT_CERT"),
    ],
)
def test_a_client_that_is_not_trusted_hears_what_to_set(
    mutual: Served,
    monkeypatch: pytest.MonkeyPatch,
    changed: str,
    kind: type[Exception],
    said: str,
) -> None:
    monkeypatch.delenv(changed)
    with Client(mutual.service.url, fallback="fail") as client, pytest.raises(kind, match=said):
        client.status()


def test_https_to_a_door_in_clear_text_says_so(shared: Served) -> None:
    url = f"https://127.0.0.1:{shared.call.port}"
    with Client(url, fallback="fail") as client, pytest.raises(InvalidRequestError, match="no TLS"):
        client.status()


@pytest.mark.parametrize("name", ["CACHETIER_CA", "CACHETIER_CLIENT_CERT"])
def test_a_file_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "/no/such/file")
    with pytest.raises(ValueError, match=f"{name}='/no/such/file' cannot be used: No such file"):
        Client("https://127.0.0.1:1")


# --- what is refused -----------------------------------------------------------------------------


def test_a_key_that_others_can_read_is_refused(authority: Authority) -> None:
    issued = authority.issue("node")
    issued.key.chmod(0o644)
    with pytest.raises(ConfigError) as caught:
        TlsFiles(issued.certificate, issued.key).read()
    assert caught.value.hint == f"chmod 600 {issued.key}"


@pytest.mark.parametrize("which", ["certificate", "key", "client_ca"])
@pytest.mark.parametrize("text", [None, "", "-----BEGIN CERTIFICATE-----\nAAAA\n"])
def test_a_file_that_is_no_good_is_named(
    authority: Authority, which: str, text: str | None
) -> None:
    issued = authority.issue("node")
    paths = {"certificate": issued.certificate, "key": issued.key, "client_ca": authority.ca}
    if text is None:
        paths[which].unlink()
    else:
        paths[which].write_text(text)
    with pytest.raises(ConfigError, match="TLS cannot use /"):
        TlsFiles(**paths).read()


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "node-7"])
def test_beyond_loopback_clear_text_must_be_asked_for(
    shared: Served, authority: Authority, host: str
) -> None:
    issued = authority.issue("node")
    tls = Tls(TlsFiles(issued.certificate, issued.key), lambda _problem: None)
    with pytest.raises(ConfigError, match="`http` to 'http://"):
        HttpDoor((host, 0), shared.service.operations)
    HttpDoor((host, 0), shared.service.operations, clear_text=True)
    HttpDoor((host, 0), shared.service.operations, tls=tls)


@pytest.fixture(scope="module")
def shared() -> Iterator[Served]:
    with serving() as served:
        yield served


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"http": "0.0.0.0:1"}, "'http://0.0.0.0:1'"),
        ({"tls": "/k"}, "the certificate and its key"),
        ({"tls": "/c,/k", "http": "http://0.0.0.0:1"}, "for HTTPS"),
        ({"tls": "/c,/k,/ca,/more"}, "the CA of clients"),
    ],
)
def test_settings_that_go_not_together_are_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        load({"cache_dir": "/c", "remote": "s3://bucket/p", **given})
