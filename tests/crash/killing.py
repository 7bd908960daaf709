"""A real service under load, killed with SIGKILL again and again, and judged from the bucket alone.

The oracle lives outside the service: each rank notes what was acknowledged to it. A kill counts
only if something acknowledged was still dirty at that instant; otherwise it proves nothing and is
repeated.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import apsw
from cachetier_client import Checkpoint, Client
from cachetier_client.bucket_format.documents import Manifest, ManifestState, decode
from cachetier_client.bucket_format.layout import Layout, rank_of_part
from cachetier_client.errors import CachetierClientError
from cachetier_client.io.digests import digest_of

from cachetier.testing.s3_endpoint import S3Endpoint

RANKS = 2
PREFIX = "killed"
SIZES = (0, 1, 3_000, 65_536, 65_537, 700_000, 5_000_000)


@dataclass(slots=True)
class History:
    """What the ranks know: shards acknowledged, parts sealed, names tried."""

    acked: dict[tuple[int, str], int] = field(default_factory=dict)
    sealed: dict[int, set[int]] = field(default_factory=dict)
    tried: set[tuple[int, str]] = field(default_factory=set)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def steps_sealed_by_all(self) -> list[int]:
        return [step for step, ranks in self.sealed.items() if len(ranks) == RANKS]


class Rank(threading.Thread):
    """Saves step after step until the service is gone."""

    def __init__(self, url: str, run: str, rank: int, seed: int, first_step: int, history: History):
        super().__init__(name=f"rank-{rank}", daemon=True)
        self._url = url
        self._run_name = run
        self._rank = rank
        self._random = random.Random(seed * RANKS + rank)
        self._step = first_step
        self._history = history
        self.refusal: CachetierClientError | None = None

    def run(self) -> None:
        client = Client(self._url, fallback="fail")
        try:
            while True:
                self._save(client, self._step)
                self._step += 1
        except CachetierClientError as error:
            self.refusal = error

    def _save(self, client: Client, step: int) -> None:
        save = client.checkpoint(
            self._run_name, step, rank=self._rank, world_size=RANKS, save_id=f"save-{step}"
        )
        with save as checkpoint:
            for number in range(3):
                self._put(checkpoint, step, f"rank{self._rank}/shard-{number}")
        with self._history.lock:
            self._history.sealed.setdefault(step, set()).add(self._rank)

    def _put(self, checkpoint: Checkpoint, step: int, name: str) -> None:
        data = self._random.randbytes(self._random.choice(SIZES))
        with self._history.lock:
            self._history.tried.add((step, name))
        checkpoint.put(data, name)
        with self._history.lock:
            self._history.acked[step, name] = digest_of(data)


class Tier:
    """One node: a cache directory and the service on it, as a process of its own."""

    def __init__(self, directory: Path, endpoint: S3Endpoint) -> None:
        self.cache_dir = cache_dir = directory / "cache"
        self._log = (directory / "service.log").open("ab")
        self.url = f"unix://{cache_dir}/s"
        self.environment = {
            **{k: v for k, v in os.environ.items() if not k.startswith("CACHETIER_")},
            "CACHETIER_CACHE_DIR": str(cache_dir),
            "CACHETIER_SOCKET": str(cache_dir / "s"),
            "CACHETIER_HTTP": "",
            "CACHETIER_CAPACITY": "2GB",
            "CACHETIER_REMOTE": f"s3://{endpoint.bucket}/{PREFIX}",
            "CACHETIER_REMOTE_ENDPOINT": endpoint.url,
            **endpoint.environment(),
        }
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None and self._process.poll() is None:
            self.kill()
        self._log.close()

    def start(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "cachetier", "serve"],
            env=self.environment,
            stdout=subprocess.DEVNULL,
            stderr=self._log,
        )
        deadline = time.monotonic() + 90
        while not (self.cache_dir / "s").is_socket() or not self._answers():
            assert self._process.poll() is None, "the service ended while starting; see service.log"
            assert time.monotonic() < deadline, "the service did not start within 90 s"
            time.sleep(0.02)

    def _answers(self) -> bool:
        try:
            with Client(self.url, fallback="fail") as client:
                client.status()
        except CachetierClientError:
            return False
        return True

    def kill(self) -> None:
        """SIGKILL the service; its drain must follow by itself."""
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def stop(self) -> None:
        assert self._process is not None
        self._process.terminate()
        self._process.wait(30)

    def dirty(self) -> set[tuple[int, str]]:
        """Read from the dead service's catalog which shards are dirty, without touching it."""
        copy = self.cache_dir.parent / "autopsy"
        shutil.rmtree(copy, ignore_errors=True)
        copy.mkdir()
        for name in ("catalog.db", "catalog.db-wal"):
            if (self.cache_dir / name).exists():
                shutil.copy(self.cache_dir / name, copy)
        connection = apsw.Connection(str(copy / "catalog.db"))
        rows = connection.execute(
            "SELECT saves.step, shards.name FROM shards JOIN saves ON saves.number = shards.save "
            "WHERE shards.state = 'dirty'"
        ).fetchall()
        connection.close()
        return {(int(str(step)), str(name)) for step, name in rows}


def judge(endpoint: S3Endpoint, run: str, history: History) -> None:
    """Assert, from the bucket alone, that every acknowledged shard and sealed step is there."""
    objects = endpoint.store()
    layout = Layout(PREFIX)
    keys = set(objects.list(layout.run_prefix(run)).keys)
    for (step, name), digest in history.acked.items():
        key = layout.shard_key(run, str(step), name)
        assert key in keys, f"acknowledged {key} is lost"
        body = objects.get(key)
        assert digest_of(body) == digest, f"acknowledged {key} has other bytes"
    for step in history.steps_sealed_by_all():
        key = layout.manifest_key(run, step)
        manifest = decode(Manifest, objects.get(key), key)
        assert manifest.state is ManifestState.PUBLISHED, f"sealed step {step} is not published"
        listed = {shard.name for shard in manifest.shards}
        assert listed == {name for at, name in history.acked if at == step}
    tried = {layout.shard_key(run, str(step), name) for step, name in history.tried}
    strays = {
        key
        for key in keys - tried
        if not key.endswith("/.cachetier/manifest.json") and rank_of_part(key) is None
    }
    assert not strays, f"objects nobody put: {sorted(strays)}"
