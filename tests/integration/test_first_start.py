"""What a person mistyped about the remote ends the first start, in one line; nothing else does."""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from cachetier.config import settings as config
from cachetier.config.settings import Settings
from cachetier.errors import ConfigError
from cachetier.local.recovery import CATALOG_NAME
from cachetier.service.first_start import refuse_wrong_remote

HERE = IPv4Address("127.0.0.1")
EMPTY = "<ListBucketResult><KeyCount>0</KeyCount></ListBucketResult>"


class Store(ThreadingHTTPServer):
    """An S3 server with one answer for every request."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answer)
        self.status, self.code = 200, ""
        self.asked: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    @property
    def body(self) -> bytes:
        refusal = f"<Error><Code>{self.code}</Code><Message>no</Message></Error>"
        return (refusal if self.code else EMPTY).encode()


class _Answer(BaseHTTPRequestHandler):
    server: Store

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        self.send_response(self.server.status)
        self.send_header("Content-Length", str(len(self.server.body)))
        self.end_headers()
        self.wfile.write(self.server.body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "canary-secret")
    monkeypatch.delenv("AWS_CA_BUNDLE", raising=False)
    monkeypatch.delenv("REQUESTS_CA_BUNDLE", raising=False)
    with Store() as server:
        thread = threading.Thread(target=server.serve_forever, name="store")
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def settings_for(endpoint: str, cache_dir: Path) -> Settings:
    where = {"cache_dir": str(cache_dir), "remote": "s3://bucket/p", "remote_endpoint": endpoint}
    return config.load(where)


@pytest.mark.parametrize(
    ("status", "code", "what", "hint"),
    [
        (404, "NoSuchBucket", "there is no bucket bucket", "`remote`"),
        (403, "InvalidAccessKeyId", "does not know the access key", "AWS_ACCESS_KEY_ID"),
        (403, "SignatureDoesNotMatch", "secret key does not belong", "AWS_SECRET_ACCESS_KEY"),
        (301, "PermanentRedirect", "another region", "`region`"),
    ],
)
def test_what_was_mistyped_ends_the_first_start(
    store: Store, tmp_path: Path, status: int, code: str, what: str, hint: str
) -> None:
    store.status, store.code = status, code

    with pytest.raises(ConfigError) as refusal:
        refuse_wrong_remote(settings_for(store.url, tmp_path / "new"))

    assert (
        refusal.value.message == f"s3://bucket/p at {store.url}: {_found(refusal, what)} ({code})"
    )
    assert hint in refusal.value.hint


def _found(refusal: pytest.ExceptionInfo[ConfigError], what: str) -> str:
    text = refusal.value.message.partition(": ")[2].rpartition(" (")[0]
    assert what in text
    return text


def events_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [vars(record)["event"].name for record in caplog.records]


@pytest.mark.parametrize(
    ("status", "code", "event"),
    [
        (403, "AccessDenied", "remote.refused"),  # perhaps we may put and only not list
        (403, "ExpiredToken", "remote.refused"),
        (503, "SlowDown", "remote.unreachable"),
        (500, "InternalError", "remote.unreachable"),
        (500, "NoSuchBucket", "remote.refused"),  # a server in trouble: perhaps it is not so
        (503, "InvalidAccessKeyId", "remote.refused"),
    ],
)
def test_what_may_pass_is_told_and_the_service_starts(
    store: Store,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    status: int,
    code: str,
    event: str,
) -> None:
    store.status, store.code = status, code

    with caplog.at_level(logging.WARNING, logger="cachetier.service.first_start"):
        refuse_wrong_remote(settings_for(store.url, tmp_path / "new"))

    assert events_in(caplog) == [event]
    assert code in caplog.text


def test_a_store_that_is_away_or_well_holds_up_no_start(
    store: Store, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="cachetier.service.first_start"):
        refuse_wrong_remote(settings_for(store.url, tmp_path / "new"))
        assert not caplog.records
        refuse_wrong_remote(settings_for("http://127.0.0.1:1", tmp_path / "new"))

    assert events_in(caplog) == ["remote.unreachable"]
    assert store.asked


def test_a_cache_that_may_hold_bytes_starts_without_asking(store: Store, tmp_path: Path) -> None:
    store.status, store.code = 404, "NoSuchBucket"
    (tmp_path / CATALOG_NAME).touch()

    refuse_wrong_remote(settings_for(store.url, tmp_path))

    assert store.asked == []


def test_no_credentials_at_all_are_told_as_such(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))

    with pytest.raises(ConfigError, match="no credentials were found"):
        refuse_wrong_remote(settings_for(store.url, tmp_path / "new"))


def test_credentials_that_cannot_be_had_just_now_hold_up_no_start(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    login = "sso_start_url = http://127.0.0.1:1\nsso_region = us-east-1\n"
    role = "sso_account_id = 1\nsso_role_name = r\n"
    (tmp_path / "aws").write_text(f"[default]\n{login}{role}")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "aws"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))

    with caplog.at_level(logging.WARNING, logger="cachetier.service.first_start"):
        refuse_wrong_remote(settings_for(store.url, tmp_path / "new"))

    assert "remote durable refuses this node" in caplog.text


def failing_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "aws").write_text(f"[default]\ncredential_process = {program}\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "aws"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))


@pytest.mark.parametrize("program", ["false", "/there/is/no/such/program"])
def test_a_program_that_gives_no_credentials_ends_the_first_start(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str
) -> None:
    failing_program(tmp_path, monkeypatch, program)

    said = only_line(serve(tmp_path, store.url))

    assert "credentials" in said["message"]
    assert "takes credentials from" in said["hint"]
    assert (store.asked, (tmp_path / "cache").exists()) == ([], False)


def test_a_program_that_never_ends_holds_up_no_start(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ending = tmp_path / "ending"
    os.mkfifo(ending)
    failing_program(tmp_path, monkeypatch, f"cat {ending}")  # until somebody opens the other end
    monkeypatch.setattr("cachetier.service.first_start.LOOK_SECONDS", 1.0)
    caplog.set_level(logging.WARNING, "cachetier")

    refuse_wrong_remote(settings_for(store.url, tmp_path / "new"))

    assert "no answer in 1 s" in caplog.text
    ending.write_bytes(b"")


def test_a_replica_that_has_no_profile_ends_the_first_start_and_one_that_is_away_does_not(
    store: Store, tmp_path: Path
) -> None:
    near = {"url": "s3://near/p", "endpoint": "http://127.0.0.1:1"}
    where = {"cache_dir": str(tmp_path / "new"), "remote": "s3://bucket/p"}
    given = {**where, "remote_endpoint": store.url}

    refuse_wrong_remote(config.load({**given, "replicas": {"near": near}}))
    with pytest.raises(ConfigError, match="nobody"):
        refuse_wrong_remote(
            config.load({**given, "replicas": {"near": near | {"profile": "nobody"}}})
        )


def test_an_answer_that_never_ends_holds_up_no_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ended = threading.Event()
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "canary-secret")
    monkeypatch.setattr("cachetier.service.first_start.LOOK_SECONDS", 0.2)
    monkeypatch.setattr("cachetier.remote.s3.inquiry.S3Inquiry.look", lambda *_: ended.wait(60.0))
    caplog.set_level(logging.WARNING, "cachetier")

    refuse_wrong_remote(settings_for("http://127.0.0.1:1", tmp_path / "new"))

    assert not ended.is_set() and "no answer in 0.2 s" in caplog.text
    ended.set()


def test_what_went_wrong_in_a_way_we_do_not_know_holds_up_no_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def look(*_: object) -> None:
        raise ValueError("an answer in no known form")

    monkeypatch.setattr("cachetier.remote.s3.inquiry.S3Inquiry.look", look)
    caplog.set_level(logging.WARNING, "cachetier")

    refuse_wrong_remote(settings_for("http://127.0.0.1:1", tmp_path / "new"))

    assert "an answer in no known form" in caplog.text


def test_a_cache_directory_that_cannot_be_looked_into_is_left_to_who_opens_it(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def exists(_path: Path) -> bool:
        raise PermissionError(13, "Permission denied")

    settings = settings_for(store.url, tmp_path / "new")
    monkeypatch.setattr(Path, "exists", exists)

    refuse_wrong_remote(settings)

    assert store.asked == []


# --- the real process, as a container or a unit sees it ------------------------------------------


SERVE = (sys.executable, "-m", "cachetier", "serve")
AS_FIRST_PROCESS = ("unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child")


def environment_of(tmp_path: Path, endpoint: str) -> dict[str, str]:
    known = {name: value for name, value in os.environ.items() if not name.endswith("_CA_BUNDLE")}
    settings = {
        "CACHETIER_CACHE_DIR": str(tmp_path / "cache"),
        "CACHETIER_REMOTE": "s3://bucket/p",
        "CACHETIER_REMOTE_ENDPOINT": endpoint,
        "CACHETIER_HTTP": "",
    }
    return {**known, **settings}


def serve(tmp_path: Path, endpoint: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        SERVE,
        env={**environment_of(tmp_path, endpoint), **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )


def can_be_first() -> bool:
    """Whether this machine lets us have a process tree of our own."""
    try:
        tried = subprocess.run((*AS_FIRST_PROCESS, "true"), capture_output=True, check=False)
    except FileNotFoundError:
        return False
    return tried.returncode == 0


@pytest.mark.skipif(not can_be_first(), reason="no process tree of our own here")
@pytest.mark.usefixtures("store")  # for credentials
def test_a_container_that_is_stopped_while_it_starts_ends_at_once(tmp_path: Path) -> None:
    """The kernel drops a SIGTERM that the first process of a container does not handle."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(30.0)
        environment = environment_of(tmp_path, f"http://127.0.0.1:{silent.getsockname()[1]}")
        outside = subprocess.Popen(
            (*AS_FIRST_PROCESS, *SERVE), env=environment, stdin=subprocess.DEVNULL
        )
        with silent.accept()[0]:  # it waits for our answer now, for up to twenty seconds
            children = Path(f"/proc/{outside.pid}/task/{outside.pid}/children").read_text()
            os.kill(int(children), signal.SIGTERM)
            assert outside.wait(60) == 128 + signal.SIGTERM


