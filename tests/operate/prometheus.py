"""A real Prometheus on a free port of loopback, and promtool: what `make prometheus` provides."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from cachetier.testing.s3_endpoint import free_ports

DEPLOY = Path(__file__).parents[2] / "deploy"
SECONDS = 60.0
OLDEST = (2, 42)  # the first that knows `keep_firing_for`

Sample = dict[str, Any]


def program(name: str) -> str:
    """Return where a program of Prometheus is: on the PATH, or where `make prometheus` put it."""
    unpacked = Path(sys.prefix) / "prometheus" / "usr" / "bin" / name
    found = shutil.which(name) or (str(unpacked) if unpacked.exists() else "")
    if not found:
        raise FileNotFoundError(f"no {name} on this machine")
    return found


def _reason_to_skip() -> str:
    try:
        program("prometheus")
        said = subprocess.run(
            (program("promtool"), "--version"), capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return "needs prometheus and promtool: `make prometheus` gets them on Debian and its kin"
    version = re.search(r"version (\d+)\.(\d+)", said.stdout + said.stderr)
    if version is None or (int(version[1]), int(version[2])) < OLDEST:
        return "needs Prometheus 2.42 or later"
    return ""


_WHY = _reason_to_skip()
needs_prometheus = pytest.mark.skipif(bool(_WHY), reason=_WHY)


def promtool(*arguments: str, given: bytes | None = None) -> str:
    """Run promtool and return what it says; it must be content."""
    done = subprocess.run(
        (program("promtool"), *arguments), input=given, capture_output=True, check=False
    )
    said = (done.stdout + done.stderr).decode()
    assert done.returncode == 0, said
    return said


@dataclass(frozen=True)
class Prometheus:
    """One that runs, and answers."""

    url: str

    def query(self, expr: str) -> list[Sample]:
        """Return the samples of an instant query, now."""
        result: list[Sample] = self.ask("query", query=expr)["result"]
        return result

    def ask(self, what: str, **parameters: str) -> Any:
        query = urllib.parse.urlencode(parameters)
        try:
            with urllib.request.urlopen(f"{self.url}/api/v1/{what}?{query}", timeout=20) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{parameters}: {error.read().decode()}") from error

    def value(self, expr: str) -> float:
        """Return the value of an expression that has one."""
        (sample,) = self.query(expr)
        return float(sample["value"][1])


def adapted(folder: Path, targets: list[str], token: str, scrape_seconds: int = 1) -> Path:
    """Write deploy/prometheus.yml with other targets, token file and intervals; return it."""
    document = yaml.safe_load((DEPLOY / "prometheus.yml").read_text(encoding="utf-8"))
    interval = f"{scrape_seconds}s"
    document["global"] = {"scrape_interval": interval, "evaluation_interval": interval}
    document["rule_files"] = [str(DEPLOY / name) for name in document["rule_files"]]
    token_file = folder / "token"
    token_file.write_text(token)
    (scrape,) = document["scrape_configs"]
    scrape["authorization"]["credentials_file"] = str(token_file)
    scrape["static_configs"] = [{"targets": targets}]
    file = folder / "prometheus.yml"
    file.write_text(yaml.safe_dump(document))
    return file


@contextmanager
def prometheus(folder: Path, configuration: Path) -> Iterator[Prometheus]:
    """Run Prometheus until the block ends; nothing of it stays but ``folder``."""
    (port,) = free_ports(1)
    command = [
        program("prometheus"),
        f"--config.file={configuration}",
        f"--storage.tsdb.path={folder / 'tsdb'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--log.level=warn",
    ]
    with (folder / "prometheus.log").open("w+") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        running = Prometheus(f"http://127.0.0.1:{port}")
        try:
            _wait_until_ready(running, process, folder)
            yield running
        finally:
            process.terminate()
            process.wait(SECONDS)


def _wait_until_ready(running: Prometheus, process: subprocess.Popen[bytes], folder: Path) -> None:
    deadline = time.monotonic() + SECONDS
    while True:
        try:
            with urllib.request.urlopen(f"{running.url}/-/ready", timeout=5):
                return
        except OSError:
            said = (folder / "prometheus.log").read_text()
            assert process.poll() is None, said
            assert time.monotonic() < deadline, said
        time.sleep(0.05)
