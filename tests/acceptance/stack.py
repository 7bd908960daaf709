"""The services of the compose file, running under a project name of their own."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from tests.acceptance import stand_ins
from tests.acceptance.docker_host import Docker, docker_host

ROOT = Path(__file__).parents[2]
PROJECT = "cachetier-acceptance"
PORTS = ("CACHETIER_HTTP_PORT", "SEAWEEDFS_S3_PORT", "PROMETHEUS_PORT", "GRAFANA_PORT")

Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Stack:
    """One project: how to talk to compose, and to the services it started."""

    docker: Docker
    settings: dict[str, str]
    project: str = PROJECT
    files: tuple[str, ...] = ("docker-compose.yml",)

    def compose(self, *arguments: str) -> str:
        """Run compose; what it printed. AssertionError, with that, where it fails."""
        files = (
            *("--project-name", self.project),
            *("--env-file", os.devnull),
            *(f"--file={ROOT / file}" for file in self.files),
        )
        return self.docker.compose(*files, *arguments, extra=self.settings, timeout_seconds=600)

    def up(self, *services: str) -> None:
        self.compose("up", "--detach", "--wait", "--wait-timeout", "180", *services)

    def down(self) -> None:
        """Remove everything of the project: containers, volumes and network."""
        self.compose("--profile", "*", "down", "--volumes", "--timeout", "30")

    def beside(self, project: str, **settings: str) -> Stack:
        """Return another project of the same images, on ports of its own."""
        return replace(
            self, project=project, settings={**self.settings, **free_ports(), **settings}
        )

    def address(self, variable: str) -> str:
        return f"http://127.0.0.1:{self.settings[variable]}"

    def call(
        self, method: str, path: str, body: bytes | None = None, token: str | None = None
    ) -> bytes:
        request = urllib.request.Request(
            self.address("CACHETIER_HTTP_PORT") + path, data=body, method=method
        )
        request.add_header("Authorization", f"Bearer {token or self.owner_token()}")
        with urllib.request.urlopen(request, timeout=60) as answer:
            content: bytes = answer.read()
        return content

    def owner_token(self) -> str:
        """Return the token that the first start made, as docs/compose.md has it."""
        file = "/var/cache/cachetier/token"
        return self.compose("exec", "--no-TTY", "cachetier", "cat", file).strip()

    def prometheus(self, path: str) -> Any:
        with urllib.request.urlopen(self.address("PROMETHEUS_PORT") + path, timeout=10) as answer:
            return json.load(answer)["data"]

    def container(self, service: str) -> dict[str, Any]:
        """Return what docker says of the container of a service."""
        name = self.compose("ps", "--all", "--quiet", service).strip()
        described: list[dict[str, Any]] = json.loads(self.docker.run("inspect", name))
        return described[0]


@contextlib.contextmanager
def running(folder: Path) -> Iterator[Stack]:
    """Build every image, start every service, and leave nothing behind."""
    with docker_host(folder) as docker:
        images = stand_ins.build(docker, folder)
        subprocess.run(("make", "wheels", f"VENV={sys.prefix}"), cwd=ROOT, check=True)
        stack = Stack(
            docker,
            {
                **images,
                **free_ports(),
                "COMPOSE_PROFILES": "store,watch",
                "CACHETIER_IMAGE": "cachetier-acceptance/cachetier",
                "CACHETIER_SCRAPE_TOKEN": secrets.token_urlsafe(32),
                "CACHETIER_CAPACITY": "1GiB",
                "AWS_ACCESS_KEY_ID": "cachetier",
                "AWS_SECRET_ACCESS_KEY": secrets.token_urlsafe(32),
            },
        )
        try:
            stack.compose("build")
            stack.up()
            yield stack
        finally:
            (folder / "compose.log").write_text(stack.compose("logs", "--no-color"))
            stack.down()


def free_ports() -> dict[str, str]:
    with contextlib.ExitStack() as held:  # all at once, so that no two are the same
        servers = [
            held.enter_context(socket.create_server(("127.0.0.1", 0), backlog=1)) for _ in PORTS
        ]
        return {
            name: str(server.getsockname()[1]) for name, server in zip(PORTS, servers, strict=True)
        }


def eventually(check: Callable[[], Answer], *, seconds: float = 60) -> Answer:
    """Call ``check`` until it returns something true, or give up with its last answer."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            answer = check()
        except OSError as error:
            last: object = error
        else:
            if answer:
                return answer
            last = answer
        assert time.monotonic() < deadline, f"still {last!r} after {seconds} s"
        time.sleep(0.5)
