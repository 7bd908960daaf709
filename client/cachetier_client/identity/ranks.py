"""Find this process's rank, the world size, and the number of ranks on this node.

The first source that names both rank and world size wins:

1. what the caller passes;
2. ``RANK`` and ``WORLD_SIZE``, with ``LOCAL_WORLD_SIZE`` (torchrun and its kin);
3. MPI: ``OMPI_COMM_WORLD_*``, ``PMI_*``, ``MV2_COMM_WORLD_*``;
4. Slurm, in a step: ``SLURM_PROCID`` and ``SLURM_STEP_NUM_TASKS``;
5. ``torch.distributed``, if it is initialised;
6. a world of one.

MPI comes before Slurm because ``mpirun`` starts its daemons with ``srun``: what Slurm then says is
about them. Slurm's variables outside a step (a batch script) describe the job, not the process, and
are not used.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from cachetier_client.errors import InvalidRequestError
from cachetier_client.identity.names import checked_place

Origin = Literal["environment", "mpi", "slurm", "torch", "alone"]

_ENVIRONMENT = ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
_MPI = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS"),
    ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_SIZE"),
)
_TASKS = re.compile(r"(\d+)(?:\(x(\d+)\))?")


@dataclass(frozen=True, slots=True)
class RankInfo:
    """A process in its world.

    ``rank_variable`` is the variable by which the launcher told the rank, and which it does not
    have itself.
    """

    rank: int
    world_size: int
    ranks_on_node: int | None
    origin: Origin
    rank_variable: str = "RANK"

    @property
    def fills_node(self) -> bool:
        """Whether all ranks are on this node."""
        return self.ranks_on_node == self.world_size


def place_of(
    environ: Mapping[str, str], rank: int | None = None, world_size: int | None = None
) -> RankInfo:
    """Return this process's place.

    Args:
        environ: The environment.
        rank: Takes the place of what the environment says.
        world_size: The same; how many ranks this node has is then unknown unless it is one.

    Raises:
        InvalidRequestError: A variable is no number, or the rank is not in the world.
    """
    found = _surroundings(environ)
    ranks_on_node = found.ranks_on_node
    if world_size is None:
        world_size = found.world_size
    elif world_size != found.world_size:
        ranks_on_node = None
    if rank is None:
        rank = found.rank
    checked_place(rank, world_size)
    if world_size == 1:
        ranks_on_node = 1
    return RankInfo(rank, world_size, ranks_on_node, found.origin, found.rank_variable)


def torch_distributed() -> Any:
    """Return ``torch.distributed`` where the program has initialised it, else None."""
    module = sys.modules.get("torch.distributed")
    if module is None or not module.is_available() or not module.is_initialized():
        return None
    return module


def _surroundings(environ: Mapping[str, str]) -> RankInfo:
    if "RANK" in environ and "WORLD_SIZE" in environ:
        return _from_variables(environ, _ENVIRONMENT, "environment")
    for names in _MPI:
        if names[0] in environ and names[1] in environ:
            return _from_variables(environ, names, "mpi")
    if "SLURM_STEP_ID" in environ and "SLURM_STEP_NUM_TASKS" in environ:
        return _from_slurm(environ)
    distributed = torch_distributed()
    if distributed is not None:
        rank, world_size = distributed.get_rank(), distributed.get_world_size()
        return RankInfo(rank, world_size, None, "torch")
    return RankInfo(0, 1, 1, "alone")


def _from_variables(
    environ: Mapping[str, str], names: tuple[str, str, str], origin: Origin
) -> RankInfo:
    rank, world_size = _number(environ, names[0]), _number(environ, names[1])
    local = _number(environ, names[2]) if names[2] in environ else None
    return RankInfo(rank, world_size, local, origin, names[0])


def _from_slurm(environ: Mapping[str, str]) -> RankInfo:
    rank = _number(environ, "SLURM_PROCID")
    world_size = _number(environ, "SLURM_STEP_NUM_TASKS")
    return RankInfo(rank, world_size, _slurm_tasks_here(environ), "slurm", "SLURM_PROCID")


def _slurm_tasks_here(environ: Mapping[str, str]) -> int | None:
    """Read lists like ``4(x2),3``: four tasks on each of two nodes, three on the third."""
    tasks = [
        int(match[1])
        for match in _TASKS.finditer(environ.get("SLURM_STEP_TASKS_PER_NODE", ""))
        for _ in range(int(match[2] or 1))
    ]
    node = environ.get("SLURM_NODEID", "")
    return tasks[int(node)] if node.isdigit() and int(node) < len(tasks) else None


def _number(environ: Mapping[str, str], name: str) -> int:
    text = environ.get(name, "")
    if not text.isdigit():
        raise InvalidRequestError(
            f"{name}={text!r} is not a number", hint=f"Set {name}, or pass rank= and world_size=."
        )
    return int(text)
