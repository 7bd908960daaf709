"""The identity of a save: equal on all its ranks, different for every other incarnation of the job.

No collective is involved. The first rule that applies decides; docs/architecture.md gives the
reasons.

==  =============================================  ================================================
1   ``save_id=``                                   that
2   ``CACHETIER_SAVE_ID``                          that
3   torchrun, all ranks on this node               its agent (process and start), the restart count
4   a world of one                                 random, for this process
5   ``torch.distributed`` is initialised           agreed on in its store, see ``agreed_id``
6   a Slurm step whose tasks are the ranks         job, step and restart count
7   Open MPI                                       the random key it makes for each ``mpirun``
8   another launcher, all ranks on this node       the launcher (process and start)
9   otherwise                                      an error that asks for 1 or 2
==  =============================================  ================================================

``TORCHELASTIC_RUN_ID`` names no incarnation (users fix it), and over several nodes
``TORCHELASTIC_RESTART_COUNT`` is not even equal on all ranks: an agent counts its own workers'
failures, not restarts after another's.

Saving a step again with ``overwrite=True`` adds a counter, which moves on at each seal or abort of
the step.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import threading
import weakref
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

from cachetier_client.errors import SaveIdentityError
from cachetier_client.identity.names import checked_save_id
from cachetier_client.identity.processes import Processes
from cachetier_client.identity.ranks import RankInfo, torch_distributed

_HASH_CHARACTERS = 16
_GENERATION_LIMIT = 1000
_TRANSPORTS = "OMPI_MCA_orte_precondition_transports"


class SharedStore(Protocol):
    """The one operation needed of a ``torch.distributed`` store."""

    def compare_set(self, key: str, expected: str, desired: str, /) -> bytes:
        """Set ``key`` if it has ``expected``, empty if absent; return what it has then."""


@dataclass(slots=True)
class SaveIdSource:
    """Derives save ids for this process, once for each thing they are derived from. Thread-safe."""

    processes: Processes = field(default_factory=Processes)
    new_id: Callable[[], str] = lambda: secrets.token_hex(_HASH_CHARACTERS // 2)
    _lock: AbstractContextManager[object] = field(default_factory=threading.RLock)
    _alone: str | None = None
    _launchers: dict[str, str] = field(default_factory=dict)
    _agreed: tuple[weakref.ref[Any], int, str] | None = None
    _overwrites: dict[tuple[str, int], int] = field(default_factory=dict)

    def derive(self, environ: Mapping[str, str], place: RankInfo) -> str:
        """Return the id of saves that this process takes part in.

        Raises:
            SaveIdentityError: No rule applies.
            InvalidNameError: ``CACHETIER_SAVE_ID`` is not in the grammar.
        """
        if environ.get("CACHETIER_SAVE_ID"):
            return checked_save_id(environ["CACHETIER_SAVE_ID"])
        if "TORCHELASTIC_RUN_ID" in environ and _node_holds_all(environ):
            return self._launched(environ, "TORCHELASTIC_RUN_ID")
        with self._lock:
            if place.world_size == 1:
                self._alone = self._alone or f"p-{self.new_id()}"
                return self._alone
            distributed = torch_distributed()
            if distributed is not None:
                return self._agreed_in_store(distributed)
        return self._from_launcher(environ, place)

    def overwriting(self, save_id: str, run: str, step: int) -> str:
        """Return the id of the next save of a step that was saved before."""
        return f"{save_id}-o{self._overwrites.get((run, step), 0) + 1}"

    def ended(self, run: str, step: int) -> None:
        """Note that a save that overwrites was sealed or aborted."""
        with self._lock:
            self._overwrites[run, step] = self._overwrites.get((run, step), 0) + 1

    def renew_lock(self) -> None:
        """Forget who held the lock: in a forked child that thread does not exist."""
        self._lock = threading.RLock()

    def _launched(self, environ: Mapping[str, str], rank_variable: str) -> str:
        restarts = environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        launcher = self._launcher(rank_variable)
        port = environ.get("MASTER_PORT", "")
        return f"r{_digits(restarts)}-{_hashed('launcher', launcher, port, restarts)}"

    def _launcher(self, rank_variable: str) -> str:
        if rank_variable not in self._launchers:
            try:
                name = self.processes.launcher(os.getpid(), rank_variable)
                self._launchers[rank_variable] = f"{self.processes.machine()} {name}"
            except OSError as error:
                raise SaveIdentityError("/proc does not tell who launched this process") from error
        return self._launchers[rank_variable]

    def _from_launcher(self, environ: Mapping[str, str], place: RankInfo) -> str:
        if place.origin == "slurm":
            names = ("SLURM_CLUSTER_NAME", "SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT")
            restarts = _digits(environ.get("SLURM_RESTART_COUNT", "0"))
            return f"r{restarts}-{_hashed('slurm', *(environ.get(name, '') for name in names))}"
        first, _, second = environ.get(_TRANSPORTS, "").partition("-")
        if place.origin == "mpi" and second and first != second:  # Slurm's own are the job's, twice
            return f"m-{_hashed('mpi', first, second)}"
        if place.fills_node:
            return self._launched(environ, place.rank_variable)
        raise SaveIdentityError(
            f"nothing names this save for all {place.world_size} ranks, which are not on one node"
        )

    def _agreed_in_store(self, distributed: Any) -> str:
        rank, world_size = distributed.get_rank(), distributed.get_world_size()
        try:
            store = distributed.distributed_c10d._get_default_store()
            if self._agreed is not None and self._agreed[0]() is store:
                return self._agreed[2]
            claim = Claim.of(self.processes, rank)
            agreed = agreed_id(store, claim, world_size, self.processes.is_alive, self.new_id)
            self._agreed = (weakref.ref(store), world_size, f"s-{agreed}")
        except (AttributeError, OSError, RuntimeError, ValueError) as error:
            raise SaveIdentityError("torch.distributed's store did not give a save id") from error
        return self._agreed[2]


@dataclass(frozen=True, slots=True)
class Claim:
    """A process that takes part in saves: its rank, its machine, and itself."""

    rank: int
    machine: str
    process: str

    @classmethod
    def of(cls, processes: Processes, rank: int) -> Claim:
        """Return this process's claim."""
        return cls(rank, processes.machine(), processes.identity(os.getpid()))


