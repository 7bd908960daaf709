"""Which requests on their way to an S3 server meet trouble, and which trouble.

A ``Fault`` is a rule: which trouble, in which call of S3, and ``When``, counted over the requests
that it could strike. ``Troubles`` holds the rules, and counts what it saw and what it struck.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum

from cachetier.testing.http_wire import WireHead
from cachetier.testing.s3_operations import OPERATIONS, operation_of


class Trouble(StrEnum):
    """The faults that can happen to a request."""

    # Answered by the proxy; the server never sees the request.
    SLOW_DOWN = "slow_down"  # 503
    TOO_MANY_REQUESTS = "too_many_requests"  # 429
    REQUEST_TIMEOUT = "request_timeout"  # 408
    INTERNAL_ERROR = "internal_error"  # 500
    BAD_GATEWAY = "bad_gateway"  # 502 with a page of HTML, as a load balancer sends it
    GATEWAY_TIMEOUT = "gateway_timeout"  # 504, likewise
    ACCESS_DENIED = "access_denied"  # 403
    EXPIRED_TOKEN = "expired_token"  # 400
    TIME_SKEWED = "time_skewed"  # 403
    NO_SUCH_BUCKET = "no_such_bucket"  # 404
    NO_SUCH_UPLOAD = "no_such_upload"  # 404
    ERROR_IN_200 = "error_in_200"  # 200, and an error in the body
    # Cut off or held up.
    CLOSED = "closed"  # before anything is passed on
    RESET = "reset"  # half of the body is passed on, then both sides are reset
    STALL = "stall"  # nothing is passed on nor answered, until the client gives up
    LOST_REPLY = "lost_reply"  # the server does it, and the client never hears of it
    CUT_REPLY = "cut_reply"  # the server does it, and half of its answer arrives
    TRICKLE = "trickle"  # the server does it, and its answer comes byte by byte
    LATE = "late"  # the client is cut off, and the server does it a while after
    # Changed on the way.
    CORRUPT = "corrupt"  # one bit of the request's body flips
    WRONG_CHECKSUM = "wrong_checksum"  # in an answer that is fine otherwise
    WRONG_ETAG = "wrong_etag"  # likewise
    BROKEN_XML = "broken_xml"  # the second half of the answer's document is missing


_VERSIONED = frozenset(
    {"PutObject", "UploadPart", "CompleteMultipartUpload", "HeadObject", "GetObject"}
)
_ANSWERED_IN_XML = frozenset(
    {
        "CreateMultipartUpload",
        "UploadPartCopy",
        "CompleteMultipartUpload",
        "ListParts",
        "ListMultipartUploads",
        "ListObjects",
        "ListObjectsV2",
        "DeleteObjects",
    }
)
_ANSWERED_WITHOUT_BODY = frozenset({"HeadObject", "HeadBucket"})
_OF_UPLOAD = frozenset(
    {"UploadPart", "UploadPartCopy", "ListParts", "CompleteMultipartUpload", "AbortMultipartUpload"}
)
_CHANGING = frozenset(
    {
        *(
            "PutObject",
            "UploadPart",
            "UploadPartCopy",
            "CreateMultipartUpload",
            "CompleteMultipartUpload",
        ),
        *("AbortMultipartUpload", "DeleteObject", "DeleteObjects"),
    }
)


def can_strike(trouble: Trouble, operation: str, *, has_body: bool) -> bool:
    """Return whether ``trouble`` can happen to a call at all.

    ``lost_reply`` is for calls that change something, as is ``late``: to others it is ``closed``.
    """
    match trouble:
        case Trouble.RESET | Trouble.CORRUPT:
            return has_body
        case Trouble.WRONG_ETAG | Trouble.WRONG_CHECKSUM:
            return operation in _VERSIONED
        case Trouble.BROKEN_XML:
            return operation in _ANSWERED_IN_XML
        case Trouble.ERROR_IN_200:
            return operation not in _ANSWERED_WITHOUT_BODY
        case Trouble.LOST_REPLY | Trouble.LATE:
            return operation in _CHANGING
        case Trouble.NO_SUCH_UPLOAD:
            return operation in _OF_UPLOAD
    return True


@dataclass(frozen=True, slots=True)
class When:
    """Which of the requests that a fault could strike it does strike, counted from 1.

    Those are ``start``, ``start + every``, and so on, each with ``chance``, until ``times`` of them
    were struck (None: for ever).
    """

    start: int = 1
    every: int = 1
    times: int | None = 1
    chance: float = 1.0

    def __post_init__(self) -> None:
        if self.start < 1 or self.every < 1 or not 0.0 <= self.chance <= 1.0:
            raise ValueError("start and every count from 1, and a chance is between 0 and 1")


ALWAYS = When(times=None)


def nth(number: int) -> When:
    """Strike one request."""
    return When(start=number)


def first(times: int) -> When:
    """Strike the first requests."""
    return When(times=times)


def every(number: int) -> When:
    """Strike every so-many-th request."""
    return When(start=number, every=number, times=None)


def share(chance: float) -> When:
    """Strike this share of the requests, at random."""
    return When(times=None, chance=chance)


@dataclass(frozen=True, slots=True)
class Fault:
    """One rule; ``operation`` as S3 names it, None for any.

    Raises:
        ValueError: S3 has no such operation that the proxy knows.
    """

    trouble: Trouble
    operation: str | None = None
    when: When = When()

    def __post_init__(self) -> None:
        if self.operation is not None and self.operation not in OPERATIONS:
            raise ValueError(f"no operation {self.operation!r}; there are {', '.join(OPERATIONS)}")


@dataclass(slots=True)
class _Armed:
    fault: Fault
    seen: int = 0
    left: int | None = None


class Troubles:
    """The set of faults: thread-safe, and changeable while the proxy runs.

    ``seen`` counts the requests by operation, ``fired`` the troubles that struck, ``struck`` the
    requests that they struck by (trouble, operation).

    Args:
        faults: The rules; the first that is due strikes.
        slowdown_rate: Requests a second; what comes faster gets 503 SlowDown. 0 for no limit.
        retry_after_seconds: What answers that ask to slow down carry as ``Retry-After``.
        seed: For rules with a chance.
    """

    def __init__(
        self,
        faults: Iterable[Fault] = (),
        *,
        slowdown_rate: float = 0.0,
        retry_after_seconds: float | None = None,
        seed: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._lock = threading.Lock()
        self._armed: list[_Armed] = []
        self._random = random.Random(seed)
        self._rate = slowdown_rate
        self._limited: str | None = None
        self._clock = clock
        self._tokens = self._burst
        self._filled_at = clock()
        self.retry_after_seconds = retry_after_seconds
        self.seen: Counter[str] = Counter()
        self.fired: Counter[Trouble] = Counter()
        self.struck: Counter[tuple[Trouble, str]] = Counter()
        self.add(*faults)

    def add(self, *faults: Fault) -> None:
        """Add rules; each counts requests from now on."""
        with self._lock:
            self._armed += [_Armed(fault, left=fault.when.times) for fault in faults]

    def clear(self) -> None:
        """Forget every rule and the limit; the counts stay."""
        with self._lock:
            self._armed.clear()
        self.limit(0)

    def limit(self, slowdown_rate: float, operation: str | None = None) -> None:
        """Change the rate above which requests (of one operation) are told to slow down."""
        with self._lock:
            self._rate, self._limited = slowdown_rate, operation
            self._tokens = self._burst
            self._filled_at = self._clock()

    def strike(self, request: WireHead) -> Trouble | None:
        """Decide what happens to ``request``, and count it."""
        operation = operation_of(request)
        with self._lock:
            self.seen[operation] += 1
            trouble = self._due(operation, has_body=bool(request.request_framing))
            if trouble is not None:
                self.fired[trouble] += 1
                self.struck[trouble, operation] += 1
            return trouble

    def missed(self, trouble: Trouble, request: WireHead) -> None:
        """Take back what ``strike`` counted: the answer held nothing to change."""
        with self._lock:
            self.fired[trouble] -= 1
            self.struck[trouble, operation_of(request)] -= 1

    def _due(self, operation: str, *, has_body: bool) -> Trouble | None:
        limited = self._rate and self._limited in (None, operation)
        if limited and not self._take_token():
            return Trouble.SLOW_DOWN
        for armed in self._armed:
            fault = armed.fault
            if fault.operation not in (None, operation):
                continue
            if can_strike(fault.trouble, operation, has_body=has_body) and self._is_due(armed):
                return fault.trouble
        return None

    def _is_due(self, armed: _Armed) -> bool:
        armed.seen += 1
        when, beyond = armed.fault.when, armed.seen - armed.fault.when.start
        if armed.left == 0 or beyond < 0 or beyond % when.every:
            return False
        if when.chance < 1.0 and self._random.random() >= when.chance:
            return False
        if armed.left is not None:
            armed.left -= 1
        return True

    @property
    def _burst(self) -> float:
        return max(1.0, self._rate)  # a second's worth

    def _take_token(self) -> bool:
        now = self._clock()
        self._tokens = min(self._burst, self._tokens + (now - self._filled_at) * self._rate)
        self._filled_at = now
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True
