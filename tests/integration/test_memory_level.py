"""The level memory through every door, over real restarts, and with a real tmpfs."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cachetier_client import Client, IntegrityError, NotDurableError
from cachetier_client.clock import SystemClock

from cachetier.errors import ConfigError, DirectoryInUseError
from cachetier.fsck.findings import Finding
from cachetier.fsck.run import FsckOptions, fsck
from cachetier.local.files.data_files import MEMORY_NAME
from tests.crash.killing import Tier
from tests.integration.serving import Served, client_by, serving
from tests.integration.test_cli import run
from tests.integration.two_remotes import until

DATA = bytes(range(256)) * 4000
SAVE: dict[str, Any] = {"run": "r", "step": 1, "save_id": "s"}


@pytest.fixture
def tmpfs() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="ct-", dir="/dev/shm"))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def settings(tmpfs: Path, tmp_path: Path) -> dict[str, Any]:
    memory = f"100 MB in {tmpfs}"
    return {"memory": memory, "cache_dir": tmp_path / "cache"}


def held(served: Served) -> None:
    """Let nothing go to the disk any more: others wait for its room."""
    served.service.store.space._wanted_bytes += 1


def checked(cache_dir: Path) -> list[Finding]:
    options = FsckOptions(data=True)
    return fsck(cache_dir, (), SystemClock(), options, capacity_bytes=1 << 30).findings


@pytest.mark.parametrize("door", ["unix", "http"])
def test_a_put_is_acknowledged_in_memory_and_comes_to_the_disk(
    settings: dict[str, Any], door: str
) -> None:
    with serving(**settings) as served, client_by(door, served) as client:
        held(served)
        assert client.put_shard(DATA, name="a", ack="memory", **SAVE).level == "memory"
        options: dict[str, Any] = {"save_id": "s", "ack": "memory", "size_bytes": len(DATA)}
        with client.open_shard("r", 1, "b", "wb", **options) as file:
            file.write(DATA)
        assert file.receipt is not None
        assert file.receipt.level == "memory"
        assert client.put_shard(b"small", name="c", ack="memory", **SAVE).level == "local"
        client.seal("r", 1, save_id="s")
        assert client.step("r", 1).levels == ("memory",)
        assert client.get_shard(run="r", step=1, name="a") == DATA
        assert client.latest("r", level="local") is None
        found = client.latest("r", level="memory")
        assert found is not None
        assert found.step == 1
        assert client.status()["memory_bytes"] == 2 * len(DATA)
        with pytest.raises(NotDurableError):
            client.wait("r", 1, "local", timeout_seconds=0.05)

        served.service.store.space._wanted_bytes -= 1
        client.wait("r", 1, "local", timeout_seconds=60)
        assert client.step("r", 1).levels == ("local",)
        assert client.put_shard(DATA, name="a", ack="memory", **SAVE).level == "local"
        until(lambda: client.status()["memory_bytes"] == 0)


def test_a_checkpoint_and_the_command_line_take_the_level(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    with serving(**settings) as served, client_by("unix", served) as client:
        held(served)
        with client.checkpoint("r", 1, save_id="s", ack="memory") as checkpoint:
            checkpoint.put(DATA, "a")
        assert checkpoint.receipts["a"].level == "memory"
        (tmp_path / "file").write_bytes(DATA)
        words = ["put", str(tmp_path / "file"), "r", "2", "--level", "memory", "--json"]
        done = run(served, *words)
        assert json.loads(done.out)["level"] == "memory"
        assert "in memory, which a power cut would take" in run(served, "status").out


def test_a_restart_finds_memory_and_a_power_cut_is_told(
    settings: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    with serving(**settings) as served, client_by("unix", served) as client:
        held(served)
        client.put_shard(DATA, name="a", ack="memory", **SAVE)
        client.seal("r", 1, save_id="s")
        assert not checked(settings["cache_dir"])
    assert not checked(settings["cache_dir"])
    with serving(**settings) as served, client_by("unix", served) as client:
        held(served)
        assert client.get_shard(run="r", step=1, name="a") == DATA
        client.put_shard(DATA, name="a", run="r", step=2, save_id="s", ack="memory")
        client.seal("r", 2, save_id="s")
        client.wait("r", 1, "memory", timeout_seconds=1)
    shutil.rmtree((settings["cache_dir"] / MEMORY_NAME).read_text().strip())
    with serving(**settings) as served, client_by("unix", served) as client:
        told = [each for each in caplog.messages if "which the machine lost" in each]
        assert any("step r/2 lost 1 shard" in each for each in told)
        assert client.step("r", 2).levels == ()
        with pytest.raises(IntegrityError):
            client.get_shard(run="r", step=2, name="a")


def test_a_directory_that_is_not_in_memory_is_refused(tmp_path: Path) -> None:
    memory = f"100 MB in {tmp_path}"
    with pytest.raises(ConfigError, match="not in memory"), serving(memory=memory):
        pass


def test_two_copies_of_a_cache_do_not_share_memory(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    with serving(**settings):
        pass
    shutil.copytree(settings["cache_dir"], tmp_path / "copy")
    with serving(**settings), pytest.raises(DirectoryInUseError):
        with serving(**{**settings, "cache_dir": tmp_path / "copy"}):
            pass


def test_another_directory_waits_until_the_first_is_empty(
    settings: dict[str, Any], tmpfs: Path
) -> None:
    with serving(**settings):
        pass
    other = f"100 MB in {tmpfs / 'other'}"
    with pytest.raises(ConfigError, match="`memory` names"):
        with serving(**{**settings, "memory": other}):
            pass
    shutil.rmtree((settings["cache_dir"] / MEMORY_NAME).read_text().strip())
    (tmpfs / "other").mkdir()
    with serving(**{**settings, "memory": other}):
        pass


@pytest.mark.parametrize("memory", ["100 MB", "100 MB in {tmpfs}"])
def test_kill_of_every_process_loses_nothing_of_memory(
    moto_s3: Any, tmp_path: Path, tmpfs: Path, memory: str
) -> None:
    with Tier(tmp_path, moto_s3) as tier:
        tier.environment["CACHETIER_MEMORY"] = memory.format(tmpfs=tmpfs)
        tier.start()
        with Client(tier.url) as client:
            level = client.put_shard(DATA, name="a", ack="memory", **SAVE).level
            assert level in ("memory", "local")
            client.seal("r", 1, save_id="s")
        tier.kill()
        tier.start()
        with Client(tier.url) as client:
            assert client.get_shard(run="r", step=1, name="a") == DATA
            client.wait("r", 1, "local", timeout_seconds=60)
        tier.stop()
    folder = Path((tmp_path / "cache" / MEMORY_NAME).read_text().strip())
    shutil.rmtree(folder, ignore_errors=True)
