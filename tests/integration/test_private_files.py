"""What a service leaves on the disk, and hands to its drain, is for its own user alone."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Iterator
from pathlib import Path

import pytest
from cachetier_client import Client

from cachetier.testing.s3_endpoint import S3Endpoint

TOKEN = "a-token-of-the-http-door"
SOMEBODY = 12345
SECRETS = {
    "CACHETIER_TOKEN": TOKEN,
    "WANDB_API_KEY": "canary-of-wandb",
    "HF_TOKEN": "canary-of-hf",
    "DB_PASSWORD": "canary-of-db",
    "OTEL_EXPORTER_OTLP_HEADERS": "canary=of-otel",
}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory, moto_s3: S3Endpoint) -> Iterator[Path]:
    """A service that was started without a umask, and holds a shard; its cache directory."""
    tmp_path = tmp_path_factory.mktemp("private")
    settings = {
        "CACHETIER_CACHE_DIR": str(tmp_path / "cache"),
        "CACHETIER_CAPACITY": "1GB",
        "CACHETIER_HTTP": "127.0.0.1:0",
        "CACHETIER_SOCKET": str(tmp_path / "s"),
        "CACHETIER_ALLOWED_UIDS": str(SOMEBODY),
        "CACHETIER_REMOTE": f"s3://{moto_s3.bucket}/private",
        "CACHETIER_REMOTE_ENDPOINT": moto_s3.url,
        "CACHETIER_REMOTE_ASSUME": moto_s3.verify,
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "cachetier", "serve", "--json"],
        env={**os.environ, **moto_s3.environment(), **settings, **SECRETS},
        stdout=subprocess.PIPE,
        umask=0,
    )
    try:
        assert process.stdout is not None
        assert b"ready" in process.stdout.readline()
        with Client(f"unix://{tmp_path / 's'}", run="run", fallback="fail") as client:
            client.put_shard(b"x" * 100_000, step=1, name="large")
            client.put_shard(b"x", step=1, name="small")
            client.seal(None, 1)
            client.wait(None, 1, level="durable", timeout_seconds=60)
        yield tmp_path / "cache"
    finally:
        process.terminate()
        process.communicate()


def test_everything_on_the_disk_is_for_its_own_user_and_the_socket_as_it_was_set(
    node: Path,
) -> None:
    found = {path: path.lstat().st_mode for path in (node, *node.rglob("*"))}

    wide = {str(path): oct(mode) for path, mode in found.items() if stat.S_IMODE(mode) & 0o077}
    assert not wide
    assert {"catalog.db", "catalog.db-wal", "catalog.db-shm"} < {path.name for path in found}
    assert stat.S_IMODE((node.parent / "s").stat().st_mode) == 0o666


def test_the_drain_knows_no_secret_but_those_of_its_bucket(node: Path) -> None:
    known = _environment_of_drain(node)

    assert "AWS_SECRET_ACCESS_KEY" in known
    assert "PATH" in known
    assert not set(SECRETS) & set(known)
    assert not [name for name in known if name.startswith("CACHETIER_")]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes somebody else")
def test_a_rank_of_another_user_writes_and_reads_by_descriptor_what_it_cannot_open(
    node: Path,
) -> None:
    with tempfile.TemporaryDirectory() as reachable:
        socket = Path(reachable) / "s"
        Path(reachable).chmod(0o755)
        os.link(node.parent / "s", socket)
        child = os.fork()
        if child == 0:
            os.setuid(SOMEBODY)
            os._exit(_as_somebody(node, f"unix://{socket}"))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def _as_somebody(cache_dir: Path, url: str) -> int:
    """Save and restore; return 0 if that goes well, and the files themselves are out of reach."""
    body = b"y" * 1_000_000
    try:
        with Client(url, run="theirs", fallback="fail") as client:
            client.put_shard(body, step=1, name="large")
            if bytes(client.get_shard("theirs", 1, "large")) != body:
                return 1
        return 2 if os.access(cache_dir / "catalog.db", os.R_OK) else 0
    except Exception:
        traceback.print_exc()
        return 3


def _environment_of_drain(cache_dir: Path) -> dict[str, str]:
    """Return what the process that holds the drain's lock was given."""
    lock = (cache_dir / "drain.lock").stat()
    for line in Path("/proc/locks").read_text().splitlines():
        fields = line.split()
        if fields[1] == "FLOCK" and fields[5].endswith(f":{lock.st_ino}"):
            pairs = Path(f"/proc/{fields[4]}/environ").read_bytes().decode().split("\0")
            return dict(pair.split("=", 1) for pair in pairs if pair)
    raise AssertionError("no drain holds its lock")
