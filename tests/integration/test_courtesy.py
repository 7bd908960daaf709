"""A real drain process behind training: its CPU group, its CPUs, the page cache, and hints."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cachetier_client import Client
from cachetier_client.bucket_format.uploads import PART_BYTES
from cachetier_client.identity.names import SaveIds
from cachetier_client.io.digests import BLOCK_BYTES, digest_of

from cachetier.carriers.checked_file import set_direct
from cachetier.config.settings import load
from cachetier.drain.messages import Size
from cachetier.drain.priority import cgroup
from cachetier.drain.priority.apply import AUTOGROUP_NICE
from cachetier.drain.priority.policy import CpuPriority
from cachetier.drain.serve.supervisor import DrainSettings, Supervisor
from cachetier.drain.upload.buffers import Buffers
from cachetier.drain.upload.source import FileSource
from cachetier.model.composing import pieces
from cachetier.remote.settings import RemoteSettings
from cachetier.service.service import Service
from cachetier.testing.s3_endpoint import S3Endpoint
from tests.integration.drain_node import Node, patterned, shown
from tests.integration.page_cache import drop_from_cache, resident_bytes
from tests.integration.test_drain_process import node_at, remote_of

pytestmark = pytest.mark.usefixtures("courteous_drains")

SIZE_BYTES = 2 * PART_BYTES + 70_001
FEW_PAGES_BYTES = 64 << 10


@contextmanager
def supervised(
    node: Node,
    server: S3Endpoint,
    cpus: tuple[int, ...] = (),
    remote: RemoteSettings | None = None,
) -> Iterator[Supervisor]:
    size = Size(uploads=4, parts=4, threads=2)
    settings = DrainSettings(remote or remote_of(server), node.cache_dir, size, cpus=cpus)
    supervisor = Supervisor(node.store, node.changes, node.incidents, node.clock, settings)
    supervisor.start()
    try:
        node.wait_until(lambda: "slots" in shown(supervisor)["courtesy"])
        yield supervisor
    finally:
        supervisor.stop(10.0)


@pytest.fixture
def node(tmp_path: Path, moto_s3: S3Endpoint) -> Iterator[Node]:
    with node_at(tmp_path / "cache", remote_of(moto_s3), moto_s3) as node:
        yield node


# --- the page cache -----------------------------------------------------------------------------


@pytest.mark.parametrize("direct", [True, False])
def test_reading_a_shard_leaves_the_page_cache_alone(tmp_path: Path, direct: bool) -> None:
    path, data = tmp_path / "data", patterned(SIZE_BYTES)
    path.write_bytes(data)
    path.read_bytes()
    assert resident_bytes(path) >= SIZE_BYTES - FEW_PAGES_BYTES  # the measure does measure
    drop_from_cache(path)
    blocks = [digest_of(data[at : at + BLOCK_BYTES]) for at in range(0, SIZE_BYTES, BLOCK_BYTES)]
    with closing(FileSource(os.open(path, os.O_RDONLY), blocks)) as source:
        if not source.direct:
            pytest.skip("the disk takes no O_DIRECT")
        if not direct:
            source.direct = set_direct(source.descriptor, wanted=False)
        for part in pieces(SIZE_BYTES, PART_BYTES):
            with Buffers().lend(part.size_bytes) as buffer:
                assert source.read(part, buffer)[0] == data[part.start :][: part.size_bytes]

    assert resident_bytes(path) <= (0 if direct else FEW_PAGES_BYTES)


def test_a_whole_drain_leaves_the_page_cache_alone(node: Node, moto_s3: S3Endpoint) -> None:
    ids = SaveIds("cold", 7, "save-1")
    node.put(ids, "large", patterned(SIZE_BYTES))
    node.seal(ids)
    files = [path for path in (node.cache_dir / "data").rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) >= SIZE_BYTES
    for path in files:
        drop_from_cache(path)
    with supervised(node, moto_s3):
        node.wait_durable(ids, 60)

    assert [resident_bytes(path) for path in files] == [0] * len(files)


# --- the CPU ------------------------------------------------------------------------------------


def test_the_drain_is_in_a_group_of_its_own_that_goes_with_it(
    node: Node, moto_s3: S3Endpoint
) -> None:
    name = f"{cgroup.NAME}{node.store.store_id}"
    left = cgroup.make_group(name)  # as after a kill -9 of serve and drain
    if left is None:
        pytest.skip("no control group for the CPU can be made here")
    with supervised(node, moto_s3) as supervisor:
        state = shown(supervisor)
        groups = Path(f"/proc/{state['pid']}/cgroup").read_text()
        assert f"/{name}\n" in groups
        assert state["courtesy"]["cgroup"] in ("cpu.weight=7", "cpu.shares=70")
        assert state["courtesy"]["autogroup"] is None
        assert left.path.exists()
    assert not left.path.exists()


def test_where_no_group_can_be_made_the_sessions_group_yields() -> None:
    if not Path("/proc/self/autogroup").exists():
        pytest.skip("this kernel does not group by session")
    code = (
        "import json; from cachetier.drain.priority import apply\n"
        "apply.make_group = lambda name: None\n"
        "print(json.dumps(apply.lower_priority('none').report))\n"
    )
    command = [sys.executable, "-c", code]
    ended = subprocess.run(
        command, check=True, capture_output=True, timeout=60, start_new_session=True
    )
    report = json.loads(ended.stdout)

    assert report["cgroup"] is None
    assert report["autogroup"] == AUTOGROUP_NICE[CpuPriority.LARGE_SHARE]
    assert report["nice"] == 19
    assert report["io"] == "idle"
    assert report["cpus"] is None


def test_the_drain_keeps_to_its_cpus_on_every_thread(node: Node, moto_s3: S3Endpoint) -> None:
    cpu = max(os.sched_getaffinity(0))
    with supervised(node, moto_s3, cpus=(cpu,)) as supervisor:
        state = shown(supervisor)
        assert state["courtesy"]["cpus"] == [cpu]
        threads = [int(path.name) for path in Path(f"/proc/{state['pid']}/task").iterdir()]
        assert len(threads) > 4
        for thread in threads:
            assert os.sched_getaffinity(thread) == {cpu}
            assert os.getpriority(os.PRIO_PROCESS, thread) == 19


def test_the_drain_opens_its_store_before_it_steps_back(
    node: Node, moto_s3: S3Endpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Last in line on a busy node, a client took up to a minute to make."""
    keys = {"Version": 1, "AccessKeyId": "key", "SecretAccessKey": "secret"}
    seen, program = tmp_path / "nice", tmp_path / "program"
    program.write_text(f"#!/bin/sh\nnice >> {seen}\necho '{json.dumps(keys)}'\n")
    program.chmod(0o700)
    (tmp_path / "aws").write_text(f"[profile of-node]\ncredential_process = {program}\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "aws"))
    remote = replace(remote_of(moto_s3), profile="of-node")

    with supervised(node, moto_s3, remote=remote) as supervisor:
        node.wait_until(lambda: shown(supervisor)["courtesy"]["nice"] == 19)

    assert seen.read_text().split()[0] == str(os.getpriority(os.PRIO_PROCESS, 0))


# --- hints --------------------------------------------------------------------------------------


def test_the_drain_hears_of_busy_ranks_and_says_what_it_does(
    node: Node, moto_s3: S3Endpoint
) -> None:
    with supervised(node, moto_s3) as supervisor:
        phases = supervisor.queue.phases
        phases.report("rank-0", busy=True)
        phases.report("rank-1", busy=True)
        phases.report("rank-2", busy=False)
        node.wait_until(lambda: shown(supervisor)["courtesy"]["busy_ranks"] == 2)
        node.wait_until(lambda: shown(supervisor)["courtesy"]["slots"] == 1)
        courtesy = shown(supervisor)["courtesy"]
        assert courtesy["restraint"] in ("compressor", "reader")
        assert courtesy["slots_limit"] == 2
        assert set(courtesy["pressure"]) == {"cpu", "io"}

        phases.report("rank-0", busy=False)
        phases.report("rank-1", busy=False)
        node.wait_until(lambda: shown(supervisor)["courtesy"]["restraint"] == "none")
        node.wait_until(lambda: shown(supervisor)["courtesy"]["slots"] == 2)


def test_the_settings_of_a_service_reach_its_drain(tmp_path: Path, moto_s3: S3Endpoint) -> None:
    cpu = max(os.sched_getaffinity(0))
    settings = load(
        {
            "cache_dir": tmp_path / "cache",
            "capacity": "1 GB",
            "http": "",
            "remote": f"s3://{moto_s3.bucket}/courtesy",
            "remote_endpoint": moto_s3.url,
            "remote_assume": moto_s3.verify,
            "drain_cores": f"3 of {cpu}",
        }
    )
    with pytest.MonkeyPatch.context() as patch:
        for name, value in moto_s3.environment().items():
            patch.setenv(name, value)
        service = Service(settings)
        service.start()
        try:
            with Client(f"unix://{service.socket}") as client, client.training_step():
                courtesy = _courtesy_with(service, busy_ranks=1)
        finally:
            service.stop()

    assert courtesy["cpus"] == [cpu]
    assert courtesy["slots_limit"] == 3


def _courtesy_with(service: Service, busy_ranks: int) -> dict[str, Any]:
    """Wait until the drain has heard of so many ranks; return what it says of itself."""

    def said() -> dict[str, Any]:
        found: dict[str, Any] = service.operations.status()["drain"]["courtesy"]
        return found

    changes = service._changes
    assert changes.wait_for(lambda: said().get("busy_ranks") == busy_ranks, 30.0, 0.05), said()
    return said()
