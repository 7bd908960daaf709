"""Keys of a role that end in the middle of an upload: the next ones are taken, and it goes on."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from awscrt.checksums import crc64nvme
from cachetier_client.bucket_format.uploads import UploadedPart
from cachetier_client.io.digests import digest_of

from cachetier.errors import RemoteRefusedError
from cachetier.remote.base import ObjectStore
from cachetier.remote.factory import open_store
from cachetier.remote.s3 import reconnecting
from cachetier.remote.settings import RemoteSettings
from tests.fakes.odd_store import BUCKET, Oddity, OddStore, odd_store

PARTS = (b"first", b"second", b"third")


class Issuer(ThreadingHTTPServer):
    """STS, the agent of a container, and the metadata service of an instance.

    Each answer has keys of its own, ``key-1`` and so on, that end in ``lasts``.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answer)
        self.lasts = timedelta(hours=6)
        self.issued = 0
        self.ended = 0  # keys up to this one are refused
        self.tokens: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def issue(self) -> dict[str, str]:
        self.issued += 1
        ends = f"{datetime.now(UTC) + self.lasts:%Y-%m-%dT%H:%M:%SZ}"
        return {"AccessKeyId": f"key-{self.issued}", "Expiration": ends}

    def takes(self, access_key: str) -> bool:
        return int(access_key.removeprefix("key-")) > self.ended


class _Answer(BaseHTTPRequestHandler):
    server: Issuer

    def do_PUT(self) -> None:
        self._answer("a-token")

    def do_POST(self) -> None:
        asked = self.rfile.read(int(self.headers["Content-Length"])).decode()
        assert "Action=AssumeRoleWithWebIdentity" in asked
        self.server.tokens.append(asked.partition("WebIdentityToken=")[2].partition("&")[0])
        made = self.server.issue()
        secret = "<SecretAccessKey>s</SecretAccessKey><SessionToken>t</SessionToken>"
        keys = "".join(f"<{name}>{text}</{name}>" for name, text in made.items()) + secret
        result = f"<Credentials>{keys}</Credentials>"
        kind = "AssumeRoleWithWebIdentity"
        self._answer(f"<{kind}Response><{kind}Result>{result}</{kind}Result></{kind}Response>")

    def do_GET(self) -> None:
        if self.path.endswith("/security-credentials/"):
            return self._answer("role")
        more = {"Code": "Success", "SecretAccessKey": "s", "Token": "t"}
        return self._answer(json.dumps(self.server.issue() | more))

    def _answer(self, text: str) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_: object) -> None:
        pass


def web_identity(issuer: Issuer, monkeypatch: pytest.MonkeyPatch, directory: Path) -> None:
    (directory / "token").write_text("token-1")
    monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(directory / "token"))
    monkeypatch.setenv("AWS_ROLE_ARN", "arn:aws:iam::123456789012:role/nodes")
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", issuer.url)


def container(issuer: Issuer, monkeypatch: pytest.MonkeyPatch, _directory: Path) -> None:
    monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"{issuer.url}/keys")


def instance(issuer: Issuer, monkeypatch: pytest.MonkeyPatch, _directory: Path) -> None:
    monkeypatch.delenv("AWS_EC2_METADATA_DISABLED", raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", f"{issuer.url}/")


@pytest.fixture(params=[web_identity, container, instance], ids=lambda role: str(role.__name__))
def issuer(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[Issuer]:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(reconnecting, "PAUSE_SECONDS", 0.0)
    with Issuer() as server:
        thread = threading.Thread(
            target=server.serve_forever, args=(0.01,), name="issuer", daemon=True
        )
        thread.start()
        request.param(server, monkeypatch, tmp_path)
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def server(issuer: Issuer) -> Iterator[OddStore]:
    with odd_store(Oddity()) as store:
        store.takes_key = issuer.takes
        yield store


def uploaded(store: ObjectStore, between: Callable[[], object]) -> int:
    """Upload an object in parts, with ``between`` them; return how many calls were refused."""
    refused = 0

    def part(number: int) -> UploadedPart:
        nonlocal refused
        body = PARTS[number - 1]
        while True:
            try:
                return store.upload_part("p/a", upload, number, body, digest=crc64nvme(body))
            except RemoteRefusedError as error:
                refused += 1
                if refused > 3 or error.context["remote_code"] != "ExpiredToken":
                    raise

    upload = store.create_upload("p/a")
    parts = [part(1)]
    between()
    parts += [part(2), part(3)]
    store.complete_upload("p/a", upload, parts, digest=digest_of(b"".join(PARTS)))
    return refused


def remote_at(server: OddStore) -> RemoteSettings:
    return RemoteSettings("durable", BUCKET, "p", server.url, verify="readback")


def test_keys_that_are_ended_early_cost_one_refused_call(
    issuer: Issuer, server: OddStore, tmp_path: Path
) -> None:
    def end() -> None:
        issuer.ended = issuer.issued
        if issuer.tokens:
            (tmp_path / "token").write_text("token-2")

    assert uploaded(open_store(remote_at(server)), end) == 1
    assert issuer.issued > issuer.ended > 0
    assert server.objects["p/a"].body == b"".join(PARTS)
    if issuer.tokens:
        assert issuer.tokens[-1] == "token-2"


# Those of an instance botocore takes for good a while longer than they say.
@pytest.mark.parametrize("issuer", [web_identity, container], indirect=True)
def test_keys_that_say_when_they_end_are_renewed_without_a_refused_call(
    issuer: Issuer, server: OddStore
) -> None:
    issuer.lasts = timedelta(seconds=90)  # so little that botocore asks for others at each call

    def end() -> None:
        issuer.ended = issuer.issued

    assert uploaded(open_store(remote_at(server)), end) == 0
    assert issuer.issued > issuer.ended > 0
    assert server.objects["p/a"].body == b"".join(PARTS)
