"""The compose file, for real: image, service, SeaweedFS and Prometheus in containers."""

from __future__ import annotations

import json
import os
import secrets
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
import pytest

from tests.acceptance import stand_ins
from tests.acceptance.docker_host import Docker, docker_host

pytestmark = [
    pytest.mark.acceptance,
    pytest.mark.xdist_group("docker"),
    pytest.mark.timeout(900),
]

ROOT = Path(__file__).parents[2]
PROJECT = "cachetier-acceptance"
ACCESS_KEY = "cachetier"
BODY = bytes(range(256)) * 4096
SHARD = "/v1/runs/compose/steps/{step}/shards/weights.bin"


@dataclass(frozen=True)
class Stack:
    """The services of the compose file, running."""

    docker: Docker
    settings: dict[str, str]

    def compose(self, *arguments: str) -> str:
        files = (
            "--project-name",
            PROJECT,
            "--env-file",
            os.devnull,
            "--file",
            str(ROOT / "docker-compose.yml"),
        )
        return self.docker.compose(*files, *arguments, extra=self.settings, timeout_seconds=600)

    def address(self, variable: str) -> str:
        return f"http://127.0.0.1:{self.settings[variable]}"

    def call(
        self, method: str, path: str, body: bytes | None = None, token: str | None = None
    ) -> bytes:
        request = urllib.request.Request(
            self.address("CACHETIER_HTTP_PORT") + path, data=body, method=method
        )
        request.add_header("Authorization", f"Bearer {token or self.settings['CACHETIER_TOKEN']}")
        with urllib.request.urlopen(request, timeout=60) as answer:
            content: bytes = answer.read()
        return content

    def prometheus(self, path: str) -> Any:
        with urllib.request.urlopen(self.address("PROMETHEUS_PORT") + path, timeout=10) as answer:
            return json.load(answer)["data"]

    def container(self, service: str) -> dict[str, Any]:
        name = self.compose("ps", "--all", "--quiet", service).strip()
        described: list[dict[str, Any]] = json.loads(self.docker.run("inspect", name))
        return described[0]


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    folder = tmp_path_factory.mktemp("docker")
    with docker_host(folder) as docker:
        images = stand_ins.build(docker, folder)
        subprocess.run(("make", "wheels", f"VENV={sys.prefix}"), cwd=ROOT, check=True)
        ports = ("CACHETIER_HTTP_PORT", "SEAWEEDFS_S3_PORT", "PROMETHEUS_PORT")
        stack = Stack(
            docker,
            {
                **images,
                "CACHETIER_IMAGE": "cachetier-acceptance/cachetier",
                "CACHETIER_TOKEN": secrets.token_urlsafe(32),
                "CACHETIER_CAPACITY": "1GiB",
                "AWS_ACCESS_KEY_ID": ACCESS_KEY,
                "AWS_SECRET_ACCESS_KEY": secrets.token_urlsafe(32),
                **{name: str(free_port()) for name in ports},
            },
        )
        try:
            stack.compose("up", "--detach", "--build", "--wait", "--wait-timeout", "180")
            yield stack
        finally:
            (folder / "compose.log").write_text(stack.compose("logs", "--no-color"))
            stack.compose("down", "--volumes", "--timeout", "30")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
    return port


