"""Doctor and bench on this machine, as verbs too: what they print, how they end, what is left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cachetier.doctor import rawdisk
from cachetier.doctor.checks import NODE_CHECKS, examine
from cachetier.doctor.disk import largest_known
from cachetier.doctor.findings import CheckResult, State
from cachetier.doctor.scratch import PREFIX, scratch
from cachetier.doctor.subject import Subject
from cachetier.local.repair.open_catalog import largest_save, peeked
from cachetier.testing.s3_endpoint import S3Endpoint
from cachetier.testing.s3proxy import S3Proxy
from cachetier.testing.troubles import ALWAYS, Fault, Trouble
from tests.integration.doctoring import everything_in, patient, signed_in
from tests.integration.serving import Served, serving
from tests.integration.test_cli import Outcome, run

SECONDS = 60.0
MEMORY = Path("/dev/shm")


@pytest.fixture
def served() -> Iterator[Served]:
    with serving() as served:
        yield served


def findings_of(looked_at: Subject, *names: str) -> dict[str, CheckResult]:
    return {finding.name: finding for _, finding in examine(looked_at, names)}


def doctor(*arguments: str, remote: str = "s3://bucket/p") -> Outcome:
    return run(None, "doctor", "--remote", remote, "--skip-remote", *arguments)


def test_every_check_of_a_node_can_be_made_here(tmp_path: Path) -> None:
    names = [check.name for check in NODE_CHECKS]
    findings = findings_of(patient(tmp_path / "cache"), *names)
    assert list(findings) == names
    assert findings["sync"].values["count"] >= 10
    assert findings["write-rate"].values["size_bytes"] == 8 << 20
    assert findings["software"].state is State.OK
    assert list(tmp_path.iterdir()) == [], "the directory that had to be made is still there"


def test_memory_is_found_out_by_its_name_and_by_its_sync() -> None:
    looked_at = patient(MEMORY / f"cachetier-{os.getpid()}")
    findings = findings_of(looked_at, "filesystem", "device", "sync")
    assert findings["filesystem"].state is State.FAIL
    assert "tmpfs" in findings["filesystem"].measured
    assert findings["device"].state is State.SKIPPED
    assert findings["sync"].state is State.FAIL
    assert "does not reach a disk" in findings["sync"].measured


def test_a_directory_that_others_may_write_to_is_found_before_the_start(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    found = findings_of(patient(tmp_path), "directory")["directory"]
    assert found.state is State.FAIL
    assert "others may write" in found.measured
    assert f"chmod go-w {tmp_path}" in found.fix


def test_a_directory_that_cannot_be_made_is_a_finding_and_not_a_crash(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    finding = findings_of(patient(tmp_path / "file" / "cache"), "sync")["sync"]
    assert finding.state is State.FAIL
    assert "service's user" in finding.fix


def test_the_largest_save_is_read_from_a_catalog_that_stays_as_it_is(served: Served) -> None:
    looked_at = patient(served.cache_dir)
    assert largest_known(looked_at) is None
    served.put("a", b"x" * 5000)
    served.put("b", b"x" * 200_000)
    assert largest_known(patient(served.cache_dir)) == (205_000, "of this node's so far")
    assert "205 kB" in findings_of(patient(served.cache_dir), "space")["space"].measured
    told = patient(served.cache_dir, checkpoint_bytes=10**15)
    assert findings_of(told, "space")["space"].state is State.FAIL


def test_a_catalog_at_rest_is_read_without_a_trace(tmp_path: Path) -> None:
    cache_dir = tmp_path / "cache"
    assert largest_save(cache_dir) is None
    with serving(cache_dir) as served:
        served.put("a", b"x" * 5000)
    before = {path.name: path.stat().st_mtime_ns for path in cache_dir.iterdir()}
    with peeked(cache_dir) as sql:
        assert sql is not None
    assert largest_save(cache_dir) == 5000
    assert {path.name: path.stat().st_mtime_ns for path in cache_dir.iterdir()} == before


def test_a_scratch_directory_goes_and_so_does_what_a_killed_doctor_left(tmp_path: Path) -> None:
    old, new = tmp_path / f"{PREFIX}old", tmp_path / f"{PREFIX}new"
    for left in (old, new):
        left.mkdir()
        (left / "file").touch()
    os.utime(old, (0, 0))
    with pytest.raises(KeyboardInterrupt), scratch(tmp_path) as place:
        (place / "large").write_bytes(b"x")
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == [new]


def test_files_come_back_from_the_bare_disk_as_they_were_written(tmp_path: Path) -> None:
    data = rawdisk.random_memory(9 << 20)
    into = rawdisk.random_memory(9 << 20)
    assert data != into
    assert rawdisk.write_file(tmp_path / "f", data) > 0
    assert rawdisk.read_file(tmp_path / "f", into) > 0
    assert data == into


# --- the verb ------------------------------------------------------------------------------------


def test_the_verb_prints_each_finding_and_its_fix(tmp_path: Path) -> None:
    done = doctor("--cache-dir", str(MEMORY / "x"), "--only", "filesystem", "--only", "software")
    assert done.code == 1
    assert "  fail    filesystem  cache_dir /dev/shm/x is on tmpfs" in done.out
    assert "fix: Put cache_dir on a local ext4 or XFS disk." in done.out
    assert done.out.endswith("\n1 ok, 1 fail\n")


def test_the_verb_prints_one_document(tmp_path: Path) -> None:
    arguments = ["--cache-dir", str(tmp_path), "--only", "direct-io", "--only", "service"]
    done = doctor(*arguments, "--json")
    assert done.code == 0
    by_name = {each["name"]: each for each in done.json["findings"]}
    assert set(by_name) == {"direct-io", "service"}
    assert by_name["direct-io"]["values"]["direct_io"] in (True, False)
    assert set(by_name["service"]) == {
        *("name", "group", "remote", "state", "measured", "fix", "values")
    }


def test_the_verb_names_the_nearest_check(tmp_path: Path) -> None:
    done = doctor("--cache-dir", str(tmp_path), "--only", "synk", "--json")
    assert done.code == 2
    assert done.json["error"]["hint"] == "Did you mean sync?"
    assert doctor("--cache-dir", str(tmp_path), "--checkpoint-size", "huge").code == 2
    assert run(None, "doctor", "--cache-dir", str(tmp_path)).code == 2


def test_the_verb_looks_at_a_service_that_runs(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CACHETIER_SOCKET", served.service.socket)
    arguments = ["--cache-dir", str(served.cache_dir), "--only", "service", "--only", "files"]
    done = doctor(*arguments, "--json")
    service, files = sorted(done.json["findings"], key=lambda each: str(each["name"]) == "files")
    assert (service["state"], files["state"]) == ("ok", "ok")
    assert f"pid {os.getpid()}" in service["measured"]
    assert f"the service (pid {os.getpid()})" in files["measured"]


def test_a_socket_that_nobody_answers_is_a_warning(tmp_path: Path) -> None:
    (tmp_path / "cachetier.sock").touch()
    done = doctor("--cache-dir", str(tmp_path), "--only", "service")
    assert "warn    service" in done.out


def test_a_doctor_that_is_ended_leaves_nothing(
    seaweed_s3: S3Endpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    signed_in(monkeypatch, seaweed_s3.credentials)
    bucket = "doctor-ended"
    seaweed_s3.create_bucket(bucket)
    with S3Proxy(seaweed_s3.url) as proxy:
        proxy.troubles.add(Fault(Trouble.STALL, "CompleteMultipartUpload", ALWAYS))
        process = _started(tmp_path / "cache", f"s3://{bucket}/p", proxy.url)
        deadline = time.monotonic() + SECONDS
        while not proxy.troubles.fired[Trouble.STALL] and time.monotonic() < deadline:
            time.sleep(0.05)
        assert everything_in(seaweed_s3, bucket) != []
        process.send_signal(signal.SIGTERM)
        assert process.wait(SECONDS) == 128 + signal.SIGTERM
    assert everything_in(seaweed_s3, bucket) == []
    assert not (tmp_path / "cache").exists()


def _started(cache_dir: Path, remote: str, endpoint: str) -> subprocess.Popen[Any]:
    where = ["--cache-dir", str(cache_dir), "--remote", remote, "--remote-endpoint", endpoint]
    only = ["--only", "remote", "--only", "direct-io"]
    return subprocess.Popen(
        [sys.executable, "-m", "cachetier", "doctor", *where, *only], stdout=subprocess.DEVNULL
    )


# --- bench ---------------------------------------------------------------------------------------


def test_bench_measures_both_sides_and_leaves_no_shard(served: Served) -> None:
    done = run(served, "bench", "--size", "2 MiB", "--ranks", "2", "--rounds", "1", "--json")
    assert done.code == 0, done.err
    measured = {row["what"]: row for row in done.json["measured"]}
    assert set(measured) == {"put 4 KiB, p50", "put 4 KiB, p99", "put", "get"}
    assert all(
        row["service"] > 0 and row["disk"] > 0 and row["ratio"] > 0 for row in measured.values()
    )
    assert served.data_files() == []
    status = json.loads(run(served, "status", "--json").out)
    assert (status["dirty_bytes"], status["used_bytes"]) == (0, 0)
    assert (status["exposure"], json.loads(run(served, "ls", "--json").out)["runs"]) == ([], [])
    assert not list(served.cache_dir.glob(".bench-*"))


def test_bench_refuses_to_drive_out_what_others_need(served: Served) -> None:
    done = run(served, "bench", "--size", "2 GB", "--json")
    assert done.code == 6
    assert "smaller --size" in done.json["error"]["hint"]
    assert run(served, "bench", "--size", "much").code == 2


def test_bench_without_a_service_says_so(tmp_path: Path) -> None:
    done = run(None, "bench", "--url", f"unix://{tmp_path}/none", "--json")
    assert (done.code, done.json["error"]["code"]) == (4, "unavailable")
