"""What doctor says of limits, the kernel, the socket and a running service."""

from __future__ import annotations

from typing import Any

import pytest

from cachetier.doctor import node
from cachetier.doctor.findings import State
from cachetier.doctor.limits import CgroupLimits
from cachetier.tls import Certificate

NEED = node.SERVE_BYTES + node.DRAIN_BYTES


@pytest.mark.parametrize(
    ("limit", "state"),
    [
        (None, State.OK),
        (NEED - 1, State.FAIL),
        (NEED, State.WARN),
        (2 * NEED, State.OK),
    ],
)
def test_memory_must_hold_serve_and_its_drain(limit: int | None, state: State) -> None:
    assert node.judge_memory(CgroupLimits(memory_bytes=limit), 1, "this shell").state is state


def test_each_replica_needs_memory_for_a_drain_of_its_own() -> None:
    enough_for_one = CgroupLimits(memory_bytes=2 * NEED)
    assert node.judge_memory(enough_for_one, 1, "x").state is State.OK
    assert node.judge_memory(enough_for_one, 2, "x").state is State.WARN
    assert node.judge_memory(enough_for_one, 3, "x").state is State.FAIL


@pytest.mark.parametrize(
    ("quota", "threads", "state"),
    [
        (None, 2, State.OK),
        (0.5, 1, State.WARN),
        (1.5, 2, State.WARN),
        (4.0, 2, State.OK),
    ],
)
def test_a_quota_must_leave_cpus_for_compression(
    quota: float | None, threads: int, state: State
) -> None:
    assert node.judge_cpu(CgroupLimits(cpus=quota), 8, threads).state is state


@pytest.mark.parametrize(
    ("reads", "writes", "state"),
    [
        (None, None, State.OK),
        (None, 100_000_000, State.WARN),
        (100_000_000, None, State.WARN),
        (2_000_000_000, 2_000_000_000, State.OK),
    ],
)
def test_a_tight_limit_on_the_disk_is_a_warning(
    reads: int | None, writes: int | None, state: State
) -> None:
    limits = CgroupLimits(reads_bytes_per_second=reads, writes_bytes_per_second=writes)
    assert node.judge_io(limits).state is state


@pytest.mark.parametrize(
    ("soft", "state"), [(100, State.FAIL), (512, State.WARN), (65536, State.OK)]
)
def test_few_open_files_are_not_enough(soft: int, state: State) -> None:
    assert node.judge_files(soft, 8 << 20, "this shell").state is state


def test_pressure_is_shown_and_missing_pressure_is_a_warning() -> None:
    assert node.judge_pressure({"cpu": 3.0, "io": 0.0}).state is State.OK
    pressed = node.judge_pressure({"cpu": 3.0, "io": 80.0})
    assert pressed.state is State.WARN
    assert "other users of io:" in pressed.fix
    assert "psi=1" in node.judge_pressure({}).fix


@pytest.mark.parametrize(
    ("means", "found", "state"),
    [
        (["autogroup"], None, State.OK),
        ([], None, State.WARN),
        (["autogroup"], {"cgroup": None, "autogroup": None, "nice": 19}, State.WARN),
        ([], {"cgroup": "cpu.idle=1", "autogroup": None}, State.OK),
    ],
)
def test_courtesy_needs_more_than_nice(
    means: list[str], found: dict[str, Any] | None, state: State
) -> None:
    assert node.judge_courtesy(means, found).state is state


@pytest.mark.parametrize(
    ("safe", "client", "state"),
    [(True, "1.0", State.OK), (False, "1.0", State.FAIL), (True, "0.9", State.WARN)],
)
def test_software_that_may_lose_commits_fails(safe: bool, client: str, state: State) -> None:
    versions = {"cachetier": "1.0", "sqlite": "3.40.0"}
    assert node.judge_software(versions, safe, client, "1.0").state is state


ROOT = node.Step("/", 0o755, 0, 0)
OPEN = node.Step("/run/ct", 0o755, 500, 500)
CLOSED = node.Step("/nvme/cache", 0o700, 500, 500)
TEAM = node.Step("/nvme/team", 0o750, 500, 77)


@pytest.mark.parametrize(
    ("mode", "way", "uids", "state", "said"),
    [
        (0o600, [ROOT, CLOSED], {}, State.OK, "uid 500"),
        (0o666, [ROOT, OPEN], {1000: frozenset({1000})}, State.OK, "uids 500, 1000"),
        (0o600, [ROOT, OPEN], {1000: frozenset({1000})}, State.FAIL, "keeps uid 1000 out"),
        (0o666, [ROOT, CLOSED], {1000: frozenset({1000})}, State.FAIL, "enter /nvme/cache"),
        (0o666, [ROOT, TEAM], {1000: frozenset({77})}, State.OK, "1000"),
        (0o666, [ROOT, TEAM], {1000: frozenset({78})}, State.FAIL, "enter /nvme/team"),
        (
            0o600,
            [ROOT, CLOSED],
            {0: frozenset({0}), 500: frozenset()},
            State.OK,
            "uids 0, 500",
        ),
    ],
)
def test_who_may_use_the_socket_must_get_to_it(
    mode: int, way: list[node.Step], uids: dict[int, frozenset[int]], state: State, said: str
) -> None:
    found = node.judge_socket("/run/ct/s", mode, way, uids, 500)
    assert found.state is state
    assert said in found.measured


HEALTHY = {"state": "ready", "version": "1.0", "pid": 7, "fenced": None, "quarantined_shards": 0}


@pytest.mark.parametrize(
    ("change", "state", "said"),
    [
        ({}, State.OK, "ready"),
        ({"fenced": "a sync failed"}, State.FAIL, "a sync failed"),
        ({"quarantined_shards": 2}, State.FAIL, "2 damaged"),
        ({"state": "leaving", "reason": "the node is being left"}, State.WARN, "being left"),
        ({"version": "0.9"}, State.WARN, "version 0.9"),
    ],
)
def test_a_running_service_is_looked_at(change: dict[str, Any], state: State, said: str) -> None:
    found = node.judge_service({**HEALTHY, **change}, "", "1.0")
    assert found.state is state
    assert said in found.measured


def test_who_leaves_is_told_how_to_stay() -> None:
    found = node.judge_service({**HEALTHY, "state": "leaving"}, "", "1.0")
    assert "cachetier leave --stay" in str(found.fix)


def test_no_service_is_fine_and_a_silent_one_is_not() -> None:
    assert node.judge_service(None, "", "1.0").state is State.SKIPPED
    assert node.judge_service(None, "nobody answers", "1.0").state is State.WARN


DAY = 86_400.0


@pytest.mark.parametrize(
    ("left_days", "state", "said"),
    [
        (31, State.OK, "31 days left"),
        (29.5, State.WARN, "29 days left"),
        (1.5, State.WARN, "1 day left"),
        (-0.1, State.FAIL, "it has expired"),
    ],
)
def test_a_certificate_is_judged_by_the_days_it_has_left(
    left_days: float, state: State, said: str
) -> None:
    shown = Certificate("CN=node-7", "CN=lab", 1_700_000_000.0)
    found = node.judge_certificate(shown, shown.expires_at - left_days * DAY)
    assert found.state is state
    assert found.measured.startswith("CN=node-7, issued by CN=lab, until 2023-11-14")
    assert found.measured.endswith(said)
