"""A flush that is watched goes in slices; one that is answered late is no reason to give up."""

from __future__ import annotations

from typing import Any, cast

import pytest
from cachetier_client import Client, DeadlineError, NotDurableError
from rich.progress import Progress

from cachetier.cli import steps


class Node:
    """A service whose drain is slow: each of ``answers`` is what a flush ends with."""

    def __init__(self, *answers: Exception | None) -> None:
        self.answers = list(answers)

    def flush(self, _seconds: float) -> None:
        answer = self.answers.pop(0)
        if answer is not None:
            raise answer

    def status(self, **_options: Any) -> dict[str, Any]:
        return {"dirty_bytes": len(self.answers)}


def flush(node: Node, monkeypatch: pytest.MonkeyPatch, deadline: float) -> None:
    monkeypatch.setattr(steps, "progress", lambda _as_json: Progress(disable=True))
    steps._in_slices(cast("Client", node), node.flush, deadline, False)


def test_slices_follow_each_other_until_one_ends_well(monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node(NotDurableError("1 shard"), DeadlineError("too busy to say so in time"), None)
    flush(node, monkeypatch, 60.0)
    assert node.answers == []


def test_the_last_slice_says_what_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NotDurableError):
        flush(Node(NotDurableError("1 shard")), monkeypatch, steps.SLICE_SECONDS / 2)
