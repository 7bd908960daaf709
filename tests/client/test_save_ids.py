"""Save identity: equal on all ranks of an incarnation, different for every other."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cachetier_client import InvalidNameError, SaveIdentityError
from cachetier_client.identity.names import checked_save_id
from cachetier_client.identity.processes import Processes
from cachetier_client.identity.ranks import place_of
from cachetier_client.identity.save_ids import Claim, SaveIdSource, agreed_id

AGENT, RANK_0, RANK_1, WRAPPED, HELPER = 50, 60, 61, 62, 63
TORCHRUN = {
    "RANK": "0",
    "WORLD_SIZE": "2",
    "LOCAL_WORLD_SIZE": "2",
    "TORCHELASTIC_RUN_ID": "fixed-by-the-user",
    "TORCHELASTIC_RESTART_COUNT": "0",
    "MASTER_PORT": "29500",
}
OTHER_LAUNCHER = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
SLURM = {
    "SLURM_JOB_ID": "77",
    "SLURM_STEP_ID": "1",
    "SLURM_PROCID": "0",
    "SLURM_STEP_NUM_TASKS": "16",
    "SLURM_STEP_TASKS_PER_NODE": "8(x2)",
    "SLURM_NODEID": "0",
}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "0",
    "OMPI_COMM_WORLD_SIZE": "16",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "8",
    "OMPI_MCA_orte_precondition_transports": "0099b3eaa2c1547e-afb287789133a954",
}
TWO_NODES = {"RANK": "0", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"}


class FakeProc:
    """A ``/proc`` in a folder; ``as_pid`` says who looks."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "sys/kernel/random").mkdir(parents=True)
        self.boot("boot-1")
        self.add(1, 0, 0, {})

    def boot(self, boot_id: str) -> None:
        (self.root / "sys/kernel/random/boot_id").write_text(f"{boot_id}\n")

    def add(self, pid: int, parent: int, started: int, environ: dict[str, str]) -> None:
        folder = self.root / str(pid)
        folder.mkdir(exist_ok=True)
        fields = ["S", str(parent), *("0" for _ in range(17)), str(started), "0"]
        (folder / "stat").write_text(f"{pid} (py) thon (x)) {' '.join(fields)}")
        entries = (f"{key}={value}\0" for key, value in environ.items())
        (folder / "environ").write_text("".join(entries))


@pytest.fixture
def proc(tmp_path: Path) -> FakeProc:
    """An agent with two ranks, one of them under a shell, and a helper process of the other."""
    fake = FakeProc(tmp_path)
    fake.add(AGENT, 1, 500, {"PATH": "/bin"})
    fake.add(RANK_0, AGENT, 510, TORCHRUN)
    fake.add(HELPER, RANK_0, 520, TORCHRUN)
    fake.add(WRAPPED, AGENT, 511, TORCHRUN)
    fake.add(RANK_1, WRAPPED, 512, TORCHRUN)
    return fake


@pytest.fixture
def derive(proc: FakeProc, monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[str, str], int], str]:
    def derived(environ: dict[str, str], pid: int = RANK_0) -> str:
        monkeypatch.setattr(os, "getpid", lambda: pid)
        ids = SaveIdSource(Processes(proc.root), new_id=iter_ids("random"))
        return checked_save_id(ids.derive(environ, place_of(environ)))

    return derived


Derive = Callable[..., str]


def iter_ids(prefix: str) -> Callable[[], str]:
    numbers = itertools.count()
    return lambda: f"{prefix}{next(numbers)}"


def test_the_environment_may_name_it(derive: Derive) -> None:
    assert derive({**TORCHRUN, "CACHETIER_SAVE_ID": "mine"}) == "mine"
    with pytest.raises(InvalidNameError):
        derive({"CACHETIER_SAVE_ID": "not ~ valid"})


def test_all_ranks_of_an_agent_agree_under_shells_and_in_helpers_too(derive: Derive) -> None:
    ids = {
        derive({**TORCHRUN, "RANK": rank}, pid)
        for rank, pid in (("0", RANK_0), ("1", RANK_1), ("0", HELPER))
    }

    assert len(ids) == 1
    assert ids.pop().startswith("r0-")


def test_a_restart_in_place_is_another(derive: Derive) -> None:
    restarted = {**TORCHRUN, "TORCHELASTIC_RESTART_COUNT": "1"}

    assert derive(TORCHRUN) != derive(restarted)
    assert derive(restarted).startswith("r1-")


