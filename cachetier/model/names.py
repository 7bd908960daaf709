"""The one grammar of names: what may be called a run, a step, a shard or a save.

Names become S3 keys and appear in logs and metrics, never in local paths, so the alphabet is what
every store and every tool takes without quoting. ``.cachetier`` and ``~`` are kept for cachetier's
own keys.

Source: docs/protocol.md, "Names".
"""

from __future__ import annotations

import re

from cachetier.errors import InvalidNameError, InvalidRequestError

RESERVED_SEGMENT = ".cachetier"
GENERATION_MARK = "~"
DURABLE = "durable"  # the remote that is the system of record: no replica may be called so
STEP_LIMIT = 2**53

_SEGMENT = r"[A-Za-z0-9._\-=+@]+"
_RUN = re.compile(rf"(?!-){_SEGMENT}", re.ASCII)
_NAME = re.compile(rf"{_SEGMENT}(?:/{_SEGMENT})*", re.ASCII)
_SAVE_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._\-]*", re.ASCII)
_STEP = re.compile(r"0|[1-9][0-9]*", re.ASCII)
_NOT_SEGMENTS = {".", "..", RESERVED_SEGMENT}


def checked_run(run: object) -> str:
    """Return ``run`` if it is one; raise InvalidNameError otherwise."""
    if (
        isinstance(run, str)
        and len(run) <= 128
        and _RUN.fullmatch(run)
        and run not in _NOT_SEGMENTS
    ):
        return run
    raise InvalidNameError(
        f"run {_shown(run)} is not 1 to 128 characters of A-Z a-z 0-9 . _ - = + @"
    )


def is_hidden(run: str) -> bool:
    """Return whether ``run`` begins with a dot: a trial, such as ``.bench``, and no training."""
    return run.startswith(".")


def checked_step(step: object) -> int:
    """Return ``step`` if it is an integer from 0 to 2^53 - 1."""
    if isinstance(step, int) and not isinstance(step, bool) and 0 <= step < STEP_LIMIT:
        return step
    raise InvalidNameError(f"step {_shown(step)} is not an integer from 0 to 2^53 - 1")


def parsed_step(text: str) -> int:
    """Return the step that ``text`` writes in canonical decimal."""
    if len(text) <= 16 and _STEP.fullmatch(text):
        return checked_step(int(text))
    raise InvalidNameError(f"step {_shown(text)} is not a canonical decimal integer")


def checked_name(name: object) -> str:
    """Return ``name`` if a shard may be called so."""
    fits = isinstance(name, str) and len(name) <= 255 and _NAME.fullmatch(name)
    if isinstance(name, str) and fits and not _NOT_SEGMENTS.intersection(name.split("/")):
        return name
    raise InvalidNameError(
        f"shard name {_shown(name)} is not 1 to 255 characters of A-Z a-z 0-9 . _ - = + @ in "
        "segments joined by '/', without '.', '..' or '.cachetier' as a segment"
    )


def checked_save_id(save_id: object) -> str:
    """Return ``save_id`` if it is one."""
    if isinstance(save_id, str) and len(save_id) <= 64 and _SAVE_ID.fullmatch(save_id):
        return save_id
    raise InvalidNameError(
        f"save_id {_shown(save_id)} is not 1 to 64 characters of A-Z a-z 0-9 . _ - "
        "starting with a letter or digit"
    )


def checked_ranks(rank: object, world_size: object) -> tuple[int, int]:
    """Return (rank, world_size) if 0 <= rank < world_size."""
    if (
        isinstance(rank, int)
        and isinstance(world_size, int)
        and not isinstance(rank, bool)
        and 0 <= rank < world_size <= 1_000_000
    ):
        return rank, world_size
    raise InvalidRequestError(
        f"rank {_shown(rank)} of world_size {_shown(world_size)}: "
        "rank must be from 0 to world_size - 1"
    )


def _shown(value: object) -> str:
    """Show a hostile value on one short line."""
    text = ascii(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
