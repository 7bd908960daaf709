"""`top` against a real service: on a terminal, in a pipe, and with the service coming and going."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import select
import signal
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cachetier_client import Client

from tests.integration.serving import serving
from tests.integration.test_cli import run

SECONDS = 40.0


class Terminal:
    """A terminal of 80 by 24 with `top` on it."""

    def __init__(self, url: str, *words: str) -> None:
        self.main, self.other = pty.openpty()
        termios.tcsetwinsize(self.other, (24, 80))
        self.before = termios.tcgetattr(self.other)
        self.output = ""
        self.process = subprocess.Popen(
            [sys.executable, "-m", "cachetier", "top", "--interval", "0.2s", *words],
            stdin=self.other,
            stdout=self.other,
            stderr=self.other,
            env={**os.environ, "CACHETIER_URL": url, "TERM": "xterm", "NO_COLOR": "1"},
        )

    def wait_for(self, *texts: str) -> None:
        """Read until each of ``texts`` was drawn after this call."""
        self.output, until = "", time.monotonic() + SECONDS
        while not all(text in self.output for text in texts):
            assert time.monotonic() < until, (texts, self.output[-3000:])
            if select.select([self.main], [], [], 0.5)[0]:
                self.output += os.read(self.main, 65536).decode(errors="replace")

    def ends(self) -> int:
        """Wait for the end, reading what is still drawn."""
        until = time.monotonic() + SECONDS
        while self.process.poll() is None and time.monotonic() < until:
            if select.select([self.main], [], [], 0.1)[0]:
                self.output += os.read(self.main, 65536).decode(errors="replace")
        while select.select([self.main], [], [], 0)[0]:
            self.output += os.read(self.main, 65536).decode(errors="replace")
        return self.process.wait(1)


@contextlib.contextmanager
def watched(url: str, *words: str) -> Iterator[Terminal]:
    terminal = Terminal(url, *words)
    try:
        yield terminal
    finally:
        if terminal.process.poll() is None:
            terminal.process.kill()
            terminal.process.wait()
        os.close(terminal.main)
        os.close(terminal.other)


@pytest.mark.parametrize(
    ("how", "code"), [("q", 0), ("interrupt", 130), ("terminate", 128 + signal.SIGTERM)]
)
def test_it_draws_until_it_is_ended_and_leaves_the_terminal_as_it_was(how: str, code: int) -> None:
    with serving() as served, watched(served.unix_url) as terminal:
        terminal.wait_for("Losing", "remote", "q: end", "ready")
        if how == "q":
            os.write(terminal.main, b"q")
        elif how == "interrupt":
            terminal.process.send_signal(signal.SIGINT)
        else:
            terminal.process.terminate()
        assert terminal.ends() == code
        assert termios.tcgetattr(terminal.other) == terminal.before
        assert "\x1b[?1049l" in terminal.output  # the screen from before is back
        assert "\x1b[?25h" in terminal.output  # and so is the cursor
        assert "Traceback" not in terminal.output


def test_it_says_that_the_service_is_away_and_goes_on_when_it_is_back() -> None:
    with tempfile.TemporaryDirectory(prefix="ct-") as scratch, contextlib.ExitStack() as service:
        place: dict[str, Any] = {
            "cache_dir": Path(scratch) / "cache",
            "socket": Path(scratch) / "s",
        }
        service.enter_context(serving(**place))
        with watched(f"unix://{scratch}/s") as terminal:
            terminal.wait_for("ready")
            service.close()
            terminal.wait_for("away for", "asking on")
            with serving(**place):
                terminal.wait_for("ready")
                os.write(terminal.main, b"q")
                assert terminal.ends() == 0


def test_once_prints_what_status_says() -> None:
    with serving() as served:
        with Client(served.unix_url) as client:
            client.put_shard(bytes(1 << 20), run="r", step=3, name="a")
        shown = run(served, "top", "--once", "--interval", "0.1s")
        looked = run(served, "top", "--once", "--interval", "0.1s", "--json").json["nodes"][0]
        said = run(served, "status", "--json").json
    assert shown.code == 0
    assert "Losing this node now costs" in shown.out
    assert "1.0 MB" in shown.out
    for name in ("state", "dirty_bytes", "used_bytes", "capacity_bytes", "warnings"):
        assert looked[name] == said[name]
    assert [each["run"] for each in looked["exposure"]] == ["r"]
    assert looked["put_bytes_per_second"] == 0.0
    assert [each["name"] for each in looked["remotes"]] == [
        each["name"] for each in said["remotes"]
    ]


def test_of_several_nodes_one_that_is_away_does_not_hide_the_others() -> None:
    with serving() as served:
        urls = ["--url", served.unix_url, "--url", "unix:///nobody"]
        shown = run(None, "top", "--once", "--interval", "0.1s", *urls)
        nodes = run(None, "top", "--once", "--interval", "0.1s", "--json", *urls).json["nodes"]
    assert shown.code == 4
    assert "2 nodes, 1 ready" in shown.out
    assert [node["state"] for node in nodes] == ["ready", "away"]
    assert "cannot connect" in nodes[1]["error"]


def test_without_a_terminal_it_says_what_to_do() -> None:
    outcome = run(None, "top")
    assert outcome.code == 2
    assert "Next: Add --once, or --json." in outcome.err


def test_json_is_a_document_a_line_until_it_is_ended() -> None:
    with serving() as served:
        words = [sys.executable, "-m", "cachetier", "top", "--json", "--interval", "0.1s"]
        environment = {**os.environ, "CACHETIER_URL": served.unix_url}
        with subprocess.Popen(words, stdout=subprocess.PIPE, env=environment, text=True) as process:
            assert process.stdout is not None
            lines = [json.loads(process.stdout.readline()) for _ in range(3)]
            process.send_signal(signal.SIGINT)
            assert process.wait(SECONDS) == 130
    assert [line["nodes"][0]["state"] for line in lines] == ["ready"] * 3
    assert lines[0]["at"] < lines[2]["at"]
