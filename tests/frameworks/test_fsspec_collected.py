"""Files over ``cachetier://`` that nobody closes, wherever the collector happens to find them."""

from __future__ import annotations

import gc
import os
import threading
import weakref
from dataclasses import dataclass, field
from typing import Any

import pytest
from cachetier_client import Client
from cachetier_client.filesystem.filesystem import CachetierFileSystem
from cachetier_client.filesystem.saves import FileSaves
from cachetier_client.io.block_file import SystemFiles

from tests.frameworks.conftest import Node

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


@pytest.mark.filterwarnings("ignore:shard a was never closed:ResourceWarning")
def test_a_file_that_is_collected_by_the_thread_that_writes_it_leaves_nothing(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = CollectingFiles()
    with Client(node.url, files=files) as client:
        monkeypatch.setattr(FileSaves, "client", client)
        fs = CachetierFileSystem(service_url=node.url)
        file: Any = fs.open("run/7/a", "wb")
        file.itself = file  # so that only the collector finds it
        file.write(os.urandom(3 * BLOCK))
        del file
        files.go.set()

        assert files.collected.wait(30)
        assert not fs.exists("run/7/a")