def handles_sigterm(pid: int) -> bool:
    """Whether a service that is ready has taken its signals over as well."""
    caught = re.search(r"^SigCgt:\s*(\w+)$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    assert caught is not None
    return bool(int(caught[1], 16) >> (signal.SIGTERM - 1) & 1)


def test_without_a_standard_output_a_service_ends_as_well_as_any(
    store: Store, tmp_path: Path
) -> None:
    said = tmp_path / "log"
    with said.open("wb") as log:
        process = subprocess.Popen(
            ("sh", "-c", 'exec "$@" <&- >&-', "sh", *SERVE),
            env=environment_of(tmp_path, store.url),
            stderr=log,
        )
    while b"service.ready" not in said.read_bytes() or not handles_sigterm(process.pid):
        assert process.poll() is None, said.read_text()
        time.sleep(0.05)
    process.terminate()
    assert process.wait(50.0) == 0
    assert b'"defect"' not in said.read_bytes()


def only_line(ended: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert (ended.returncode, ended.stdout) == (2, "")
    (line,) = ended.stderr.splitlines()
    said: dict[str, Any] = json.loads(line)
    assert (said["event"], said["level"], said["code"]) == (
        "service.not_started",
        "critical",
        "config",
    )
    return said


def test_a_wrong_bucket_is_one_line_of_the_log(store: Store, tmp_path: Path) -> None:
    store.status, store.code = 404, "NoSuchBucket"

    said = only_line(serve(tmp_path, store.url))

    assert said["message"].startswith(f"cannot start: s3://bucket/p at {store.url}: there is no")
    assert said["hint"] == "Create it, or correct `remote`, its `url` and `endpoint`."
    assert not (tmp_path / "cache").exists()


def test_a_wrong_setting_is_one_line_of_the_log_in_the_form_that_was_chosen(tmp_path: Path) -> None:
    ended = serve(tmp_path, "http://127.0.0.1:1", CACHETIER_LOG="info:console", CACHETIER_HTTP="x")

    (line,) = ended.stderr.splitlines()
    assert ended.returncode == 2
    assert "critical service.not_started cannot start: `http` from CACHETIER_HTTP" in line
    assert line.endswith("code=config")


@pytest.mark.parametrize("content", [None, "this is no certificate\n"])
def test_certificates_that_cannot_be_read_are_one_line_of_the_log(
    tmp_path: Path, content: str | None
) -> None:
    bundle = tmp_path / "ca.pem"
    if content is not None:
        bundle.write_text(content)

    said = only_line(serve(tmp_path, "https://127.0.0.1:1", AWS_CA_BUNDLE=str(bundle)))

    assert f"cannot read certificates from {bundle}" in said["message"]
    assert "AWS_CA_BUNDLE" in said["hint"]


def test_a_certificate_that_nobody_trusts_is_one_line_of_the_log(
    store: Store, tmp_path: Path
) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(self_signed(tmp_path / "server.pem"))
    store.socket = context.wrap_socket(store.socket, server_side=True)

    said = only_line(serve(tmp_path, store.url.replace("http:", "https:")))

    assert "the certificate of the store is not trusted" in said["message"]
    assert "AWS_CA_BUNDLE" in said["hint"]


def test_a_certificate_of_an_authority_that_was_named_is_trusted(
    store: Store,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    bundle = self_signed(tmp_path / "server.pem")
    context.load_cert_chain(bundle)
    store.socket = context.wrap_socket(store.socket, server_side=True)
    monkeypatch.setenv("AWS_CA_BUNDLE", str(bundle))

    with caplog.at_level(logging.WARNING, logger="cachetier.service.first_start"):
        refuse_wrong_remote(settings_for(store.url.replace("http:", "https:"), tmp_path / "new"))

    assert store.asked and not caplog.records


def self_signed(path: Path) -> Path:
    """Write a certificate that signs itself, and its key, to ``path``."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, str(HERE))])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(HERE)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    secret = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM) + secret)
    return path
