"""Who is a peer: asked, refused by name, left out for a while, and asked again."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict, replace
from typing import Any

import pytest

from cachetier.errors import CachetierError, IntegrityError, NotFoundError, TransientError
from cachetier.remote.neighbours.client import HttpPeer
from cachetier.remote.neighbours.membership import (
    AWAY_SECONDS,
    FRESH_SECONDS,
    LIAR_SECONDS,
    LOOK_UP_SECONDS,
    Membership,
    NodeIdentity,
)
from tests.fakes.fake_clock import FakeClock

OWN = NodeIdentity("store-1", "s3 bucket tier/")
LISTED = ("n1:7072", "n2:7072", "n3:7072")
NAMES = {"n1": ["10.0.0.1"], "n2": ["10.0.0.2"], "n3": ["10.0.0.3"]}


class FakePeer(HttpPeer):
    """Says what the world has it say, by its address; an error is raised."""

    def __init__(self, world: World, host: str, address: str, port: int) -> None:
        super().__init__(host, (address, port), {})
        self._world = world

    def hello(self) -> dict[str, Any]:
        self._world.asked.append(self.where[0])
        found = self._world.answers.get(self.where[0], TransientError("nobody there"))
        if isinstance(found, CachetierError):
            raise found
        return found if isinstance(found, dict) else asdict(found)


class World:
    def __init__(self, clock: FakeClock, listed: tuple[str, ...] = LISTED) -> None:
        self.names = {name: list(found) for name, found in NAMES.items()}
        self.answers: dict[str, Any] = {
            f"10.0.0.{number}": replace(OWN, store=f"store-{number}") for number in (1, 2, 3)
        }
        self.asked: list[str] = []
        self.clock = clock
        self.members = Membership(
            listed, OWN, lambda *where: FakePeer(self, *where), clock, self.resolve
        )

    def resolve(self, host: str) -> Collection[str]:
        if host not in self.names:
            raise OSError(-2, "Name or service not known")
        return self.names[host]

    def answering(self) -> list[str]:
        return sorted(each.name for each in self.members.answering())

    def failed(self, name: str, error: CachetierError) -> None:
        peer = next(each for each in self.members.answering() if each.name == name)
        self.members.failed(peer, error)


@pytest.fixture
def world(clock: FakeClock) -> World:
    return World(clock)


def test_all_that_answer_are_peers_but_this_node_itself(world: World) -> None:
    assert world.answering() == ["store-2", "store-3"]
    assert world.members.problems == ()


def test_they_are_asked_once_in_a_while(world: World) -> None:
    for _ in range(3):
        world.answering()
    assert sorted(world.asked) == ["10.0.0.1", "10.0.0.2", "10.0.0.3"]
    world.clock.advance(FRESH_SECONDS)
    world.answering()
    assert len(world.asked) == 6


def test_one_name_may_stand_for_all(clock: FakeClock) -> None:
    world = World(clock, ("all:7072",))
    world.names["all"] = ["10.0.0.1", "10.0.0.2"]
    assert world.answering() == ["store-2"]
    world.names["all"] = ["10.0.0.1", "10.0.0.3"]
    world.clock.advance(FRESH_SECONDS)
    assert world.answering() == ["store-3"]


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (
            replace(OWN, store="x", bucket="other"),
            "the node x at 10.0.0.2:7072 has the bucket other",
        ),
        (replace(OWN, store="x", version=9), "the node x at 10.0.0.2:7072 has the version 9"),
        ({"hello": "world"}, "10.0.0.2:7072 is no peer"),
        (TransientError("gone"), "gone"),
    ],
)
def test_who_cannot_be_a_peer_is_named(world: World, answer: Any, problem: str) -> None:
    world.answers["10.0.0.2"] = answer
    assert world.answering() == ["store-3"]
    (told,) = world.members.problems
    assert problem in told


def test_two_nodes_with_one_address_or_one_store_are_told(clock: FakeClock) -> None:
    world = World(clock, (*LISTED, "n2:7072", "nobody:7072"))
    world.answers["10.0.0.3"] = replace(OWN, store="store-2")
    assert world.answering() == ["store-2"]
    told = "\n".join(world.members.problems)
    assert "two of the peers have the address 10.0.0.2:7072" in told
    assert "two peers have the store id store-2" in told
    assert "the peer nobody:7072 cannot be found" in told


def test_a_list_without_this_node_is_told(clock: FakeClock) -> None:
    world = World(clock, LISTED[1:])
    assert world.answering() == ["store-2", "store-3"]
    assert [each for each in world.members.problems if "add it there" in each]


def test_each_problem_says_what_to_do(clock: FakeClock) -> None:
    world = World(clock, (*LISTED, "n2:7072", "nobody:7072", "n4:7072", "n5:7072"))
    world.names |= {"n4": ["10.0.0.4"], "n5": ["10.0.0.5"]}
    world.answers |= {
        "10.0.0.3": replace(OWN, store="store-2"),
        "10.0.0.4": replace(OWN, store="x", bucket="other"),
        "10.0.0.5": replace(OWN, store="y", version=9),
    }
    world.answering()
    assert len(world.members.problems) == 5
    assert all(
        ": " in each.partition("7072")[2] or "once" in each for each in world.members.problems
    )


@pytest.mark.parametrize(
    ("error", "seconds"),
    [(TransientError("silent"), AWAY_SECONDS), (IntegrityError("wrong"), LIAR_SECONDS)],
)
def test_a_peer_that_failed_is_left_out_for_a_while_and_no_longer(
    world: World, error: CachetierError, seconds: float
) -> None:
    world.failed("store-2", error)
    assert world.answering() == ["store-3"]
    world.clock.advance(seconds)
    world.answering()
    world.clock.advance(FRESH_SECONDS)
    assert world.answering() == ["store-2", "store-3"]


def test_a_peer_that_lacks_something_stays(world: World) -> None:
    world.failed("store-2", NotFoundError("not here"))
    assert world.answering() == ["store-2", "store-3"]


def test_a_peer_that_calls_is_asked_again_at_once(world: World) -> None:
    back = world.answers.pop("10.0.0.2")
    assert world.answering() == ["store-3"]
    world.answers["10.0.0.2"] = back
    assert world.answering() == ["store-3"]
    world.members.heard_from("store-2", "10.0.0.2")
    assert world.answering() == ["store-2", "store-3"]


def test_only_listed_addresses_belong_and_names_are_looked_up_anew(world: World) -> None:
    assert world.members.lists("10.0.0.2")
    assert not world.members.lists("10.0.0.9")
    world.names["n3"] = ["10.0.0.9"]
    world.clock.advance(LOOK_UP_SECONDS)
    assert world.members.lists("10.0.0.9")
    assert not world.members.lists("10.0.0.3")
