"""What a principal may do follows from its role and its globs, never from what there is."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cachetier.access.access import Access
from cachetier.access.audit import Audit
from cachetier.access.principals import (
    ALLOWED,
    OWNER,
    Caller,
    Principal,
    principals_of,
)
from cachetier.access.roles import OPERATIONS, Role, Scope
from cachetier.access.tokens import Tokens
from cachetier.errors import ForbiddenError, UnauthorizedError

OWN = os.getuid()
TENANT = Principal("tenant", Role.WRITE, runs=("a-*", "shared"), uids=frozenset({1000}))
SOCKET = Path("/run/b.sock")


def access(*principals: Principal, allowed: tuple[int, ...] = ()) -> Access:
    tokens = Tokens(Path(os.devnull) / "none", {OWNER: "an-owners-secret"}, now=lambda: 0.0)
    return Access(principals_of(principals, allowed, None), tokens, Audit(), open_metrics=True)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_an_operation_is_for_its_role_and_those_above(operation: str) -> None:
    need = OPERATIONS[operation]
    for role in Role:
        may = Principal("p", role).may(need, None)
        assert may == (list(Role).index(role) >= list(Role).index(need.role))


@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_tenant_touches_its_own_runs_and_no_others(operation: str) -> None:
    need = OPERATIONS[operation]
    tenant = Principal("tenant", Role.ADMIN, runs=TENANT.runs)
    own, of_node = need.extent is Scope.OWN, need.extent is Scope.NODE
    assert tenant.may(need, "a-1") != of_node
    assert tenant.may(need, "shared") != of_node
    assert tenant.may(need, "b-1") == own
    assert tenant.may(need, "shared2") == own
    assert tenant.may(need, None) == own


def test_the_first_principal_that_knows_a_peer_is_it() -> None:
    group = Principal("group", Role.READ, gids=frozenset({50}))
    node = access(TENANT, group, allowed=(2000,))
    assert node.peer(None, 1000, {50}, 7).principal is TENANT
    assert node.peer(None, 1001, {9, 50}, 7).principal is group
    assert node.peer(None, 2000, {9}, 7).principal.name == ALLOWED
    assert node.peer(None, OWN, {9}, 7).principal.name == OWNER
    with pytest.raises(ForbiddenError, match="user 3000"):
        node.peer(None, 3000, {3000}, 7)


def test_user_and_group_must_both_be_met_where_both_are_given() -> None:
    both = Principal("both", Role.READ, uids=frozenset({1000}), gids=frozenset({50}))
    node = access(both)
    assert node.peer(None, 1000, {50}, 7).principal is both
    with pytest.raises(ForbiddenError):
        node.peer(None, 1000, {51}, 7)


def test_a_socket_of_its_own_admits_its_principal_alone() -> None:
    apart = Principal("apart", Role.WRITE, runs=("b-*",), socket=SOCKET)
    node = access(TENANT, apart)
    assert node.sockets() == {SOCKET: 0o666}
    assert node.peer(SOCKET, 4000, {4000}, 7).principal is apart
    assert node.peer(SOCKET, 1000, {1000}, 7).principal is apart
    with pytest.raises(ForbiddenError):
        node.peer(None, 4000, {4000}, 7)


def test_who_is_known_by_a_token_alone_is_nobody_at_a_socket() -> None:
    with pytest.raises(ForbiddenError):
        access(Principal("ci", Role.READ)).peer(None, 5000, {5000}, 7)


def test_with_a_socket_for_admins_the_owner_is_one_only_there() -> None:
    admin = Path("/run/admin.sock")
    tokens = Tokens(Path(os.devnull) / "none", {OWNER: "an-owners-secret"}, now=lambda: 0.0)
    node = Access(principals_of((), (), admin), tokens, Audit())
    assert node.sockets() == {admin: 0o600}
    with pytest.raises(ForbiddenError, match="collect needs admin"):
        node.check(node.peer(None, OWN, set(), 7), "collect", None)
    node.check(node.peer(admin, OWN, set(), 7), "collect", None)
    assert node.bearer("an-owners-secret", "::1").principal.role is Role.WRITE
    with pytest.raises(ForbiddenError):
        node.peer(admin, OWN + 1, set(), 7)


def test_a_refusal_says_what_is_lacking_and_nothing_of_what_there_is() -> None:
    node = access(TENANT)
    caller = Caller(TENANT, uid=1000, pid=7)
    for operation, run, words in [
        ("put", "b-1", "tenant may not touch run b-1"),
        ("status", "a-1", "status is about all runs; tenant may touch only some"),
        ("flush", None, "tenant may touch only some: name one"),
        ("collect", None, "the role write; collect needs admin"),
    ]:
        with pytest.raises(ForbiddenError, match=words):
            node.check(caller, operation, run)


def test_metrics_alone_need_no_token_and_only_where_that_is_so() -> None:
    node = access()
    scraper = node.bearer(None, "127.0.0.1", scrapes=True)
    node.check(scraper, "metrics", None)
    with pytest.raises(ForbiddenError):
        node.check(scraper, "link_create", None)  # a session shows runs, mounts and events
    with pytest.raises(UnauthorizedError, match="requires a token"):
        node.bearer(None, "127.0.0.1")
    with pytest.raises(UnauthorizedError, match="is not valid"):
        node.bearer("wrong", "127.0.0.1", scrapes=True)
