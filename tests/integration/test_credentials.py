"""Credentials that are not there yet: the node takes puts, says why nothing drains, and heals."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from cachetier_client import Client
from cachetier_client.identity.names import SaveIds

from cachetier.errors import ConfigError, RemoteRefusedError
from cachetier.remote.call_policy import RetryPolicy
from cachetier.remote.factory import open_remote
from cachetier.remote.s3 import boto_client, reconnecting
from cachetier.remote.settings import RemoteSettings
from cachetier.testing.s3_endpoint import S3Endpoint
from tests.integration.drain_node import REMOTE, Node, shown
from tests.integration.serving import node_settings, running
from tests.integration.test_drain_process import supervised

KEYS = {"AccessKeyId": "key", "SecretAccessKey": "secret"}
TO_COME = 60.0


class Metadata(ThreadingHTTPServer):
    """The metadata service of an instance, with a role; ``away`` it answers 503."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answer)
        self.away = True
        self.asked = 0


class _Answer(BaseHTTPRequestHandler):
    server: Metadata

    def do_PUT(self) -> None:
        self._answer("token")

    def do_GET(self) -> None:
        if self.path.endswith("/security-credentials/"):
            self._answer("role")
        else:
            expires = datetime.now(UTC) + timedelta(hours=6)
            more = {"Token": "token", "Expiration": f"{expires:%Y-%m-%dT%H:%M:%SZ}"}
            self._answer(json.dumps({"Code": "Success", **KEYS, **more}))

    def _answer(self, text: str) -> None:
        self.server.asked += 1
        body = b"" if self.server.away else text.encode()
        self.send_response(503 if self.server.away else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@dataclass
class Source:
    """Where credentials will be: ``come`` makes it so."""

    come: Callable[[], object]
    reason: str


@pytest.fixture
def no_credentials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Leave the AWS chain with nothing but its file of settings, whose path is returned."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "aws"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    return tmp_path / "aws"


def a_file(aws: Path, _monkeypatch: pytest.MonkeyPatch) -> Iterator[Source]:
    text = "[default]\naws_access_key_id = key\naws_secret_access_key = secret\n"
    yield Source(lambda: aws.with_name("credentials").write_text(text), "Unable to locate")


def half_a_file(aws: Path, _monkeypatch: pytest.MonkeyPatch) -> Iterator[Source]:
    file, half = aws.with_name("credentials"), "[default]\naws_access_key_id = key\n"
    file.write_text(half)
    yield Source(
        lambda: file.write_text(f"{half}aws_secret_access_key = secret\n"), "Partial credentials"
    )


def a_process(aws: Path, _monkeypatch: pytest.MonkeyPatch) -> Iterator[Source]:
    said = aws.with_name("said.json")
    aws.write_text(f"[default]\ncredential_process = cat {said}\n")
    yield Source(lambda: said.write_text(json.dumps({"Version": 1, **KEYS})), "custom-process")


def a_program(aws: Path, _monkeypatch: pytest.MonkeyPatch) -> Iterator[Source]:
    program = aws.with_name("program")
    said = json.dumps({"Version": 1, **KEYS})

    def installed() -> None:
        program.write_text(f"#!{sys.executable}\nprint({said!r})\n")
        program.chmod(0o700)

    aws.write_text(f"[default]\ncredential_process = {program}\n")
    yield Source(installed, "No such file")


def a_source_profile(aws: Path, _monkeypatch: pytest.MonkeyPatch) -> Iterator[Source]:
    """A profile of a role whose keys another one has, which is written later."""
    role = "[default]\nrole_arn = arn:aws:iam::1:role/r\nsource_profile = base\n"
    aws.write_text(role)
    keys = "[default]\naws_access_key_id = key\naws_secret_access_key = secret\n"
    yield Source(lambda: aws.write_text(keys), "base")


def a_metadata_service(_aws: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Source]:
    with Metadata() as service:
        monkeypatch.delenv("AWS_EC2_METADATA_DISABLED")
        url = f"http://127.0.0.1:{service.server_port}/"
        monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", url)
        thread = threading.Thread(target=service.serve_forever, name="metadata")
        thread.start()

        def come() -> None:
            assert service.asked > 0
            service.away = False

        yield Source(come, "Unable to locate")
        service.shutdown()
        thread.join()


SOURCES = (a_file, half_a_file, a_process, a_program, a_source_profile, a_metadata_service)


@pytest.fixture(params=SOURCES, ids=lambda source: source.__name__)
def source(
    request: pytest.FixtureRequest, no_credentials: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Source]:
    yield from request.param(no_credentials, monkeypatch)


def test_a_program_that_hangs_when_it_is_asked_again_is_ended_and_run_anew(
    no_credentials: Path, moto_s3: S3Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reconnecting, "PAUSE_SECONDS", 0.0)
    program, runs = no_credentials.with_name("program"), no_credentials.with_name("runs")
    runs.touch()
    program.write_text(
        f"""#!/bin/sh
echo $$ >> {runs}
case $(wc -l < {runs}) in
1) ends="{datetime.now(UTC) + timedelta(minutes=5):%Y-%m-%dT%H:%M:%SZ}" ;;
2) exec sleep 1000 ;;
*) ends="{datetime.now(UTC) + timedelta(hours=5):%Y-%m-%dT%H:%M:%SZ}" ;;
esac
echo '{json.dumps({"Version": 1, "SessionToken": "t", **KEYS})[:-1]}, "Expiration": "'$ends'"}}'
"""
    )
    program.chmod(0o700)
    no_credentials.write_text(f"[default]\ncredential_process = {program}\n")
    remote = RemoteSettings(REMOTE, moto_s3.bucket, "p", moto_s3.url, verify=moto_s3.verify)
    objects = open_remote(remote, policy=RetryPolicy(attempts=1)).objects
    with monkeypatch.context() as hasty:
        hasty.setattr(boto_client, "PROGRAM_SECONDS", 1.0)
        while len(runs.read_text().split()) < 2:  # on a busy machine one is ended before that
            with pytest.raises(RemoteRefusedError, match="no answer in 1 s, it was ended"):
                objects.check()

    objects.check()
    pids = [int(line) for line in runs.read_text().split()]
    assert len(pids) == 3
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]


