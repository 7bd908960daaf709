"""Which rank a process is: the whole table."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest
from cachetier_client import InvalidRequestError
from cachetier_client.identity.ranks import RankInfo, place_of

TORCHRUN = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "4"}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "2",
    "OMPI_COMM_WORLD_SIZE": "6",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "3",
}
SLURM = {
    "SLURM_PROCID": "9",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_TASKS": "11",
    "SLURM_STEP_TASKS_PER_NODE": "4(x2),3",
    "SLURM_NODEID": "2",
}


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, RankInfo(0, 1, 1, "alone")),
        (TORCHRUN, RankInfo(5, 8, 4, "environment")),
        ({"RANK": "1", "WORLD_SIZE": "2"}, RankInfo(1, 2, None, "environment")),
        ({"RANK": "1"}, RankInfo(0, 1, 1, "alone")),
        (OPEN_MPI, RankInfo(2, 6, 3, "mpi", "OMPI_COMM_WORLD_RANK")),
        (
            {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALNRANKS": "2"},
            RankInfo(1, 2, 2, "mpi", "PMI_RANK"),
        ),
        (
            {"MV2_COMM_WORLD_RANK": "0", "MV2_COMM_WORLD_SIZE": "2"},
            RankInfo(0, 2, None, "mpi", "MV2_COMM_WORLD_RANK"),
        ),
        (SLURM, RankInfo(9, 11, 3, "slurm", "SLURM_PROCID")),
        ({**SLURM, "SLURM_NODEID": "1"}, RankInfo(9, 11, 4, "slurm", "SLURM_PROCID")),
        ({**SLURM, "SLURM_NODEID": "7"}, RankInfo(9, 11, None, "slurm", "SLURM_PROCID")),
        # A batch script's variables are the job's, not the process's.
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "16"}, RankInfo(0, 1, 1, "alone")),
        # mpirun starts its daemons with srun: MPI knows better.
        ({**SLURM, **OPEN_MPI}, RankInfo(2, 6, 3, "mpi", "OMPI_COMM_WORLD_RANK")),
        ({**SLURM, **OPEN_MPI, **TORCHRUN}, RankInfo(5, 8, 4, "environment")),
    ],
)
def test_the_first_source_that_names_rank_and_world_wins(
    environ: dict[str, str], expected: RankInfo
) -> None:
    assert place_of(environ) == expected


def test_what_the_caller_passes_wins() -> None:
    assert place_of(TORCHRUN, rank=1) == RankInfo(1, 8, 4, "environment")
    assert place_of(TORCHRUN, rank=1, world_size=2) == RankInfo(1, 2, None, "environment")
    assert place_of(TORCHRUN, rank=0, world_size=1) == RankInfo(0, 1, 1, "environment")
    assert place_of({}, 3, 4).ranks_on_node is None


def test_torch_distributed_is_asked_where_it_is_initialised(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    distributed = SimpleNamespace(
        is_available=lambda: True,
        is_initialized=lambda: True,
        get_rank=lambda: 3,
        get_world_size=lambda: 4,
    )
    monkeypatch.setitem(sys.modules, "torch.distributed", distributed)

    assert place_of({}) == RankInfo(3, 4, None, "torch")
    assert place_of(TORCHRUN).rank == 5

    distributed.is_initialized = lambda: False
    assert place_of({}) == RankInfo(0, 1, 1, "alone")


@pytest.mark.parametrize(
    ("environ", "rank", "world_size"),
    [
        ({"RANK": "8", "WORLD_SIZE": "8"}, None, None),
        ({"RANK": "one", "WORLD_SIZE": "8"}, None, None),
        ({"RANK": "-1", "WORLD_SIZE": "8"}, None, None),
        ({**TORCHRUN, "LOCAL_WORLD_SIZE": ""}, None, None),
        ({}, 1, None),
        ({}, -1, 4),
        (TORCHRUN, None, 4),
    ],
)
def test_a_place_that_cannot_be_is_refused(
    environ: dict[str, str], rank: int | None, world_size: int | None
) -> None:
    with pytest.raises(InvalidRequestError):
        place_of(environ, rank, world_size)
