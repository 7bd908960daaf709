"""The one grammar of names: what may be called a run, a step, a shard or a save.

Clients check before anything is sent, the service before anything is done. Names become S3 keys and
appear in logs and metrics, never in local paths, so the alphabet is what every store and every tool
takes without quoting. ``.cachetier`` and ``~`` are kept for cachetier's own keys.

Source: docs/protocol.md, "Names".
"""

from __future__ import annotations

import operator
import re
from dataclasses import dataclass
from typing import Any, NamedTuple

from cachetier_client.errors import InvalidNameError, InvalidRequestError

RESERVED_SEGMENT = ".cachetier"
GENERATION_MARK = "~"
MOUNT_MARK = "s3:"  # of what the S3 door holds: no run can be called so
COUNT_LIMIT = STEP_LIMIT = 2**53  # what every JSON reader takes
WORLD_LIMIT = 1_000_000
RUN_LIMIT_CHARACTERS = 128
BRANCH_LIMIT_CHARACTERS = 384
NAME_LIMIT_CHARACTERS = 255
SAVE_ID_LIMIT_CHARACTERS = 64

_SEGMENT = r"[A-Za-z0-9._\-=+@]+"
_RUN = re.compile(rf"(?!-){_SEGMENT}")
_BRANCH_SEGMENT = r"[A-Za-z0-9._\-=+@!]+"
_BRANCH = re.compile(rf"(?:~{_BRANCH_SEGMENT})+(?:~|~(?:~{_BRANCH_SEGMENT})+)?")
_NAME = re.compile(rf"{_SEGMENT}(?:/{_SEGMENT})*")
_NOT_IN_SEGMENT = re.compile(r"[^A-Za-z0-9._\-=+@/]+")
_SAVE_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._\-]*")
_STEP = re.compile(r"0|[1-9][0-9]*", re.ASCII)
_RESERVED = frozenset({".", "..", RESERVED_SEGMENT})


@dataclass(frozen=True, slots=True)
class SaveIds:
    """The ids of one rank's part of one save of one step. There are none but valid ones.

    Raises:
        InvalidNameError: Run, step or save id are outside the grammar.
        InvalidRequestError: The rank is not in the world.
    """

    run: str
    step: int
    save_id: str
    rank: int = 0
    world_size: int = 1
    overwrite: bool = False

    def __post_init__(self) -> None:
        checked_run(self.run)
        checked_step(self.step)
        checked_save_id(self.save_id)
        checked_place(self.rank, self.world_size)

    @property
    def context(self) -> dict[str, Any]:
        """The ids that an error about it names."""
        return {"run": self.run, "step": self.step, "rank": self.rank}

    def fields(self) -> dict[str, Any]:
        """Return the ids as a request carries them."""
        return {
            "run": self.run,
            "step": self.step,
            "rank": self.rank,
            "world_size": self.world_size,
            "save_id": self.save_id,
            "overwrite": self.overwrite,
        }


class ShardIds(NamedTuple):
    """Which shard is read: of which save is the service's to know."""

    run: str
    step: int
    name: str


def checked_run(run: object) -> str:
    """Return ``run``, or a branch of one, if it is in the grammar; else raise InvalidNameError."""
    name = base_run(run) if isinstance(run, str) and len(run) <= BRANCH_LIMIT_CHARACTERS else ""
    fine = len(name) <= RUN_LIMIT_CHARACTERS and _RUN.fullmatch(name) and name not in _RESERVED
    branch = str(run)[len(name) :] if fine else ""
    if not fine or (branch and not _BRANCH.fullmatch(branch)):
        raise InvalidNameError(
            f"run {shown(run)} is not 1 to 128 characters of A-Z a-z 0-9 . _ - = + @",
            hint=_near(str(run).replace("/", "-"), RUN_LIMIT_CHARACTERS),
        )
    return str(run)


def base_run(run: str) -> str:
    """Return the run that a branch is of, or the run itself: what rules about runs are about."""
    return run.partition(GENERATION_MARK)[0]


def is_of_run(saved: str, run: str) -> bool:
    """Return whether what was saved as ``saved`` is of ``run``: it itself, or a branch of it."""
    return saved == run or saved.startswith(f"{run}{GENERATION_MARK}")


def checked_step(step: object) -> int:
    """Return ``step`` as a plain integer; raise InvalidNameError if it is not a step."""
    number = plain_integer(step)
    if number is None or not 0 <= number < STEP_LIMIT:
        raise InvalidNameError(f"step {shown(step)} is not an integer from 0 to 2^53 - 1")
    return number


def parsed_step(text: str) -> int:
    """Return the step that ``text`` writes in canonical decimal."""
    if len(text) <= 16 and _STEP.fullmatch(text):
        return checked_step(int(text))
    raise InvalidNameError(f"step {shown(text)} is not a canonical decimal integer")


def checked_name(name: object) -> str:
    """Return ``name`` if it is in the grammar; raise InvalidNameError otherwise."""
    fine = isinstance(name, str) and len(name) <= NAME_LIMIT_CHARACTERS and _NAME.fullmatch(name)
    if not fine or not _RESERVED.isdisjoint(str(name).split("/")):
        raise InvalidNameError(
            f"shard name {shown(name)} is not 1 to 255 characters of A-Z a-z 0-9 . _ - = + @ in "
            "segments joined by '/', without '.', '..' or '.cachetier' as a segment",
            hint=_near(str(name), NAME_LIMIT_CHARACTERS),
        )
    return str(name)


def checked_save_id(save_id: object) -> str:
    """Return ``save_id`` if it is in the grammar; raise InvalidNameError otherwise."""
    fine = (
        isinstance(save_id, str)
        and len(save_id) <= SAVE_ID_LIMIT_CHARACTERS
        and _SAVE_ID.fullmatch(save_id)
    )
    if not fine:
        raise InvalidNameError(
            f"save_id {shown(save_id)} is not 1 to 64 characters of A-Z a-z 0-9 . _ - "
            "starting with a letter or digit"
        )
    return str(save_id)


def checked_place(rank: object, world_size: object) -> tuple[int, int]:
    """Return rank and world size; raise InvalidRequestError unless 0 <= rank < world_size."""
    number, ranks = plain_integer(rank), plain_integer(world_size)
    if number is None or ranks is None or not 0 <= number < ranks <= WORLD_LIMIT:
        raise InvalidRequestError(
            f"rank {shown(rank)} of world_size {shown(world_size)}: "
            "rank must be from 0 to world_size - 1",
            hint="Pass rank= and world_size= together, or set RANK and WORLD_SIZE.",
        )
    return number, ranks


def plain_integer(value: Any) -> int | None:
    """Return an integer, be it numpy's, as Python's own; None for anything else."""
    if type(value) is int:
        return value
    try:
        return None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        return None


def _near(text: str, limit_characters: int) -> str | None:
    """Return the hint that names the nearest name there can be, or None if none is near."""
    plain = _NOT_IN_SEGMENT.sub("-", text).split("/")
    segments = (each.strip("-") for each in plain if each not in _RESERVED)
    near = "/".join(each for each in segments if each)
    return f"Call it {near}, perhaps." if 0 < len(near) <= limit_characters else None


def shown(value: object) -> str:
    """Show a hostile value on one short line."""
    text = ascii(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
