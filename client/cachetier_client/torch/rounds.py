"""One question that every rank of a group answers, through the group's store and by a deadline.

Each rank posts what it found, or why it could not. Rank 0 of the group gathers and posts the
verdict, once: a rank that fails, or that waits no longer, posts a verdict too, and the first to be
posted is everybody's. So all ranks end alike, in an answer or in the same ``AgreementError``, and
no rank is ever in a collective that another one does not enter.

The store is torch's own (a small key-value server, mostly in rank 0's process). Every exchange with
it is bounded too: a store that has gone away ends in the same error.

Source: docs/torch.md, "Restart".
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from cachetier_client.clock import Clock
from cachetier_client.deadline import Deadline
from cachetier_client.errors import CachetierClientError

FIRST_PAUSE_SECONDS = 0.001
LONGEST_PAUSE_SECONDS = 0.05  # in a small group; all ranks look at one store
PAUSE_SECONDS_PER_RANK = 0.00005
GRACE_SECONDS = 2.0  # beyond the deadline, for the store and for those who still have to look

_Answer = TypeVar("_Answer")


class AgreementError(CachetierClientError):
    """The ranks did not come to an agreement: some failed, or did not answer in time.

    Raised on every rank, with the same content.

    Attributes:
        failures: What each rank that failed said, by rank.
        missing: The ranks that had not answered.
    """

    code = "agreement"
    hint = "Look at the ranks it names; when they are well, make the same call again on all ranks."

    def __init__(
        self,
        message: str,
        *,
        failures: Mapping[int, str] | None = None,
        missing: Sequence[int] = (),
        hint: str | None = None,
    ) -> None:
        super().__init__(message, hint=hint)
        self.failures = dict(failures or {})
        self.missing = tuple(missing)


class GroupStore(Protocol):
    """The methods used of ``torch.distributed.Store``."""

    def set(self, key: str, value: str, /) -> None: ...
    def get(self, key: str, /) -> bytes: ...
    def add(self, key: str, amount: int, /) -> int: ...
    def check(self, keys: list[str], /) -> bool: ...
    def compare_set(self, key: str, expected: str, desired: str, /) -> bytes: ...
    def delete_key(self, key: str, /) -> bool: ...


@dataclass(frozen=True, slots=True)
class RankGroup:
    """The ranks that take part, by their global numbers, and which of them this is."""

    ranks: tuple[int, ...]
    rank: int
    store: GroupStore | None

    @property
    def leads(self) -> bool:
        return self.rank == self.ranks[0]


class Round:
    """One question of one group.

    Args:
        group: Who takes part.
        question: What is asked: the same text on all ranks, or the round fails.
        deadline: For all of it.
        clock: To pause between looks.
        name: Rounds of different names do not meet; those of one are matched by their order.

    Attributes:
        is_over: Whether this rank knows how it has ended, or that it cannot.
    """

    def __init__(
        self, group: RankGroup, question: str, deadline: Deadline, clock: Clock, name: str = "agree"
    ) -> None:
        self._group = group
        self._question = question
        self._deadline = deadline
        self._clock = clock
        self.is_over = False
        ranks = ",".join(map(str, group.ranks))
        self._prefix = f"cachetier/{name}/{ranks}"

    def begin(self) -> None:
        """Learn which round of the group this is; raise what it has ended with, if it has."""
        number = self._ask_store("add", f"{self._prefix}/calls/{self._group.rank}", 1)
        self._prefix = f"{self._prefix}/{number}"
        self.look()

    def look(self) -> None:
        """Raise what the round has ended with already, if another rank has ended it by failing."""
        if self._ask_store("check", [self._verdict_key]):
            self._raised(self._read_verdict())

    def fail(self, error: BaseException) -> AgreementError:
        """Tell the others that this rank failed; return what all of them raise."""
        verdict = {"failures": {str(self._group.rank): f"{type(error).__name__}: {error}"}}
        return _error_of(self._question, self._decide(verdict))

    def answer(self, mine: Any, combine: Callable[[list[Any]], Any]) -> Any:
        """Post this rank's answer and return what ``combine`` makes of all of them, by rank.

        Both must be what JSON can carry. Only rank 0 of the group calls ``combine``.

        Raises:
            AgreementError: A rank failed or is missing.
        """
        posted = json.dumps({"question": self._question, "answer": mine})
        self._ask_store("set", self._key(self._group.rank), posted)
        verdict = self._gather(combine) if self._group.leads else self._await_verdict()
        return self._raised(verdict)

    def _gather(self, combine: Callable[[list[Any]], Any]) -> dict[str, Any]:
        """Collect all answers and decide; give up at the deadline, or if another rank has."""
        answers: dict[int, Any] = {}
        absent = list(self._group.ranks)
        for _ in self._looks():
            absent = self._absent(absent)
            for rank in set(self._group.ranks) - set(answers) - set(absent):
                answers[rank] = json.loads(self._ask_store("get", self._key(rank)))
            if not absent:
                return self._decide(self._verdict_on(answers, combine))
            if self._ask_store("check", [self._verdict_key]):
                return self._read_verdict()
        return self._decide({"missing": absent})

    def _verdict_on(
        self, answers: Mapping[int, Any], combine: Callable[[list[Any]], Any]
    ) -> dict[str, Any]:
        asked = {rank: posted["question"] for rank, posted in answers.items()}
        others = {rank: text for rank, text in asked.items() if text != self._question}
        if others:
            return {"failures": {str(rank): f"asked {text}" for rank, text in others.items()}}
        try:
            return {"answer": combine([answers[rank]["answer"] for rank in self._group.ranks])}
        except CachetierClientError as error:
            return {"failures": {str(self._group.rank): str(error)}}

    def _await_verdict(self) -> dict[str, Any]:
        for _ in self._looks():
            if self._ask_store("check", [self._verdict_key]):
                return self._read_verdict()
        # If all have answered, it is the first that has not gathered.
        return self._decide({"missing": self._absent(self._group.ranks) or self._group.ranks[:1]})

    def _absent(self, ranks: Sequence[int]) -> list[int]:
        """Return who of ``ranks`` has not answered, with few questions if most have."""
        if not ranks or self._ask_store("check", [self._key(rank) for rank in ranks]):
            return []
        if len(ranks) == 1:
            return list(ranks)
        half = len(ranks) // 2
        return self._absent(ranks[:half]) + self._absent(ranks[half:])

    def _decide(self, verdict: Mapping[str, Any]) -> dict[str, Any]:
        """Post a verdict; return the one that was first."""
        first = self._ask_store("compare_set", self._verdict_key, "", json.dumps(verdict))
        return self._seen(first)

    def _read_verdict(self) -> dict[str, Any]:
        return self._seen(self._ask_store("get", self._verdict_key))

    def _seen(self, verdict: bytes) -> dict[str, Any]:
        """Read a verdict; the last rank to have seen it leaves nothing of the round behind."""
        read: dict[str, Any] = json.loads(verdict)
        self.is_over = True
        with suppress(AgreementError):  # a store that goes away now changes nothing any more
            self._tidy(len(self._group.ranks) - len(read.get("missing", ())))
        return read

    def _tidy(self, expected: int) -> None:
        if self._ask_store("add", self._seen_key, 1) == len(self._group.ranks):
            left = [self._key(rank) for rank in self._group.ranks]
            for key in (*left, self._verdict_key, self._seen_key):
                self._ask_store("delete_key", key)
        elif self._group.leads:
            self._linger(expected)

    def _linger(self, expected: int) -> None:
        """Let the others see the verdict: the store may end with this process, and that at once."""
        for _ in self._looks(Deadline(GRACE_SECONDS, self._clock)):
            seen = self._ask_store("add", self._seen_key, 0)
            if seen == 0:  # the last one has tidied up
                self._ask_store("delete_key", self._seen_key)
            if seen in (0, expected):
                return

    def _raised(self, verdict: dict[str, Any]) -> Any:
        if "answer" in verdict:
            return verdict["answer"]
        raise _error_of(self._question, verdict)

    def _looks(self, deadline: Deadline | None = None) -> Iterator[None]:
        """Come back again and again, less and less often, until the deadline."""
        ends = deadline or self._deadline
        pause = FIRST_PAUSE_SECONDS
        longest = max(LONGEST_PAUSE_SECONDS, PAUSE_SECONDS_PER_RANK * len(self._group.ranks))
        while True:
            yield
            left = ends.remaining()
            if not left:
                return
            self._clock.sleep(min(pause, left))
            pause = min(1.5 * pause, longest)

    @property
    def _verdict_key(self) -> str:
        return f"{self._prefix}/verdict"

    @property
    def _seen_key(self) -> str:
        return f"{self._prefix}/seen"

    def _key(self, rank: int) -> str:
        return f"{self._prefix}/rank-{rank}"

    def _ask_store(self, operation: str, *arguments: Any) -> Any:
        """Do one operation of the store, in the time that is left and a little more."""
        call = getattr(self._group.store, operation)
        try:
            return _bounded(lambda: call(*arguments), self._deadline.remaining() + GRACE_SECONDS)
        except (RuntimeError, TimeoutError) as error:  # torch.distributed.DistError among them
            self.is_over = True
            raise AgreementError(
                f"{self._question}: the store of the process group does not answer",
                missing=[self._group.ranks[0]],
                hint="It usually runs in the process of rank 0, which may have ended.",
            ) from error


def _bounded(call: Callable[[], _Answer], seconds: float) -> _Answer:
    """Do a call that knows no deadline, and leave it behind if it does not end in time."""
    ended: Future[_Answer] = Future()

    def do() -> None:
        try:
            ended.set_result(call())
        except BaseException as error:
            ended.set_exception(error)

    threading.Thread(target=do, name="cachetier-agreement", daemon=True).start()
    return ended.result(seconds)


def _error_of(question: str, verdict: Mapping[str, Any]) -> AgreementError:
    failures = {int(rank): str(text) for rank, text in verdict.get("failures", {}).items()}
    missing = [int(rank) for rank in verdict.get("missing", ())]
    parts = [f"rank {rank} failed: {text}" for rank, text in failures.items()]
    if missing:
        word = "rank" if len(missing) == 1 else "ranks"
        parts.append(f"no answer in time from {word} {_listed(missing)}")
    return AgreementError(f"{question}: {'; '.join(parts)}", failures=failures, missing=missing)


def _listed(ranks: Sequence[int], shown: int = 16) -> str:
    more = f" and {len(ranks) - shown} more" if len(ranks) > shown else ""
    return ", ".join(map(str, ranks[:shown])) + more
