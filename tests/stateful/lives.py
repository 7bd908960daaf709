"""What all lives share: how deeds are weighted, a life is played, and a planted bug is caught."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol, TypeAlias, TypeVar

import pytest

from tests.stateful.invariants import ViolationError

LIVES = 60  # that may pass before a planted bug is caught

Deed: TypeAlias = Callable[[], None]
Caught: TypeAlias = Callable[..., str]


class Life(Protocol):
    """Nodes that do things by chance; ``play`` raises ViolationError once a promise is broken."""

    def play(self) -> None: ...
    def close(self) -> None: ...


LifeT = TypeVar("LifeT", bound=Life)


def drawn_from(weighted: Iterable[tuple[Deed, int]], only: frozenset[str]) -> list[Deed]:
    """Return each deed as often as it weighs; of ``only`` these, if any are named."""
    return [
        deed
        for deed, weight in weighted
        if deed.__name__ in only or not only
        for _ in range(weight)
    ]


@contextmanager
def lived(life: LifeT, seed: int) -> Iterator[LifeT]:
    """Play a life, and lend it as it is in the end; an error names it."""
    try:
        life.play()
        yield life
    except BaseException as error:
        error.add_note(f"life {seed}")
        raise
    finally:
        life.close()


def catching(
    top: Path, monkeypatch: pytest.MonkeyPatch, made: Callable[[Path, int, frozenset[str]], Life]
) -> Caught:
    """Return what plays lives until the model reports the bug that ``monkeypatch`` has planted."""

    def play(seed: int, name: str, only: tuple[str, ...]) -> str:
        place = top / f"{name}-{seed}"
        place.mkdir()
        life = made(place, seed, frozenset(only))
        try:
            life.play()
        except ViolationError as violation:
            return str(violation)
        finally:
            life.close()
        return ""

    def found(first: int, *only: str) -> str:
        """Play lives from ``first`` on until the model reports; return what it says.

        Without the bug the same life reports nothing. Of ``only`` these deeds, if any are named.
        """
        for seed in range(first, first + LIVES):
            said = play(seed, "planted", only)
            if said:
                print(f"caught by life {seed}: {said}")
                monkeypatch.undo()
                assert not play(seed, "sound", only)
                return said
        raise AssertionError("the model found nothing")

    return found