def agreed_id(
    store: SharedStore,
    claim: Claim,
    world_size: int,
    is_alive: Callable[[str], bool],
    new_id: Callable[[], str],
) -> str:
    """Return the id that all ranks of this incarnation get; nobody waits for anybody.

    The store may outlive its ranks: torchrun's agents keep theirs over restarts. So an id that is
    found there may be an earlier incarnation's. It is, if another process has claimed it for the
    same rank, or if the process that first claimed it on this machine is dead: then a new one is
    made, which those who come later find.

    What remains: ranks of several nodes are killed between the first and the last claim of an
    incarnation, and the next one's first comes from a machine that had not claimed. It then saves
    under an id of its own, and its steps stay incomplete until the job is next restarted.
    """
    key = f"cachetier/save/{world_size}"
    current = _text(store.compare_set(key, "", f"1:{new_id()}"))
    for _ in range(_GENERATION_LIMIT):
        if _is_ours(store, f"{key}/{current}", claim, is_alive):
            return current.partition(":")[2]
        number = int(current.partition(":")[0])
        current = _text(store.compare_set(key, current, f"{number + 1}:{new_id()}"))
    raise SaveIdentityError("the ranks could not agree on a save id")


def _is_ours(store: SharedStore, key: str, claim: Claim, is_alive: Callable[[str], bool]) -> bool:
    me = f"{claim.machine} {claim.process}"
    if _text(store.compare_set(f"{key}/rank/{claim.rank}", "", me)) != me:
        return False
    first = _text(store.compare_set(f"{key}/on/{claim.machine}", "", claim.process))
    return first == claim.process or is_alive(first)


def _node_holds_all(environ: Mapping[str, str]) -> bool:
    local = environ.get("LOCAL_WORLD_SIZE", "")
    return local.isdigit() and local == environ.get("WORLD_SIZE")


def _hashed(*ingredients: str) -> str:
    joined = "\0".join(ingredients).encode()
    return hashlib.blake2b(joined, digest_size=_HASH_CHARACTERS // 2).hexdigest()


def _digits(text: str) -> str:
    return text if text.isdigit() and len(text) < 10 else "0"


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value


THIS_PROCESS = SaveIdSource()
os.register_at_fork(after_in_child=THIS_PROCESS.renew_lock)
