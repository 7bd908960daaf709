"""Judge each request at every door: who calls, whether they may, and the line that says so."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cachetier.access.audit import Audit
from cachetier.access.principals import OWNER, SCRAPER, Caller, Principal
from cachetier.access.quotas import Quotas
from cachetier.access.roles import OPERATIONS, Need, Scope
from cachetier.access.s3_keys import S3Keys
from cachetier.access.sessions import Sessions
from cachetier.access.tokens import Token, Tokens
from cachetier.errors import (
    CachetierError,
    EndedKeyError,
    ForbiddenError,
    InvalidRequestError,
    UnauthorizedError,
    UnknownKeyError,
    WrongSignatureError,
)


class Access:
    """The access rules of this node. Thread-safe."""

    def __init__(
        self,
        principals: Sequence[Principal],
        tokens: Tokens,
        audit: Audit,
        *,
        open_metrics: bool = False,
        quotas: Quotas | None = None,
        hosts: Collection[str] = (),
        s3_keys: S3Keys | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Judge by ``principals``; with ``open_metrics`` the metrics want no token.

        ``hosts`` are names, beside localhost, by which browsers may call. Without ``s3_keys`` no S3
        client is anybody.
        """
        self.quotas = quotas or Quotas()
        self._principals = tuple(principals)
        self._named: dict[str, Principal] = {}
        for each in (SCRAPER, *principals):  # of two owners the first: it is an admin at its socket
            self._named.setdefault(each.name, each)
        self._open_metrics = open_metrics
        self._audit = audit
        self.tokens = tokens
        self.hosts = frozenset(each.lower() for each in hosts)
        self._s3_keys = s3_keys
        self.sessions = Sessions(tokens, audit, monotonic)
        self.shared_uid: int | None = None  # once a rank of the service's own user has written

    def sockets(self) -> dict[Path, int]:
        """Return the sockets that principals have for themselves, and the mode of each."""
        return {
            each.socket: 0o600 if each.name == OWNER else 0o666
            for each in self._principals
            if each.socket is not None
        }

    def peer(self, socket: Path | None, uid: int, gids: Collection[int], pid: int) -> Caller:
        """Return who has connected to ``socket``; None is the one of the service.

        Raises:
            ForbiddenError: Nobody whom the settings know.
        """
        for principal in self._principals:
            if principal.is_peer(socket, uid, gids):
                return Caller(principal, uid=uid, pid=pid)
        refused = ForbiddenError(f"user {uid} may not use this service")
        self._audit.refused("hello", refused.code, uid=uid, pid=pid)
        raise refused

    def bearer(self, secret: str | None, address: str, *, scrapes: bool = False) -> Caller:
        """Return whose token ``secret`` is, which came from ``address``; None: they sent none.

        ``scrapes``: they want the metrics, for which not everybody needs one.

        Raises:
            UnauthorizedError: Nobody's, or its time is over.
        """
        if secret is None and scrapes and self._open_metrics:
            return Caller(SCRAPER, address=address)
        token = None if secret is None else self.tokens.find(secret)
        principal = None if token is None else self._named.get(token.principal)
        if token is None or principal is None:
            wrong = "this service requires a token" if secret is None else "this token is not valid"
            refused = UnauthorizedError(wrong)
            self._audit.refused("hello", refused.code, address=address)
            raise refused
        return Caller(principal, token=token.id, address=address)

    def signed(self, key_id: str, is_signed_by: Callable[[str], bool], address: str) -> Caller:
        """Return who signed a request of S3, which came from ``address``.

        Args:
            key_id: What the request says that it is signed with.
            is_signed_by: Returns whether it is signed with a secret; called once, whatever key_id
                says, so that nobody learns by the time it takes which keys there are.

        Raises:
            UnknownKeyError, WrongSignatureError, EndedKeyError: Nobody, for S3's reason.
        """
        key = None if self._s3_keys is None else self._s3_keys.find(key_id, is_signed_by)
        principal = None if key is None else self._named.get(key.principal)
        try:
            if key is None or principal is None:
                raise UnknownKeyError("this access key is not known here")
            if not key.is_signed:
                raise WrongSignatureError("the signature does not match the request and the key")
            if key.has_ended:
                raise EndedKeyError("this key has expired")
        except UnauthorizedError as error:
            known = key.id if key is not None else None  # what there is not, anybody can make up
            self._audit.refused("hello", error.code, address=address, token=known)
            raise
        return Caller(principal, token=key.id, address=address)

    def turned_away(self, error: CachetierError, address: str) -> None:
        """Have the audit log say that a browser was refused for what sent it."""
        self._audit.refused("browser", error.code, address=address)

    def check(self, caller: Caller, operation: str, run: str | None) -> Need:
        """Return what ``operation`` needs if ``caller`` may do it, on ``run`` if it names one.

        Whether there is such a run plays no part.

        Raises:
            ForbiddenError: They may not.
        """
        need = OPERATIONS[operation]
        if not caller.principal.may(need, run):
            raise ForbiddenError(_refusal(caller.principal, operation, need, run), hint=_HINT)
        if operation == "begin" and caller.uid == os.getuid():
            self.shared_uid = caller.uid
        return need

    @contextmanager
    def doing(
        self, caller: Caller, operation: str, run: str | None = None, **what: Any
    ) -> Iterator[None]:
        """Let ``caller`` do ``operation`` inside; how it ends stands in the audit log.

        Raises:
            ForbiddenError: As ``check``; nothing was done.
        """
        try:
            need = self.check(caller, operation, run)
        except ForbiddenError as error:
            self._audit.refused(operation, error.code, caller, run=run)
            raise
        if not need.audited or not self._audit.is_on:
            yield
            return
        try:
            yield
        except BaseException as error:
            outcome = error.code if isinstance(error, CachetierError) else "internal"
            self._audit.done(operation, outcome, caller, run=run, **what)
            raise
        self._audit.done(operation, "ok", caller, run=run, **what)

    def described(self, caller: Caller) -> dict[str, Any]:
        """Return what a caller may know of themselves, with what their share has and may have."""
        principal = caller.principal
        known: dict[str, Any] = {"principal": principal.name, "role": principal.role}
        known["runs"] = list(principal.runs)
        if shares := self.quotas.described(principal.name):
            known["share"] = shares[0]
        return {**known, **caller.known}

    def create_token(self, principal: object, expires_seconds: float | None) -> dict[str, Any]:
        """Make a token for a principal; the answer is the only place that ever shows it.

        Raises:
            InvalidRequestError: There is no such principal.
        """
        owner = self._principal(principal)
        token, secret = self.tokens.create(owner.name, expires_seconds)
        return {**token.as_json(), "token": secret}

    def owner_of_key(self, caller: Caller, principal: object) -> Principal:
        """Return for whom ``caller`` may make a key of an S3 client: None, or somebody's name.

        Raises:
            ForbiddenError: It is for somebody else, and the caller is no admin.
            InvalidRequestError: There is no such principal, or no S3 door.
        """
        if self._s3_keys is None:
            raise InvalidRequestError("this service has no S3 door", hint=_NO_DOOR)
        if principal is None or principal == caller.principal.name:
            return caller.principal
        self.check(caller, "token_create", None)
        return self._principal(principal)

    def create_s3_key(self, owner: Principal, expires_seconds: float | None) -> tuple[Token, str]:
        """Make a key of an S3 client; the secret beside it is shown nowhere else."""
        if self._s3_keys is None:
            raise InvalidRequestError("this service has no S3 door", hint=_NO_DOOR)
        return self._s3_keys.create(owner.name, expires_seconds)

    def _principal(self, name: object) -> Principal:
        if not isinstance(name, str) or name not in self._named:
            raise InvalidRequestError(
                f"there is no principal {str(name)[:60]!r}",
                hint=f"Known principals: {', '.join(self._named)}. Add others as [[principal]].",
            )
        return self._named[name]


_NO_DOOR = "Set `s3` to an address such as 127.0.0.1:7071, and add an [[s3_mount]]."
_HINT = "`cachetier whoami` says what this principal may do; [[principal]] in the settings decides."


def _refusal(principal: Principal, operation: str, need: Need, run: str | None) -> str:
    if not principal.role.covers(need.role):
        return f"{principal.name} has the role {principal.role}; {operation} needs {need.role}"
    if run is None or need.extent is Scope.NODE:
        advice = ": name one" if need.extent is Scope.RUN_OR_NODE else ""
        return f"{operation} is about all runs; {principal.name} may touch only some{advice}"
    if operation.startswith("s3_"):  # they named a key, and not whose mount it lies in
        return f"{principal.name} may not touch what lies there"
    return f"{principal.name} may not touch run {run}"