def test_a_plain_restart_with_the_same_run_id_is_another(derive: Derive, proc: FakeProc) -> None:
    before = derive(TORCHRUN)
    proc.add(AGENT, 1, 900, {})  # the number was used again

    assert derive(TORCHRUN) != before


def test_a_restart_after_a_reboot_is_another(derive: Derive, proc: FakeProc) -> None:
    before = derive(TORCHRUN)
    proc.boot("boot-2")

    assert derive(TORCHRUN) != before


def test_a_world_of_one_is_its_process(proc: FakeProc) -> None:
    ids = SaveIdSource(Processes(proc.root), new_id=iter_ids("random"))

    assert ids.derive({}, place_of({})) == ids.derive({}, place_of({})) == "p-random0"
    assert SaveIdSource().derive({}, place_of({})) != SaveIdSource().derive({}, place_of({}))


@pytest.mark.parametrize(
    "changes", [{"SLURM_JOB_ID": "78"}, {"SLURM_STEP_ID": "2"}, {"SLURM_RESTART_COUNT": "1"}]
)
def test_a_slurm_step_is_its_job_step_and_restart(derive: Derive, changes: dict[str, str]) -> None:
    assert derive(SLURM) == derive({**SLURM, "SLURM_PROCID": "9", "SLURM_NODEID": "1"})
    assert derive({**SLURM, **changes}) != derive(SLURM)


def test_open_mpi_is_the_random_key_of_its_mpirun(derive: Derive) -> None:
    other = {
        **OPEN_MPI,
        "OMPI_MCA_orte_precondition_transports": "1111111111111111-2222222222222222",
    }

    assert derive(OPEN_MPI) == derive({**OPEN_MPI, "OMPI_COMM_WORLD_RANK": "9"})
    assert derive(other) != derive(OPEN_MPI)


def test_the_key_that_slurm_gives_every_mpirun_of_a_job_names_none(derive: Derive) -> None:
    jobs = "017569a900000000-017569a900000000"

    with pytest.raises(SaveIdentityError):
        derive({**OPEN_MPI, "OMPI_MCA_orte_precondition_transports": jobs})


def test_another_launcher_of_one_node_is_itself(derive: Derive, proc: FakeProc) -> None:
    for pid in (RANK_0, RANK_1, WRAPPED):
        (proc.root / str(pid) / "environ").write_text("RANK=0\0")
    assert derive(OTHER_LAUNCHER, RANK_0) == derive({**OTHER_LAUNCHER, "RANK": "1"}, RANK_1)

    before = derive(OTHER_LAUNCHER)
    proc.add(AGENT, 1, 900, {})
    assert derive(OTHER_LAUNCHER) != before