def test_a_program_that_gives_the_keys_for_a_role_is_ended_too(
    no_credentials: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(boto_client, "PROGRAM_SECONDS", 0.5)
    no_credentials.write_text(
        "[default]\nrole_arn = arn:aws:iam::1:role/r\nsource_profile = base\n"
        "[profile base]\ncredential_process = sleep 1000\n"
    )
    with pytest.raises(ConfigError, match=r"no answer in 0\.5 s, it was ended"):
        boto_client.connect(endpoint="http://127.0.0.1:1")


@contextmanager
def node_at(cache_dir: Path, remote: RemoteSettings) -> Iterator[Node]:
    node = Node(cache_dir, open_remote(remote, policy=RetryPolicy(attempts=1)).objects)
    yield node
    node.close()


def test_the_drain_and_the_service_take_up_credentials_that_come_later(
    tmp_path: Path, moto_s3: S3Endpoint, source: Source, request: pytest.FixtureRequest
) -> None:
    ids = SaveIds(request.node.callspec.id, 7, "save-1")
    remote = RemoteSettings(REMOTE, moto_s3.bucket, "ckpt", moto_s3.url, verify=moto_s3.verify)
    with node_at(tmp_path / "cache", remote) as node:
        node.put(ids, "small", b"hello")
        node.seal(ids)
        with pytest.raises(RemoteRefusedError):
            node.bucket.objects.check()
        with supervised(node, remote) as supervisor:
            node.wait_until(lambda: remote_state(supervisor)["state"] == "refused")
            said, pid = remote_state(supervisor), shown(supervisor)["pid"]
            assert source.reason in said["reason"]
            assert node.checkpoints.step(ids.run, ids.step)[0].dirty_bytes == 5

            source.come()
            node.wait_durable(ids, TO_COME)
            node.wait_until(lambda: remote_state(supervisor)["state"] == "ok")
            state = shown(supervisor)
            assert (state["pid"], state["restarts"]) == (pid, 0)

        node.wait_until(lambda: answers(node))
        assert node.bucket.objects.get(node.key(ids, "small")) == b"hello"


def remote_state(supervisor: Any) -> dict[str, Any]:
    state: dict[str, Any] = shown(supervisor)["remotes"][0]
    return state


def answers(node: Node) -> bool:
    try:
        node.bucket.objects.check()
    except RemoteRefusedError:
        return False
    return True


def test_a_node_with_dirty_bytes_starts_without_credentials_and_says_what_it_lacks(
    tmp_path: Path,
    moto_s3: S3Endpoint,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    address = f"s3://{moto_s3.bucket}/without"
    settings = node_settings(tmp_path, moto_s3, address, monkeypatch)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    aws = tmp_path / "aws"
    monkeypatch.setenv("AWS_CONFIG_FILE", str(aws))
    (source,) = a_process(aws, monkeypatch)
    with running(settings) as service, Client(f"unix://{service.socket}") as client:
        client.put_shard(b"hello", run="run", step=1, name="x")
        client.seal("run", 1)
        wait_until(lambda: remote_of_status(client)["state"] == "refused")
        assert source.reason in remote_of_status(client)["reason"]
        assert service.report.not_ready() is None

        source.come()
        client.wait("run", 1, level="durable", timeout_seconds=TO_COME)
        wait_until(lambda: remote_of_status(client)["state"] == "ok")


def remote_of_status(client: Client) -> dict[str, Any]:
    state: dict[str, Any] = client.status()["remotes"][0]
    return state


def wait_until(satisfied: Callable[[], bool], seconds: float = 60.0) -> None:
    look = threading.Event()
    for _ in range(int(seconds / 0.05)):
        if satisfied():
            return
        look.wait(0.05)
    raise AssertionError("it did not come about")
