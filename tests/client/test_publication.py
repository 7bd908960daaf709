"""Who owns a step: every state of a claim, and two nodes in every order."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import pytest
from cachetier_client.bucket_format import publication
from cachetier_client.bucket_format.documents import Manifest, ManifestState, ShardEntry
from cachetier_client.bucket_format.layout import own_location, plain_location
from cachetier_client.bucket_format.publication import Claimant, ClaimState
from cachetier_client.bucket_format.stored import Content
from cachetier_client.errors import IntegrityError

CLAIMED, PUBLISHED, DELETED = ManifestState


def claimant(
    save_id: str = "ours",
    *,
    started_at: float = 100.0,
    overwrite: bool = False,
    replaced: tuple[str, ...] = (),
    preceding: tuple[str, ...] = (),
) -> Claimant:
    return Claimant("run", 7, save_id, 2, overwrite, started_at, replaced, preceding)


def manifest(
    state: ManifestState,
    save_id: str = "theirs",
    *,
    started_at: float = 50.0,
    replaces: tuple[str, ...] = (),
) -> Manifest:
    return Manifest(
        state=state,
        run="run",
        step=7,
        save_id=save_id,
        location="7",
        nonce="n",
        started_at=started_at,
        replaces=replaces,
        world_size=2,
    )


SLOW, FAST = 50.0, 150.0  # clocks beside that of ``claimant``, which decide nothing


@pytest.mark.parametrize("started_at", [SLOW, 100.0, FAST])
@pytest.mark.parametrize(
    ("state", "save_id", "overwrite", "claim_state"),
    [
        (None, "", False, ClaimState.CLAIM),
        (CLAIMED, "ours", False, ClaimState.HOLD),
        (CLAIMED, "theirs", False, ClaimState.REPLACE_WHEN_WHOLE),
        (PUBLISHED, "ours", False, ClaimState.PUBLISHED),
        (PUBLISHED, "ours", True, ClaimState.PUBLISHED),
        (PUBLISHED, "theirs", True, ClaimState.REPLACE_WHEN_WHOLE),
        (PUBLISHED, "theirs", False, ClaimState.REFUSED),
        (DELETED, "ours", False, ClaimState.DELETED),
        (DELETED, "theirs", False, ClaimState.CLAIM),
    ],
)
def test_every_claim_state(
    state: ManifestState | None,
    save_id: str,
    overwrite: bool,
    claim_state: ClaimState,
    started_at: float,
) -> None:
    seen = None if state is None else manifest(state, save_id, started_at=started_at)

    assert publication.claim_state(claimant(overwrite=overwrite), seen) is claim_state


def test_a_save_claims_over_what_its_node_saw_it_replace() -> None:
    theirs = manifest(CLAIMED, started_at=FAST)

    assert publication.claim_state(claimant(replaced=("theirs",)), theirs) is ClaimState.CLAIM


def test_what_the_manifest_saw_counts_most() -> None:
    theirs = manifest(CLAIMED, replaces=("ours",))

    assert publication.claim_state(claimant(), theirs) is ClaimState.SUPERSEDED
    assert publication.claim_state(claimant(replaced=("theirs",)), theirs) is ClaimState.SUPERSEDED


def test_the_first_claim_takes_the_plain_keys_and_any_other_its_own() -> None:
    first = publication.claim(claimant("a"), None, "n1")
    second = publication.claim(claimant("b", replaced=("a",)), first, "n2")
    third = publication.claim(claimant("c", replaced=("b", "x")), second, "n3")

    assert first.location == plain_location(7)
    assert second.location == own_location(7, "b")
    assert third.location == own_location(7, "c")
    assert (first.replaces, second.replaces) == ((), ("a",))
    assert third.replaces == ("a", "b", "x")
    assert [m.nonce for m in (first, second, third)] == ["n1", "n2", "n3"]


def test_a_save_that_claims_again_keeps_its_location_and_does_not_replace_itself() -> None:
    first = publication.claim(claimant("a"), None, "n1")
    again = publication.claim(claimant("a"), first, "n2")

    assert (again.location, again.replaces) == (first.location, ())


def test_after_a_deletion_the_plain_keys_are_not_used_again() -> None:
    tombstone = publication.deleted(manifest(PUBLISHED), "n")

    claimed = publication.claim(claimant(replaced=("theirs",)), tombstone, "m")

    assert tombstone.state is DELETED
    assert (tombstone.parts, tombstone.shards) == ((), ())
    assert claimed.location == own_location(7, "ours")


SEEN = [
    None,
    *(manifest(state, "ours") for state in (CLAIMED, DELETED)),
    *(manifest(state, started_at=at) for state in ManifestState for at in (SLOW, FAST)),
]


@pytest.mark.parametrize("seen", SEEN)
@pytest.mark.parametrize("overwrite", [False, True])
def test_a_save_that_was_given_up_can_never_be_published(
    seen: Manifest | None, overwrite: bool
) -> None:
    save = claimant(overwrite=overwrite, replaced=("theirs",))
    left = publication.given_up(save, "7", seen, "new") or seen

    ended = (ClaimState.SUPERSEDED, ClaimState.REFUSED, ClaimState.DELETED)
    assert publication.claim_state(save, left) in ended
    assert publication.given_up(save, "7", left, "newer") is None, "once is enough"


@pytest.mark.parametrize("state", ManifestState)
def test_giving_a_save_up_changes_nothing_for_the_one_that_has_the_step(
    state: ManifestState,
) -> None:
    seen = manifest(state, started_at=SLOW, replaces=("first",))
    left = publication.given_up(claimant(overwrite=True), "7~ours", seen, "new")

    assert left is not None
    assert replace(left, replaces=seen.replaces, nonce=seen.nonce) == seen
    assert (left.replaces, left.nonce) == (("first", "ours"), "new")
    theirs = claimant("theirs", started_at=SLOW)
    assert publication.claim_state(theirs, left) is publication.claim_state(theirs, seen)


def test_publishing_keeps_what_was_claimed() -> None:
    claimed = publication.claim(claimant(), None, "n")

    published = publication.published(claimant(), "7", claimed, (), at=5.0, nonce="m")

    assert (published.state, published.published_at, published.nonce) == (PUBLISHED, 5.0, "m")
    assert (published.save_id, published.location) == (claimed.save_id, claimed.location)


def test_parts_that_put_two_contents_by_one_name_are_not_published() -> None:
    contents = [Content(1, digest, (digest,)) for digest in (1, 2)]
    parts = [
        (publication.part_of(claimant(), rank, [ShardEntry.of("x", rank, content)]), "d")
        for rank, content in enumerate(contents)
    ]

    with pytest.raises(IntegrityError, match="cannot be published: x is listed with two digests"):
        publication.published(claimant(), "7", None, parts, at=5.0, nonce="m")


# --- two nodes, in every order ------------------------------------------------------------------


@dataclass
class World:
    """A bucket: a manifest that changes only by compare-and-swap, and keys with their owner."""

    manifest: Manifest | None = None
    owners: dict[str, str] = field(default_factory=dict)
    published: list[str] = field(default_factory=list)
    nonces: int = 0

    def swap(self, seen: Manifest | None, new: Manifest) -> bool:
        if self.manifest is not seen:
            return False
        self.manifest = new
        if new.state is PUBLISHED:
            self.published.append(new.save_id)
        return True

    def write(self, location: str, save_id: str) -> None:
        owner = self.owners.setdefault(location, save_id)
        assert owner == save_id, f"{save_id} writes over {owner} at {location}"


def node(save: Claimant, world: World) -> Iterator[None]:
    """Drain one save: claim, write, publish; stops between any two requests."""
    location = None
    while location is None:
        seen = world.manifest
        yield
        claim_state = publication.claim_state(save, seen)
        if claim_state is ClaimState.CLAIM:
            if world.swap(seen, publication.claim(save, seen, "n")):
                location = publication.location_of(save, seen)
            yield
        elif claim_state in (ClaimState.HOLD, ClaimState.REPLACE_WHEN_WHOLE, ClaimState.PUBLISHED):
            location = publication.location_of(save, seen)
        else:
            return
    world.write(location, save.save_id)
    yield
    while True:
        seen = world.manifest
        yield
        claim_state = publication.claim_state(save, seen)
        if claim_state not in (ClaimState.HOLD, ClaimState.CLAIM, ClaimState.REPLACE_WHEN_WHOLE):
            return
        published = publication.published(save, location, seen, (), at=1.0, nonce="p")
        if world.swap(seen, published):
            assert world.owners[published.location] == save.save_id, "published at another's keys"
            return
        yield


def every_order(saves: tuple[Claimant, ...]) -> Iterator[World]:
    """Run the nodes in every interleaving of their requests; yield how each ends."""
    pending: list[tuple[int, ...]] = [()]
    while pending:
        order = pending.pop()
        world, waiting = after(saves, order)
        if not waiting:
            yield world
        pending += [(*order, n) for n in waiting]


def some_orders(saves: tuple[Claimant, ...], count: int) -> Iterator[World]:
    """Run the nodes in random interleavings of their requests; yield how each ends."""
    dice = random.Random(13)
    for _ in range(count):
        yield after(saves, dice.choices(range(len(saves)), k=40 * len(saves)))[0]


def after(saves: tuple[Claimant, ...], order: Sequence[int]) -> tuple[World, list[int]]:
    """Return the world after those turns, and who has not ended."""
    world = World()
    nodes = [node(save, world) for save in saves]
    ended = [False] * len(saves)
    for turn in order:
        ended[turn] = next(nodes[turn], StopIteration) is StopIteration
    return world, [n for n in range(len(saves)) if not ended[n]]


CASES = {
    "two starts, nothing known": (claimant("a", started_at=1.0), claimant("b", started_at=2.0)),
    "a node saw which came first": (
        claimant("a", started_at=2.0),
        claimant("b", started_at=1.0, replaced=("a",)),
    ),
    "a node saw which came first, and stands": (
        claimant("a"),
        claimant("b", preceding=("a",)),
    ),
    "the same instant": (claimant("a"), claimant("b")),
    "the later one overwrites": (
        claimant("a", started_at=1.0),
        claimant("b", started_at=2.0, overwrite=True),
    ),
    "the earlier one overwrites": (
        claimant("a", started_at=1.0, overwrite=True),
        claimant("b", started_at=2.0),
    ),
    "both overwrite": (
        claimant("a", started_at=1.0, overwrite=True),
        claimant("b", started_at=2.0, overwrite=True),
    ),
    "one save on two nodes": (claimant("a"), claimant("a", started_at=101.0)),
}


ORDERED = [case for case in CASES if "saw" in case]


@pytest.mark.parametrize("case", CASES)
def test_two_nodes_in_any_order_publish_one_save_and_never_mix_two(case: str) -> None:
    saves = CASES[case]
    worlds = list(every_order(saves))

    assert len(worlds) > 20
    for world in worlds:
        assert world.manifest is not None
        assert world.manifest.state is PUBLISHED, "nobody published"
        assert len(world.owners) == len(set(world.owners.values())), "one save at two locations"
        assert len(world.published) == len(set(world.published)), "published twice"


@pytest.mark.parametrize("case", ["two starts, nothing known", "the same instant"])
def test_without_overwrite_a_published_save_stays(case: str) -> None:
    for world in every_order(CASES[case]):
        assert len(world.published) == 1


def test_what_overwrites_is_what_remains() -> None:
    for case, remains in (("the later one overwrites", "b"), ("the earlier one overwrites", "a")):
        for world in every_order(CASES[case]):
            assert world.published[-1] == remains


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_claim_that_died_holds_up_no_save_however_fast_its_clock_was(overwrite: bool) -> None:
    dead = publication.claim(claimant("dead", started_at=FAST), None, "n")
    world = World(dead)

    for _ in node(claimant(overwrite=overwrite), world):
        pass

    assert world.published == ["ours"]
    assert world.manifest is not None
    assert publication.claim_state(claimant("dead"), world.manifest) is ClaimState.REFUSED


@pytest.mark.parametrize("case", ORDERED)
def test_what_a_node_saw_come_later_wins_whichever_is_whole_first(case: str) -> None:
    ends = {tuple(world.published) for world in every_order(CASES[case])}

    assert ends == {("a", "b"), ("b",)}


def test_the_nodes_of_a_save_agree_on_its_keys_whoever_takes_the_step_meanwhile() -> None:
    first = claimant("a")
    later, elsewhere = claimant("b", preceding=("a",)), claimant("b")
    taken = 0

    for world in some_orders((first, later, elsewhere), 3000):
        assert len(world.owners) == len(set(world.owners.values())), "one save at two locations"
        taken += world.published[0] == "a" and world.owners.get("7") == "b"

    assert taken > 0, "no save was published over the claim of one that has the plain keys"


# --- which save is whole -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("world_size", "there", "missing"),
    [
        (1, [], [0]),
        (1, [0], []),
        (3, [2], [0, 1]),
        (3, [2, 0, 1], []),
        (3, [0, 1, 7], [2]),  # a rank that the save has not
        (0, [], []),  # nobody said how many
    ],
)
def test_a_save_is_whole_once_no_rank_is_missing(
    world_size: int, there: list[int], missing: list[int]
) -> None:
    assert publication.missing_ranks(world_size, there) == missing
    assert publication.is_whole(world_size, there) is (missing == [])


def test_a_manifest_names_the_ranks_of_its_save_alone() -> None:
    assert publication.published_ranks(3, {5, 2, 0, 1}) == [0, 1, 2]
