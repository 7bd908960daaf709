"""Names in request paths, decoded strictly from the raw bytes.

A server's decoded path has lost what matters: ``%2F`` in a run's name looks like a separator, and
invalid UTF-8 like a question mark. Here each segment is decoded alone and must obey the one grammar
of names.
"""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import unquote_to_bytes

from cachetier_client.identity import names

from cachetier.errors import InvalidNameError

_RUNS = b"/v1/runs/"
_SHARDS = "shards"


@dataclass(frozen=True, slots=True)
class RequestTarget:
    """The run, step or shard that a path under ``/v1/runs/`` names.

    ``rest`` follows the step: ``("seal",)``.
    """

    run: str
    step: int | None = None
    name: str | None = None
    rest: tuple[str, ...] = ()


def target_of(raw_path: bytes) -> RequestTarget | None:
    """Return what ``raw_path`` names, or None when it is not under ``/v1/runs/``.

    Raises:
        InvalidNameError: A name in it breaks the grammar.
    """
    if not raw_path.startswith(_RUNS):
        return None
    segments = raw_path[len(_RUNS) :].split(b"/")
    run = names.checked_run(_decoded(segments[0], "run"))
    if segments[1:2] != [b"steps"] or len(segments) < 3:
        return RequestTarget(run, rest=_rest(segments[1:]))
    step = names.parsed_step(_decoded(segments[2], "step"))
    if segments[3:4] == [_SHARDS.encode()]:
        name = "/".join(_decoded(segment, "shard name") for segment in segments[4:])
        return RequestTarget(run, step, names.checked_name(name))
    return RequestTarget(run, step, rest=_rest(segments[3:]))


def _decoded(segment: bytes, what: str) -> str:
    try:
        return unquote_to_bytes(segment).decode()
    except UnicodeDecodeError:
        raise InvalidNameError(f"a {what} in the path is not UTF-8") from None


def _rest(segments: list[bytes]) -> tuple[str, ...]:
    """Return what follows the names, where no separator may hide: the router would see one."""
    decoded = tuple(_decoded(segment, "path") for segment in segments)
    if any("/" in each for each in decoded):
        raise InvalidNameError("a part of the path has a slash in it")
    return decoded