def eventually(check: Any, *, seconds: float = 60) -> Any:
    """Call ``check`` until it returns something true, or give up with its last answer."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            answer = check()
        except OSError as error:
            answer = None
            last: object = error
        else:
            last = answer
        if answer:
            return answer
        assert time.monotonic() < deadline, f"still {last!r} after {seconds} s"
        time.sleep(0.5)


def test_a_shard_put_over_http_becomes_durable_in_the_s3_server(stack: Stack) -> None:
    path = SHARD.format(step=1)
    receipt = json.loads(stack.call("PUT", path, BODY))
    reached = json.loads(
        stack.call("GET", "/v1/runs/compose/steps/1/wait?level=durable&name=weights.bin")
    )

    remote = boto3.client(
        "s3",
        endpoint_url=stack.address("SEAWEEDFS_S3_PORT"),
        aws_access_key_id=ACCESS_KEY,
        aws_secret_access_key=stack.settings["AWS_SECRET_ACCESS_KEY"],
    )
    stored = remote.get_object(Bucket="checkpoints", Key="demo/compose/1/weights.bin")
    assert receipt["size_bytes"] == len(BODY)
    assert reached["level"] == "durable"
    assert stored["Body"].read() == BODY


def test_callers_without_the_token_are_refused_but_probes_are_not(stack: Stack) -> None:
    for path in (SHARD.format(step=1), "/metrics", "/v1/status"):
        with pytest.raises(urllib.error.HTTPError) as refusal:
            stack.call("GET", path, token="wrong")
        assert refusal.value.code in {401, 403}
        refusal.value.close()

    assert stack.call("GET", "/livez", token="wrong")
    assert stack.call("GET", "/readyz", token="wrong")


def test_prometheus_scrapes_with_the_token_and_has_the_rules(stack: Stack) -> None:
    def scraped() -> Any:
        return stack.prometheus("/api/v1/query?query=cachetier_dirty_bytes")["result"]

    assert eventually(scraped)
    groups = stack.prometheus("/api/v1/rules")["groups"]
    assert {rule["health"] for group in groups for rule in group["rules"]} <= {"ok", "unknown"}
    assert sum(len(group["rules"]) for group in groups) >= 3


def test_the_service_runs_without_privileges(stack: Stack) -> None:
    running = stack.container("cachetier")

    assert running["Config"]["User"] == "10001:10001"
    assert running["HostConfig"]["ReadonlyRootfs"]
    assert running["State"]["Health"]["Status"] == "healthy"
    published = [
        port for ports in running["NetworkSettings"]["Ports"].values() for port in ports or ()
    ]
    assert {port["HostIp"] for port in published} == {"127.0.0.1"}


def test_a_rank_in_another_container_needs_the_socket_and_no_network(stack: Stack) -> None:
    program = (
        "from cachetier_client import get_shard, put_shard\n"
        f"body = bytes(range(256)) * {1 << 15}\n"
        "receipt = put_shard(body, run='compose', step=4, name='w', rank=0, world_size=1)\n"
        "assert bytes(get_shard('compose', 4, 'w')) == body\n"
        "print(receipt.level, receipt.size_bytes)\n"
    )

    printed = stack.docker.run(
        *("run", "--rm", "--network", "none", "--read-only", "--user", "10001:10001"),
        *("--volume", f"{PROJECT}_cachetier-run:/run/cachetier"),
        *("--env", "CACHETIER_URL=unix:///run/cachetier/cachetier.sock"),
        *("--entrypoint", "python", stack.settings["CACHETIER_IMAGE"], "-c", program),
    )

    assert printed.split() == ["local", str(8 << 20)]


def test_a_killed_service_serves_what_it_acknowledged(stack: Stack) -> None:
    path = SHARD.format(step=2)
    stack.call("PUT", path, BODY)
    stack.compose("kill", "--signal", "KILL", "cachetier")
    assert stack.container("cachetier")["State"]["ExitCode"] == 137

    stack.compose("up", "--detach", "--wait", "--wait-timeout", "60", "cachetier")

    assert stack.call("GET", path) == BODY


def test_a_stopped_service_ends_in_good_order_within_its_grace(stack: Stack) -> None:
    stack.call("PUT", SHARD.format(step=3), BODY)
    stack.compose("stop", "cachetier")
    stopped = stack.container("cachetier")["State"]

    stack.compose("up", "--detach", "--wait", "--wait-timeout", "60", "cachetier")

    assert stopped["ExitCode"] == 0
    assert stack.call("GET", SHARD.format(step=3)) == BODY
