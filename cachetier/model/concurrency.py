"""How many requests at once bring the most, found by trying, and judged by what is answered.

A store gives each connection so much and no more, until the link is full, or the store is; from
there on more connections bring nothing, or less. Nobody says where that is. Bytes that have left us
tell little: a proxy, or a kernel, takes whole bodies at once and works through them later. So:

- **A round** is all requests that begin while their number stays as it is. What it brings is the
  work of those answered by the time they took, times how many there were: whether answers come one
  by one or all at once, and however long they take.
- **The opening** loses no time: while nothing is answered, waiting costs nothing, so the number is
  doubled. It stops early where bytes flow slowly and doubling does not make them flow faster,
  unless the answers that this promises do not come; and later where connections are slow, unless a
  few more of them bring more.
- **Steps.** A quarter more is tried, and doubled while that brings in proportion; what brings no
  8 % more is taken back, and what takes too long to be worth it is not waited for. Then a quarter
  less is tried: fewer that bring as much cost less, and there are stores that get slower.
- **Later** it is tried again, every 20 s, and at once when the same number brings another rate.

Pure: callers pass the time. Source: docs/design/0038-concurrency-by-answers.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from enum import Enum, auto

FIRST = 8
BLIND = 64  # what the opening goes to without an answer, or bytes that flow well
LOOK_SECONDS, LOOK_AT_LAST_SECONDS, SEE_SECONDS = 0.05, 0.15, 0.2
KNOW_SECONDS, TRY_SECONDS = 0.8, 1.2  # flows come in waves of half a second
STEADY = 1.3  # what grows less has begun; doubling at each round trip, it would grow more
A_FEW_MORE, TRIED = 1.125, 1.06  # the latter is what they have to bring
FLOWS_BYTES_PER_SECOND = 1e6  # of a connection; below it the link is full, unless
GROWS = 1.3  # bytes flow so much faster with twice as many
ANSWERS_DUE = 1.5  # how much longer than bytes promise answers may take
GAIN = 1.08  # what a step up has to bring, that it stays
LEAN = 0.97  # what a step down has to keep
IN_PROPORTION = 0.75
UP, FAR_UP = 1.25, 2.0
DOWN, FAR_DOWN = 0.75, 0.4
SHARED_BYTES_PER_SECOND = 3e6  # who gets less than this shares a link that is full, most likely
CHANGED = 1.3
LATER_SECONDS = 20.0
IDLE_SECONDS = 0.1
FULL = 0.6  # of the size, below which a round tells nothing of it
LEAST_ANSWERS = 3
LARGE_BYTES = 1 << 20  # what is smaller takes as long as its round trip, and opens nothing
REQUEST_BYTES = 256 << 10  # what a request without a body is worth


class _Phase(Enum):
    OPENING = auto()
    HOLDING = auto()
    UP = auto()
    DOWN = auto()


@dataclass(slots=True)
class _Round:
    """The requests that began since ``began_at``, as far as they are answered."""

    began_at: float
    answers: int = 0
    work: float = 0.0
    seconds: float = 0.0
    largest: float = 0.0
    under_way: float = 0.0  # integrated over time
    seen_at: float = field(init=False)

    def __post_init__(self) -> None:
        self.seen_at = self.began_at

    def go_on(self, now: float, in_flight: int) -> None:
        self.under_way += in_flight * (now - self.seen_at)
        self.seen_at = now

    @property
    def mean_in_flight(self) -> float:
        return self.under_way / max(1e-9, self.seen_at - self.began_at)

    @property
    def each(self) -> float:
        """The bytes that one request moves in a second while it is under way."""
        return self.work / max(1e-9, self.seconds)


@dataclass(slots=True)
class _Opening:
    """The bytes seen while nothing is answered: since when, and since half-way."""

    since: float
    began_at: float
    begun_bytes: float = 0.0
    moved: float = 0.0  # when the first request began
    settled: tuple[float, float] | None = None
    rate_before: float = 0.0
    answers_due_at: float | None = None
    to_beat: float = math.inf  # by a few more, while they are tried
    in_vain: bool = False

    def seconds_left(self, now: float, moved: float, pause_seconds: float) -> float:
        """Return how long to look on still; its first half settles what has just begun, if any."""
        if self.settled is None and now >= self.since + pause_seconds / 2:
            self.settled = (now, moved)
        return self.since + pause_seconds - now

    def rate(self, now: float, moved: float) -> float:
        """Return bytes a second since half of the pause was over."""
        since, before = self.settled or (now, moved)
        return (moved - before) / (now - since) if now > since else 0.0

    def go_on(self, now: float, rate: float, settled: tuple[float, float] | None = None) -> None:
        self.since, self.settled, self.rate_before, self.answers_due_at = now, settled, rate, None


@dataclass(frozen=True, slots=True)
class _Kept:
    """The limit that is known to be good."""

    size: int
    rate: float


@dataclass(frozen=True, slots=True)
class Begun:
    """A request that began, for when it is answered."""

    round: _Round
    at: float
    work: float


class Search:
    """``size`` is how many there may be at once now, up to ``limit``; ``in_flight`` are there.

    ``look`` is for whoever finds no room.
    """

    def __init__(self, limit: int, found: int | None = None) -> None:
        """Begin with what was ``found`` before, if anything was; else by an opening."""
        self.size = min(FIRST if found is None else found, limit)
        self._opens = found is None
        self._limit = limit
        self.in_flight = 0
        self._phase = _Phase.HOLDING
        self._round = _Round(-math.inf)
        self._opening = _Opening(0.0, 0.0)
        self._kept: _Kept | None = None
        self._factor = UP
        self._went_up = False
        self._search_at = -math.inf
        self._quickest_seconds = 0.0  # 0: nothing was answered yet

    @property
    def found(self) -> int | None:
        """How many are known to be good; None while nobody knows, or more are still tried."""
        is_settled = self._search_at > -math.inf
        return self._kept.size if self._kept is not None and is_settled else None

    # --- requests --------------------------------------------------------------------------------

    def begin(self, now: float, size_bytes: int, moved: float) -> Begun:
        """Count a request that begins, with ``size_bytes`` to send or to get."""
        work = float(size_bytes + REQUEST_BYTES)
        if self._opens and size_bytes >= LARGE_BYTES:
            self._opens, self._phase = False, _Phase.OPENING
            self._round, self._opening = _Round(now), _Opening(now, now, moved=moved)
        elif not self.in_flight and now - self._round.seen_at > IDLE_SECONDS:
            self._take_back(now)  # time in which nothing was asked tells nothing
        self._round.go_on(now, self.in_flight)
        self._round.largest = max(self._round.largest, work)
        self.in_flight += 1
        self._opening.begun_bytes += size_bytes
        return Begun(self._round, now, work)

    def answered(self, begun: Begun, now: float) -> None:
        """Count an answer, and go a step further once there are enough to judge by."""
        self.gone(now)
        took = now - begun.at
        quickest = self._quickest_seconds
        self._quickest_seconds = min(took, quickest) if quickest else took
        if begun.round is not self._round:
            return
        if self._phase is _Phase.OPENING and begun.work >= self._round.largest / 2:
            self._phase = _Phase.HOLDING
        self._round.answers += 1
        self._round.work += begun.work
        self._round.seconds += took
        enough = max(LEAST_ANSWERS, self.size // 2)
        if self._phase is not _Phase.OPENING and self._round.answers >= enough:
            self._judge(now)

    def gone(self, now: float) -> None:
        """Count a request that ended without an answer that says something."""
        self._round.go_on(now, self.in_flight)
        self.in_flight -= 1

    def cut(self, now: float) -> None:
        """Give up the present step, as the store wants fewer; what was known counts no more."""
        self._take_back(now)
        self._kept = None

    def look(self, now: float, moved: float) -> float:
        """Have more begin, or fewer, where answers are slow to come; return when to look again."""
        if self._phase is _Phase.OPENING and self.size < self._limit:
            return self._open(now, moved)
        if self._phase is _Phase.UP and self._kept is not None:
            worth_seconds = self.size * self._round.largest / (GAIN * max(1.0, self._kept.rate))
            left_seconds = self._round.began_at + worth_seconds - now
            if left_seconds > 0.0:
                return left_seconds
            self._take_back(now)
            self._try_fewer(now, DOWN)
        return math.inf

    # --- the opening -----------------------------------------------------------------------------

    def _open(self, now: float, moved: float) -> float:
        seen = self._opening
        unsent = seen.begun_bytes - (moved - seen.moved)
        if self.size >= BLIND:
            return self._open_seeing(now, moved, unsent)
        return self._open_blind(now, moved, unsent)

    def _open_blind(self, now: float, moved: float, unsent: float) -> float:
        """Have more begin, unless bytes flow slowly and more make them no faster."""
        seen, all_sent = self._opening, unsent <= self._opening.begun_bytes / 10
        pause_seconds = LOOK_SECONDS
        if not all_sent:
            pause_seconds = min(max(LOOK_SECONDS, self._quickest_seconds), LOOK_AT_LAST_SECONDS)
        if seen.seconds_left(now, moved, pause_seconds) > 0.0:
            return LOOK_SECONDS / 4
        if not all_sent and seen.answers_due_at is not None and now < seen.answers_due_at:
            return LOOK_SECONDS
        rate = seen.rate(now, moved)
        # A moment in which nothing moves, as a disk is slow, is no evidence: so of all the time.
        overall = (moved - seen.moved) / max(1e-9, now - seen.began_at)
        grows = not seen.rate_before or rate >= GROWS * seen.rate_before
        goes_on = all_sent or grows or overall >= FLOWS_BYTES_PER_SECOND * self.size
        if seen.answers_due_at is None and not goes_on:
            seen.answers_due_at = now + ANSWERS_DUE * unsent / max(LARGE_BYTES, overall)
            return LOOK_SECONDS
        self.size = min(2 * self.size, self._limit)
        seen.go_on(now, 0.0 if all_sent or self.size >= BLIND else rate)
        return LOOK_SECONDS / 4

    def _open_seeing(self, now: float, moved: float, unsent: float) -> float:
        """Have more begin where it is seen that connections do not share a link that is full.

        Slow ones may, or each of them is slow: a few more, tried once, tell.
        """
        seen = self._opening
        # What comes first, after the round trips of a connection, had been waiting in buffers.
        pause_seconds = SEE_SECONDS + 4 * min(self._quickest_seconds, LOOK_AT_LAST_SECONDS)
        if seen.rate_before:
            pause_seconds = KNOW_SECONDS if seen.to_beat == math.inf else TRY_SECONDS
        if seen.seconds_left(now, moved, pause_seconds) > 0.0:
            return LOOK_SECONDS / 4
        rate, before, size = seen.rate(now, moved), seen.rate_before, self.size
        if unsent <= seen.begun_bytes / 10:
            rate = 0.0
        elif rate >= min(SHARED_BYTES_PER_SECOND * self.size, seen.to_beat):
            self._went_up = rate >= seen.to_beat
            self.size, rate, seen.to_beat = min(2 * self.size, self._limit), 0.0, math.inf
        elif seen.to_beat < math.inf:
            self.size, seen.to_beat, seen.in_vain = round(self.size / A_FEW_MORE), math.inf, True
        elif not seen.in_vain and rate < STEADY * before:
            self.size, seen.to_beat = min(int(A_FEW_MORE * self.size), self._limit), TRIED * rate
        seen.go_on(now, rate, (now, moved) if self.size == size else None)
        return LOOK_SECONDS / 4

    # --- steps -----------------------------------------------------------------------------------

    def _judge(self, now: float) -> None:
        seen, kept = self._round, self._kept
        rate = seen.mean_in_flight * seen.each
        if seen.mean_in_flight < FULL * self.size:
            self._take_back(now)
            return
        found = _Kept(self.size, rate)
        if self._phase is _Phase.HOLDING or kept is None:
            self._judge_present(now, found)
        elif self._phase is _Phase.UP:
            self._judge_more(now, found, kept)
        else:
            self._judge_fewer(now, found, kept)

    def _judge_present(self, now: float, found: _Kept) -> None:
        known, self._kept = self._kept, found
        changed = known is not None and not 1 / CHANGED < found.rate / known.rate < CHANGED
        if now < self._search_at and not changed:
            self._round = _Round(now)
        elif self._round.each < SHARED_BYTES_PER_SECOND and not self._went_up:
            self._try_fewer(now, FAR_DOWN)
        else:
            self._try_more(now)

    def _judge_more(self, now: float, found: _Kept, before: _Kept) -> None:
        if found.rate >= GAIN * before.rate:
            brought = found.rate / before.rate >= IN_PROPORTION * found.size / before.size
            self._factor = FAR_UP if brought else UP
            self._kept = found
            self._try_more(now)
        else:
            self.size = before.size
            self._try_fewer(now, DOWN)

    def _judge_fewer(self, now: float, found: _Kept, before: _Kept) -> None:
        if found.rate >= LEAN * before.rate:
            self._kept = replace(found, rate=max(found.rate, before.rate))  # or it would slide
            self._try_fewer(now, DOWN)
            return
        self.size = before.size
        if not self._went_up and self._round.each > SHARED_BYTES_PER_SECOND:
            self._try_more(now)
        else:
            self._settle(now)

    def _try_more(self, now: float) -> None:
        self._went_up = True
        if self.size >= self._limit:
            self._settle(now)
            return
        self._phase, self._round = _Phase.UP, _Round(now)
        self.size = min(self._limit, max(self.size + 1, int(self.size * self._factor)))

    def _try_fewer(self, now: float, factor: float) -> None:
        if self.size <= 1:
            self._settle(now)
            return
        self._phase, self._round = _Phase.DOWN, _Round(now)
        self.size = max(1, int(self.size * factor))

    def _settle(self, now: float) -> None:
        self._phase, self._round, self._factor = _Phase.HOLDING, _Round(now), UP
        self._search_at = now + LATER_SECONDS

    def _take_back(self, now: float) -> None:
        """Go back to what is known to be good."""
        if self._phase in (_Phase.UP, _Phase.DOWN) and self._kept is not None:
            self.size = self._kept.size
        self._phase, self._round = _Phase.HOLDING, _Round(now)
