"""Who has not the token is refused on every route, however its credentials look.

The door knows two roles: who has the token, and everybody else. Tokens neither expire nor differ in
what they allow; one of another node is a forged one here.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from tests.faults.counting import count
from tests.faults.slices import share_of
from tests.integration.hostile import Operation, Sent, answered, operations_of, usual_target
from tests.integration.serving import Served, serving

TOKEN = "kT7-pzQ2.mXw9_bLrV4sYc8dJf3gHn6a"
OPEN_PATHS = ("/livez", "/readyz")
HOLDER = {"Authorization": f"Bearer {TOKEN}"}
SEEDS = range(48)


@pytest.fixture(scope="module")
def guarded() -> Iterator[Served]:
    with serving(token=TOKEN) as served:
        path = "/v1/runs/r/steps/1/shards/kept"
        assert served.call("PUT", path, b"kept", HOLDER).status == 201
        yield served


def forged(chance: random.Random) -> list[tuple[bytes, bytes]]:
    """Return headers that hold everything but the token in its place."""
    at = chance.randrange(len(TOKEN))
    another = "".join(chance.choices("abcXYZ019-._", k=len(TOKEN)))
    authorizations = (
        f"Bearer {TOKEN[:at]}{chr(ord(TOKEN[at]) ^ 1)}{TOKEN[at + 1 :]}",
        f"Bearer {TOKEN[:at]}",
        f"Bearer {TOKEN}{chance.choice('aZ0.,=')}",
        f"Bearer {TOKEN.swapcase()}",
        f"Bearer {TOKEN[::-1]}",
        f"Bearer {TOKEN} {TOKEN}",
        f"Bearer{chance.choice(('  ', '', chr(9), '='))}{TOKEN}",
        f"{chance.choice(('bearer', 'Basic', 'Token', 'Digest', 'AWS4-HMAC-SHA256'))} {TOKEN}",
        f"Bearer {another}",
        f'Bearer "{TOKEN}"',
        f"Bearer {'x' * chance.choice((1, 5000))}",
        f"Bearer é{TOKEN}",
        TOKEN,
        "",
    )
    elsewhere = ("Cookie", "X-Authorization", "Proxy-Authorization", "X-Forwarded-User", "Token")
    headers = [(chance.choice(elsewhere).encode(), f"Bearer {TOKEN}".encode())]
    if chance.random() < 0.9:
        headers.append((b"Authorization", chance.choice(authorizations).encode("latin-1")))
    return headers


def state_of(guarded: Served) -> list[bytes]:
    paths = ("/v1/runs/r/steps/1", "/v1/runs", "/v1/pins", "/v1/runs/r/steps/1/shards/kept")
    return [guarded.call("GET", path, headers=HOLDER).body for path in paths]


@pytest.mark.parametrize("seed", share_of(SEEDS))
def test_no_forged_token_opens_any_route(
    guarded: Served, seed: int, request: pytest.FixtureRequest
) -> None:
    chance, before = random.Random(seed), state_of(guarded)
    for_all = (*OPEN_PATHS, "/metrics")  # which a scraper here gets without a token
    operations = [each for each in operations_of(guarded, HOLDER) if each.path not in for_all]
    for operation in (*operations, Operation("GET", "/no/such/route")):
        target = usual_target(operation) + chance.choice(("", f"?token={TOKEN}"))
        body = b"{}" if operation.method in ("POST", "PUT") else b""
        headers = [*forged(chance), (b"Content-Type", b"application/json")]
        sent = Sent(operation.method, target, headers, body, bearer=None)
        status, answer = answered(guarded.call, sent)
        assert status == 401, (sent, answer)
        assert TOKEN.encode() not in answer
    assert state_of(guarded) == before
    count(request, "unauthorized requests refused", len(operations) + 1, seed)


def test_who_has_the_token_gets_past_it_on_every_route(guarded: Served) -> None:
    """Or the refusals above would prove nothing."""
    for operation in operations_of(guarded, HOLDER):
        target = usual_target(operation).replace("/r/", "/another/")
        query = "?timeout_seconds=0" if "timeout_seconds" in operation.query else ""
        assert guarded.call(operation.method, target + query, headers=HOLDER).status != 401


@pytest.mark.parametrize("path", OPEN_PATHS)
def test_whether_the_service_lives_is_told_to_everybody(guarded: Served, path: str) -> None:
    assert guarded.call("GET", path).status == 200
