"""A link begins one session, which ends by itself, and does no more than its maker may."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from cachetier.access.audit import Audit
from cachetier.access.principals import Caller, Principal
from cachetier.access.roles import Role
from cachetier.access.sessions import (
    EACH_LIMIT,
    IDLE_SECONDS,
    LINK_SECONDS,
    SESSION_SECONDS,
    Sessions,
    csrf_of,
)
from cachetier.access.tokens import Tokens
from cachetier.errors import ForbiddenError, InvalidRequestError, UnauthorizedError

TEAM = Caller(Principal("team", Role.READ), uid=1000, pid=7)
OTHER = Caller(Principal("other", Role.READ), uid=1001, pid=8)
BASE = "http://127.0.0.1:7070"


class Time:
    monotonic = 0.0
    now = 0.0


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def tokens(tmp_path: Path, time: Time) -> Tokens:
    return Tokens(tmp_path / "tokens.json", {"owner": "an-owners-secret"}, now=lambda: time.now)


@pytest.fixture
def audit(tmp_path: Path) -> Iterator[Audit]:
    opened = Audit(str(tmp_path / "audit"))
    yield opened
    opened.close()


@pytest.fixture
def sessions(tokens: Tokens, audit: Audit, time: Time) -> Sessions:
    return Sessions(tokens, audit, lambda: time.monotonic)


def link_of(sessions: Sessions, caller: Caller = TEAM) -> str:
    return str(sessions.create_link(caller, BASE)["url"]).removeprefix(f"{BASE}/session?link=")


def test_a_session_is_its_makers_at_the_address_it_is_used_from(sessions: Sessions) -> None:
    caller = sessions.find(sessions.begin(link_of(sessions), "10.0.0.1"), "10.0.0.2")
    assert caller is not None and caller.session is not None
    assert (caller.principal, caller.uid, caller.pid) == (TEAM.principal, TEAM.uid, None)
    assert (caller.address, caller.shown) == ("10.0.0.2", "team, user 1000")


def test_to_look_at_a_link_does_not_use_it_up_and_to_use_it_does(sessions: Sessions) -> None:
    link = link_of(sessions)
    assert sessions.offered(link) == sessions.offered(link) == TEAM
    sessions.begin(link, "")
    assert sessions.offered(link) is None
    with pytest.raises(UnauthorizedError):
        sessions.begin(link, "")


@pytest.mark.parametrize(("seconds", "lives"), [(LINK_SECONDS - 1, True), (LINK_SECONDS, False)])
def test_a_link_lives_a_minute_however_often_it_is_looked_at(
    sessions: Sessions, time: Time, seconds: float, lives: bool
) -> None:
    link = link_of(sessions)
    time.monotonic += seconds / 2
    assert sessions.offered(link)
    time.monotonic += seconds / 2
    assert (sessions.offered(link) is not None) == lives


def test_a_session_that_is_used_lives_for_hours_and_then_ends(
    sessions: Sessions, time: Time
) -> None:
    secret = sessions.begin(link_of(sessions), "")
    while time.monotonic < SESSION_SECONDS - IDLE_SECONDS:
        time.monotonic += IDLE_SECONDS - 1
        assert sessions.find(secret, "")
    time.monotonic = SESSION_SECONDS
    assert sessions.find(secret, "") is None


def test_a_session_that_rests_ends(sessions: Sessions, time: Time) -> None:
    secret = sessions.begin(link_of(sessions), "")
    time.monotonic += IDLE_SECONDS
    assert sessions.find(secret, "") is None
    time.monotonic -= IDLE_SECONDS
    assert sessions.find(secret, "") is None


def test_a_session_that_was_ended_is_nobodys(sessions: Sessions) -> None:
    secret, other = (sessions.begin(link_of(sessions), "") for _ in range(2))
    sessions.end(secret)
    sessions.end("never was one")
    assert sessions.find(secret, "") is None
    assert sessions.find(other, "") is not None
    assert sessions.find(None, "") is None


def test_one_session_too_many_ends_the_one_of_that_principal_that_rests_longest(
    sessions: Sessions,
) -> None:
    others = sessions.begin(link_of(sessions, OTHER), "")
    secrets = [sessions.begin(link_of(sessions), "") for _ in range(EACH_LIMIT)]
    assert sessions.find(secrets[0], "")
    secrets.append(sessions.begin(link_of(sessions), ""))
    living = [sessions.find(secret, "") is not None for secret in secrets]
    assert living == [True, False] + [True] * (EACH_LIMIT - 1)
    assert sessions.find(others, "")


def test_one_link_too_many_ends_the_oldest(sessions: Sessions) -> None:
    links = [link_of(sessions) for _ in range(EACH_LIMIT + 1)]
    assert [sessions.offered(link) is not None for link in links] == [False] + [True] * EACH_LIMIT


def test_a_session_ends_with_the_token_that_asked_for_it(
    sessions: Sessions, tokens: Tokens, time: Time
) -> None:
    ending, _ = tokens.create("team", 60.0)
    revoked, _ = tokens.create("team", None)
    by = [Caller(TEAM.principal, token=each) for each in (ending.id, revoked.id, "owner")]
    secrets = [sessions.begin(link_of(sessions, each), "") for each in by]
    assert all(sessions.find(secret, "") for secret in secrets)
    time.now += 60.0
    tokens.revoke(revoked.id)
    assert [sessions.find(secret, "") is not None for secret in secrets] == [False, False, True]


def test_a_session_makes_no_link_and_so_never_outlives_itself(sessions: Sessions) -> None:
    caller = sessions.find(sessions.begin(link_of(sessions), ""), "")
    assert caller is not None
    with pytest.raises(ForbiddenError):
        sessions.create_link(caller, BASE)


def test_there_is_no_link_to_a_door_that_is_not_there(sessions: Sessions) -> None:
    with pytest.raises(InvalidRequestError):
        sessions.create_link(TEAM, None)


@pytest.mark.parametrize(
    ("bound", "called"),
    [
        ("http://0.0.0.0:7070", "http://127.0.0.1:7070"),
        ("http://[::]:7070", "http://[::1]:7070"),
        ("http://10.0.0.1:7070", "http://10.0.0.1:7070"),
    ],
)
def test_a_link_leads_to_an_address_that_can_be_opened(
    sessions: Sessions, bound: str, called: str
) -> None:
    assert sessions.create_link(TEAM, bound)["url"].startswith(f"{called}/session?link=")


def test_no_secret_is_kept_or_written(sessions: Sessions, audit: Audit, tmp_path: Path) -> None:
    link = link_of(sessions)
    secret = sessions.begin(link, "10.0.0.1")
    sessions.end(secret)
    kept = [*sessions._links._kept, *sessions._sessions._kept]
    written = (tmp_path / "audit").read_text()
    for each in (link, secret, csrf_of(secret)):
        assert each not in kept and each not in written
    lines = [json.loads(line) for line in written.splitlines()]
    assert [each["operation"] for each in lines] == ["login", "logout"]
    with pytest.raises(UnauthorizedError):
        sessions.begin(link, "10.0.0.9")
    refused = json.loads((tmp_path / "audit").read_text().splitlines()[-1])
    assert (refused["operation"], refused["refused"], refused["address"]) == (
        *("login", True, "10.0.0.9"),
    )
    assert lines[0]["session"] == lines[1]["session"]
    assert lines[0]["address"] == "10.0.0.1" and lines[0]["principal"] == "team"


def test_each_session_has_a_csrf_token_of_its_own() -> None:
    assert csrf_of("a") == csrf_of("a") != csrf_of("b")
