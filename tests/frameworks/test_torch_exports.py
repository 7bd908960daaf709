"""What the torch extra raises can be caught by name."""

from __future__ import annotations

from collections.abc import Iterator

import cachetier_client.torch
from cachetier_client.errors import CachetierClientError


def below(kind: type[CachetierClientError]) -> Iterator[type[CachetierClientError]]:
    for each in kind.__subclasses__():
        yield each
        yield from below(each)


def test_all_errors_of_the_extra_are_exported() -> None:
    package = cachetier_client.torch
    kinds = {each for each in below(CachetierClientError) if package.__name__ in each.__module__}

    assert {each.__name__ for each in kinds} <= set(package.__all__)
    assert package.SnapshotAbandonedError in kinds
    assert all(hasattr(package, name) for name in package.__all__)