@pytest.mark.parametrize(
    "environ",
    [
        TWO_NODES,
        {**TORCHRUN, **TWO_NODES},  # a restart count is not equal on all its agents
        {**SLURM, **TWO_NODES},
        {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"},
    ],
)
def test_where_nothing_names_it_the_error_says_what_to_do(
    derive: Derive, environ: dict[str, str]
) -> None:
    with pytest.raises(SaveIdentityError, match="CACHETIER_SAVE_ID"):
        derive(environ)


def test_a_launcher_that_cannot_be_seen_is_an_error(derive: Derive, proc: FakeProc) -> None:
    (proc.root / str(RANK_0) / "stat").unlink()

    with pytest.raises(SaveIdentityError, match="/proc"):
        derive(TORCHRUN)


def test_an_environment_that_may_not_be_read_ends_the_search(proc: FakeProc) -> None:
    (proc.root / str(WRAPPED) / "environ").unlink()

    assert Processes(proc.root).launcher(RANK_1, "TORCHELASTIC_RUN_ID") == f"{WRAPPED}.511"


def test_a_container_whose_first_process_launched_the_ranks_is_that(proc: FakeProc) -> None:
    proc.add(1, 0, 5, {"RANK": "0"})
    proc.add(RANK_0, 1, 10, {"RANK": "0"})

    assert Processes(proc.root).launcher(RANK_0, "RANK") == "1.5"


class FakeStore:
    """A store of ``torch.distributed`` as far as it matters."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}

    def compare_set(self, key: str, expected: str, desired: str, /) -> bytes:
        if self.values.get(key, "") == expected:
            self.values[key] = desired
        return self.values.get(key, expected).encode()


@pytest.mark.torch
def test_the_fake_store_answers_as_the_real_one_does() -> None:
    from torch._C._distributed_c10d import HashStore

    calls = [("a", "", "1"), ("a", "", "2"), ("a", "1", "3"), ("a", "x", "4"), ("b", "x", "5")]
    real, fake = HashStore(), FakeStore()

    answers = [real.compare_set(*call) for call in calls]

    assert answers == [fake.compare_set(*call) for call in calls]


class Incarnation:
    """The processes of one start of a job; ``claims`` names their machines and numbers."""

    def __init__(self, store: FakeStore, name: str, machines: list[str]) -> None:
        self.store = store
        self.new_id = iter_ids(name)
        self.claims = [
            Claim(rank, machine, f"{name}.{rank}") for rank, machine in enumerate(machines)
        ]
        self.alive = True

    def id_of(self, rank: int, *others: Incarnation) -> str:
        def is_alive(process: str) -> bool:
            return any(one.alive and process.startswith(one.prefix) for one in (self, *others))

        claim = self.claims[rank]
        return agreed_id(self.store, claim, len(self.claims), is_alive, self.new_id)

    @property
    def prefix(self) -> str:
        return self.claims[0].process.partition(".")[0] + "."


def test_ranks_agree_in_whatever_order_they_ask() -> None:
    for order in itertools.permutations(range(4)):
        job = Incarnation(FakeStore(), "a", ["x", "x", "y", "y"])
        assert len({job.id_of(rank) for rank in order}) == 1


def test_a_store_that_outlives_its_ranks_gives_the_next_ones_another_id() -> None:
    store = FakeStore()
    seen = set()
    for name in ("a", "b", "c"):
        job = Incarnation(store, name, ["x", "x", "y"])
        agreed = {job.id_of(rank) for rank in (2, 0, 1)}
        job.alive = False
        assert len(agreed) == 1
        seen |= agreed

    assert len(seen) == 3


@pytest.mark.parametrize("claimed", [[0], [1], [0, 2], [1, 2, 3], [3]])
@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 2, 1, 0), (1, 3, 0, 2)])
def test_on_one_machine_no_half_claimed_id_is_ever_taken_over(
    claimed: list[int], order: tuple[int, ...]
) -> None:
    store = FakeStore()
    killed = Incarnation(store, "a", ["x"] * 4)
    before = {killed.id_of(rank) for rank in claimed}
    killed.alive = False

    after = Incarnation(store, "b", ["x"] * 4)
    agreed = {after.id_of(rank) for rank in order}

    assert len(agreed) == 1
    assert not agreed & before


def test_a_world_of_another_size_has_ids_of_its_own() -> None:
    store = FakeStore()
    large = Incarnation(store, "a", ["x", "y", "z"]).id_of(2)
    small = Incarnation(store, "b", ["x", "y"])

    assert small.id_of(0) == small.id_of(1) != large


@pytest.fixture
def distributed(monkeypatch: pytest.MonkeyPatch) -> Any:
    module = SimpleNamespace(
        is_available=lambda: True,
        is_initialized=lambda: True,
        get_rank=lambda: 1,
        get_world_size=lambda: 4,
        store=FakeStore(),
    )
    module.distributed_c10d = SimpleNamespace(_get_default_store=lambda: module.store)
    monkeypatch.setitem(sys.modules, "torch.distributed", module)
    return module


def test_torch_distributed_decides_over_several_nodes(distributed: Any) -> None:
    ids = SaveIdSource(new_id=iter_ids("x"))
    place = place_of(TWO_NODES)

    first = ids.derive(TWO_NODES, place)

    assert first == "s-x0"
    asked = len(distributed.store.values)
    assert ids.derive(TWO_NODES, place) == first
    assert len(distributed.store.values) == asked  # asked once

    distributed.store = FakeStore()  # initialised anew: another incarnation
    assert ids.derive(TWO_NODES, place) != first


def test_a_store_that_fails_is_a_clear_error(distributed: Any) -> None:
    distributed.distributed_c10d = SimpleNamespace()

    with pytest.raises(SaveIdentityError, match="store"):
        SaveIdSource().derive(TWO_NODES, place_of(TWO_NODES))


def test_torchrun_on_one_node_does_not_need_the_store(distributed: Any, derive: Derive) -> None:
    assert derive(TORCHRUN).startswith("r0-")
    assert not distributed.store.values


def test_real_processes_can_be_told_apart() -> None:
    processes = Processes()
    me = processes.identity(os.getpid())

    assert processes.is_alive(me)
    assert not processes.is_alive(f"{os.getpid()}.1")
    assert not processes.is_alive("4194305.1")
    assert processes.machine() == Processes().machine()
    assert replace(processes).launcher(os.getpid(), "RANK") != me
