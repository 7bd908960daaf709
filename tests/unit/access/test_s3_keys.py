"""Keys of S3 clients: derived, never kept, ended, revoked, and the same answer time for all."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cachetier.access.access import Access
from cachetier.access.audit import Audit
from cachetier.access.principals import OWNER, Caller, Principal, principals_of
from cachetier.access.roles import Role
from cachetier.access.s3_keys import MASTER_FILE, S3Keys
from cachetier.access.tokens import KEYS_LIMIT, PAST_SECONDS, Tokens
from cachetier.errors import (
    ConfigError,
    EndedKeyError,
    ForbiddenError,
    InvalidRequestError,
    UnauthorizedError,
    UnknownKeyError,
    WrongSignatureError,
)

TEAM = Principal("team", Role.WRITE, runs=("t-*",), uids=frozenset({1000}))
OTHER = Principal("other", Role.WRITE)


class Time:
    now = 1_000_000.0


class Node:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.time = Time()
        self.audit = Audit(str(folder / "audit"))
        self.open()

    def open(self, *principals: Principal) -> None:
        self.tokens = Tokens(self.folder / "tokens.json", {}, now=lambda: self.time.now)
        self.access = Access(
            principals_of(principals or (TEAM, OTHER), (), None),
            self.tokens,
            self.audit,
            s3_keys=S3Keys(self.folder, self.tokens),
        )

    def signed(self, key_id: str, secret: str) -> Caller:
        """Sign as a client that knows ``secret``."""
        return self.access.signed(key_id, lambda real: real == secret, "10.0.0.7")

    def audited(self) -> list[dict[str, object]]:
        return [json.loads(line) for line in (self.folder / "audit").read_text().splitlines()]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    made = Node(tmp_path)
    yield made
    made.audit.close()


def test_a_key_opens_for_its_principal_and_its_secret_is_kept_nowhere(node: Node) -> None:
    key, secret = node.access.create_s3_key(TEAM, None)
    caller = node.signed(key.id, secret)
    assert (caller.principal, caller.token, caller.address) == (TEAM, key.id, "10.0.0.7")
    assert len(key.id) == 20 and key.id.isalnum() and key.id.isupper()
    kept = {path.name: path.read_text() for path in node.folder.iterdir()}
    assert not [name for name, text in kept.items() if secret in text]
    assert node.tokens.list() == [key]
    assert key.as_json()["kind"] == "s3"
    assert node.tokens.lives(key.id)


def test_a_key_holds_over_a_restart_and_two_keys_are_two_secrets(node: Node) -> None:
    key, secret = node.access.create_s3_key(TEAM, None)
    other, other_secret = node.access.create_s3_key(TEAM, None)
    assert (key.id, secret) != (other.id, other_secret)
    assert secret != other_secret
    node.open()
    assert node.signed(key.id, secret).principal is TEAM


def test_the_master_key_is_for_the_service_alone(node: Node) -> None:
    file = node.folder / MASTER_FILE
    assert file.stat().st_mode & 0o777 == 0o600
    file.chmod(0o640)
    with pytest.raises(ConfigError, match=r"cannot use the master key in .* others can read"):
        node.open()


def test_another_master_key_makes_all_keys_worthless(node: Node) -> None:
    key, secret = node.access.create_s3_key(TEAM, None)
    (node.folder / MASTER_FILE).unlink()
    node.open()
    with pytest.raises(WrongSignatureError):
        node.signed(key.id, secret)


def refusals(node: Node) -> dict[str, tuple[str, str, type[UnauthorizedError]]]:
    """Return id, secret and refusal of each kind of key that opens nothing."""
    known, secret = node.access.create_s3_key(TEAM, None)
    ended, ended_secret = node.access.create_s3_key(TEAM, 60.0)
    gone, gone_secret = node.access.create_s3_key(OTHER, None)
    revoked, revoked_secret = node.access.create_s3_key(TEAM, None)
    node.tokens.revoke(revoked.id)
    node.time.now += 60.0
    node.open(TEAM)
    bearer, _ = node.tokens.create("team", None)
    return {
        "unknown": ("CTS3AAAAAAAAAAAAAAAA", secret, UnknownKeyError),
        "empty": ("", secret, UnknownKeyError),
        "long": ("A" * (1 << 20), secret, UnknownKeyError),
        "a bearer token": (bearer.id, secret, UnknownKeyError),
        "wrong secret": (known.id, secret + "x", WrongSignatureError),
        "ended": (ended.id, ended_secret, EndedKeyError),
        "ended, wrong secret": (ended.id, "x", WrongSignatureError),
        "revoked": (revoked.id, revoked_secret, UnknownKeyError),
        "its principal is gone": (gone.id, gone_secret, UnknownKeyError),
    }


def test_what_opens_nothing_is_refused_and_audited_and_costs_the_same(node: Node) -> None:
    for what, (key_id, secret, kind) in refusals(node).items():
        asked: list[str] = []

        def look(real: str, secret: str = secret, asked: list[str] = asked) -> bool:
            asked.append(real)
            return real == secret

        with pytest.raises(kind):
            node.access.signed(key_id, look, "10.0.0.7")
        assert len(asked) == 1, what
    codes = [line["outcome"] for line in node.audited() if line["operation"] == "hello"]
    assert {"s3_key_unknown", "s3_signature", "s3_key_ended"} == set(codes)


def test_no_bearer_is_let_in_by_a_key(node: Node) -> None:
    key, secret = node.access.create_s3_key(TEAM, None)
    for text in (key.id, secret, f"ct_{key.id}_{secret}"):
        with pytest.raises(UnauthorizedError):
            node.access.bearer(text, "10.0.0.7")


def test_keys_are_kept_beside_tokens_and_read_again(node: Node) -> None:
    key, secret = node.access.create_s3_key(TEAM, 3600.0)
    token, bearer = node.tokens.create("team", None)
    node.open()
    assert node.signed(key.id, secret).token == key.id
    assert node.tokens.find(bearer) == token
    assert {each.as_json()["kind"] for each in node.tokens.list()} == {"s3", "token"}


def test_keys_that_ended_long_ago_are_forgotten(node: Node) -> None:
    old, _ = node.access.create_s3_key(TEAM, 60.0)
    node.tokens.create("team", 60.0)
    node.time.now += 60.0 + PAST_SECONDS
    new, _ = node.access.create_s3_key(TEAM, None)
    assert old not in node.tokens.list()
    assert [each.as_json()["kind"] for each in node.tokens.list()] == ["token", "s3"]
    assert new in node.tokens.list()


def test_one_principal_cannot_fill_the_file(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cachetier.access.tokens.KEYS_LIMIT", 3)
    assert KEYS_LIMIT > 3
    for _ in range(3):
        node.access.create_s3_key(TEAM, None)
    with pytest.raises(InvalidRequestError, match="team has 3 keys already"):
        node.access.create_s3_key(TEAM, None)
    node.access.create_s3_key(OTHER, None)


@pytest.mark.parametrize(
    ("caller", "wanted", "owner"),
    [(TEAM, None, "team"), (TEAM, "team", "team"), (None, None, OWNER), (None, "team", "team")],
)
def test_a_key_is_for_oneself_or_by_an_admin_for_others(
    node: Node, caller: Principal | None, wanted: str | None, owner: str
) -> None:
    asks = Caller(caller) if caller else node.access.peer(None, os.getuid(), {9}, 7)
    assert node.access.owner_of_key(asks, wanted).name == owner


@pytest.mark.parametrize(
    ("wanted", "refusal"), [("other", ForbiddenError), (7, ForbiddenError), ("", ForbiddenError)]
)
def test_nobody_but_an_admin_makes_a_key_for_others(
    node: Node, wanted: object, refusal: type[Exception]
) -> None:
    with pytest.raises(refusal):
        node.access.owner_of_key(Caller(TEAM), wanted)


def test_there_is_no_key_for_whom_there_is_not(node: Node) -> None:
    admin = node.access.peer(None, os.getuid(), {9}, 7)
    with pytest.raises(InvalidRequestError, match="there is no principal 'nobody'"):
        node.access.owner_of_key(admin, "nobody")


def test_without_a_door_there_are_no_keys(tmp_path: Path) -> None:
    tokens = Tokens(tmp_path / "tokens.json", {}, now=lambda: 0.0)
    access = Access(principals_of((TEAM,), (), None), tokens, Audit())
    calls: tuple[Callable[[], object], ...] = (
        lambda: access.owner_of_key(Caller(TEAM), None),
        lambda: access.create_s3_key(TEAM, None),
    )
    for call in calls:
        with pytest.raises(InvalidRequestError, match="no S3 door") as refused:
            call()
        assert "Set `s3`" in refused.value.hint
    with pytest.raises(UnknownKeyError):
        access.signed("CTS3AAAAAAAAAAAAAAAA", lambda _secret: True, "10.0.0.7")
    assert not (tmp_path / MASTER_FILE).exists()
