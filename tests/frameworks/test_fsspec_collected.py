"""Files over ``cachetier://`` that nobody closes, wherever the collector happens to find them."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import weakref
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from cachetier_client import Client
from cachetier_client.filesystem.filesystem import CachetierFileSystem
from cachetier_client.filesystem.saves import FileSaves
from cachetier_client.io.block_file import SystemFiles

from tests.frameworks.conftest import Node
from tests.integration.two_remotes import until

BLOCK = 4 << 20


@dataclass
class CollectingFiles(SystemFiles):
    """The system's calls; the first write, once it is told to, has the collector run first."""

    go: threading.Event = field(default_factory=threading.Event)
    collected: threading.Event = field(default_factory=threading.Event)
    once: threading.Lock = field(default_factory=threading.Lock)

    def pwrite(self, descriptor: int, data: memoryview, offset: int) -> int:
        if self.once.acquire(blocking=False):
            assert self.go.wait(30)
            gc.collect()
            self.collected.set()
        return super().pwrite(descriptor, data, offset)


class TrainingError(Exception):
    """What a file is written after."""


def test_a_closed_file_does_not_keep_what_was_handled_when_it_was_opened(node: Node) -> None:
    fs = CachetierFileSystem(service_url=node.url)
    try:
        raise TrainingError
    except TrainingError as error:
        handled = weakref.ref(error)
        file = fs.open("run/7/a", "wb")
        file.close()

    assert file.closed and handled() is None
    fs.client.close()


def test_a_file_that_is_collected_by_the_thread_that_writes_it_is_kept(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, body = CollectingFiles(), os.urandom(3 * BLOCK)
    with Client(node.url, files=files) as client:
        monkeypatch.setattr(FileSaves, "client", client)
        fs = CachetierFileSystem(service_url=node.url)
        file: Any = fs.open("run/7/a", "wb")
        file.itself = file  # so that only the collector finds it
        file.write(body)
        del file
        files.go.set()

        assert files.collected.wait(30)
        until(lambda: fs.exists("run/7/a"))
        assert fs.cat("run/7/a") == body


def test_what_is_saved_into_a_file_that_nobody_closes_is_kept_and_warned_of(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    fs = CachetierFileSystem(service_url=node.url)
    tensor = torch.arange(1000)

    torch.save(tensor, fs.open("run/7/model.pt", "wb"))

    with fs.open("run/7/model.pt") as file:
        assert torch.equal(torch.load(file), tensor)
    assert "run/7/model.pt was never closed" in caplog.text
    fs.client.close()


def test_a_file_that_nobody_closes_while_an_exception_passes_leaves_nothing(node: Node) -> None:
    fs = CachetierFileSystem(service_url=node.url)
    try:
        raise TrainingError
    except TrainingError:
        file = fs.open("run/7/a", "wb")
        file.write(b"half")
    try:
        raise TrainingError
    except TrainingError:
        del file

    assert not fs.exists("run/7/a")
    fs.client.close()


@pytest.mark.parametrize(("full", "told"), [(False, ""), (True, "is not kept")])
def test_a_file_that_is_open_at_the_programs_end_is_kept_or_told_of(
    node: Node, full: bool, told: str
) -> None:
    program = f"""
import fsspec
fs = fsspec.filesystem("cachetier", service_url={node.url!r}, timeout_seconds=60)
file = fs.open("run/7/a", "wb")
file.write(b"weights")
if {full}:
    file._writer.close = lambda: 1 / 0
"""
    command = [sys.executable, "-c", program]
    ended = subprocess.run(command, check=True, capture_output=True, text=True)

    assert "run/7/a was never closed" in ended.stderr
    assert told in ended.stderr
    fs = CachetierFileSystem(service_url=node.url)
    assert fs.exists("run/7/a") == (not full)
    fs.client.close()
