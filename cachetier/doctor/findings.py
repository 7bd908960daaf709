"""The result of a check: a state, what was measured, and how to fix it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class State(StrEnum):
    OK = "ok"
    WARN = "warn"  # it works, and costs speed or a promise less than it could
    FAIL = "fail"  # the service would refuse, lose or never drain
    SKIPPED = "skipped"  # nothing could be said; `measured` says why


@dataclass(frozen=True, slots=True)
class CheckResult:
    """One check's result.

    Args:
        state: How it is.
        measured: What was seen, in a few words and with units.
        fix: The next move; always there when the state is ``warn`` or ``fail``.
        values: The figures behind ``measured``, for machines; units come last in the names.
        name: The check's, as in the table of ``checks``, which gives it.
        remote: Which remote it is about, of those that are set; None for the node itself.
    """

    state: State
    measured: str
    fix: str = ""
    values: dict[str, Any] = field(default_factory=dict)
    name: str = ""
    remote: str | None = None

    def __post_init__(self) -> None:
        if bool(self.fix) != (self.state in (State.WARN, State.FAIL)):
            raise ValueError(f"{self.measured}: a fix goes with warn and fail alone")


def ok(measured: str, **values: Any) -> CheckResult:
    return CheckResult(State.OK, measured, values=values)


def warn(measured: str, fix: str, **values: Any) -> CheckResult:
    return CheckResult(State.WARN, measured, fix, values)


def fail(measured: str, fix: str, **values: Any) -> CheckResult:
    return CheckResult(State.FAIL, measured, fix, values)


def skipped(reason: str) -> CheckResult:
    return CheckResult(State.SKIPPED, reason)


def worst(findings: Iterable[CheckResult]) -> State:
    """Return the worst state; what was skipped counts as fine."""
    states = {finding.state for finding in findings}
    return next((state for state in (State.FAIL, State.WARN) if state in states), State.OK)
