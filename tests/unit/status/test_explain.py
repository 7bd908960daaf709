"""`explain` says in sentences where a step stands, what it waits for, and what to do."""

from __future__ import annotations

from typing import Any

import pytest
from cachetier_client import ShardInfo, StepInfo
from cachetier_client.results import UnflushedStep

from cachetier.status.explain import Explanation, explain, explain_unknown

NOW = 10_000.0


def shard(rank: int, state: str = "dirty", name: str = "weights") -> ShardInfo:
    return ShardInfo(f"{name}-{rank}", rank, 500_000_000, "0" * 16, state)


def step_of(state: str, *shards: ShardInfo, **changes: Any) -> StepInfo:
    shards = shards or (shard(0), shard(1))
    fields: dict[str, Any] = {
        "run": "train",
        "step": 7,
        "save_id": "a",
        "state": state,
        "levels": (),
        "ranks": (0, 1),
        "world_size": 2,
        "shard_count": len(shards),
        "size_bytes": sum(each.size_bytes for each in shards),
        "dirty_bytes": sum(each.size_bytes for each in shards if each.state == "dirty"),
        "started_at": NOW - 60,
        "sealed_at": NOW - 50,
        "published_at": None,
        "shards": shards,
    }
    return StepInfo(**{**fields, **changes})


def status_of(**changes: Any) -> dict[str, Any]:
    remote = {"state": "ok", "reason": "", "since": 0.0, "pace": {}, **changes.pop("remote", {})}
    drain = {"uploading": [], "last_error": None, **changes.pop("drain", {})}
    return {"remotes": [remote], "drain": drain, "pending": [], **changes}


def pending(step: int, eta_seconds: float | None = None, dirty_bytes: int = 10**9) -> Any:
    of = {"run": "train", "step": step}
    return {**of, "eta_seconds": eta_seconds, "dirty_bytes": dirty_bytes}


def text(found: Explanation) -> str:
    return " ".join(found.sentences)


def test_an_open_step_names_the_ranks_it_waits_for_and_for_how_long() -> None:
    found = explain(step_of("open", ranks=(0,), world_size=8), status_of(), NOW)
    assert found.waits_for == "ranks"
    assert "It waits for 1.0 min for rank 1 to seal." in text(found)
    assert "1 of 2 ranks seen here sealed; 6 ranks are elsewhere." in text(found)


def test_of_many_ranks_that_are_missing_a_few_are_named() -> None:
    shards = tuple(shard(rank) for rank in range(12))
    found = explain(step_of("open", *shards, ranks=()), status_of(), NOW)
    assert "for ranks 0-11 to seal" in text(found)


def test_a_step_that_drains_says_what_is_left_and_when_it_is_durable() -> None:
    going = {"run": "train", "step": 7, "name": "weights-0", "size_bytes": 5}
    status = status_of(pending=[pending(7, 30.0)], drain={"uploading": [going]})
    found = explain(step_of("sealed", shard(0), shard(1, "clean")), status, NOW)
    assert (found.waits_for, found.next_move) == ("drain", "")
    assert "500 MB of 1.0 GB are left to send; it is durable in about 30 s." in text(found)
    assert "1 shard is on the way now." in text(found)


def test_a_step_behind_others_says_so_and_how_it_goes_first() -> None:
    status = status_of(pending=[pending(5), pending(6), pending(7)])
    found = explain(step_of("sealed"), status, NOW)
    assert found.waits_for == "order"
    assert "2 older steps are to go first, with 2.0 GB." in text(found)
    assert "cachetier flush train 7" in found.next_move


@pytest.mark.parametrize(
    ("remote", "waits_for", "sentence"),
    [
        (
            {"state": "unreachable", "reason": "timed out", "since": NOW - 120},
            "remote",
            "S3 is unreachable since 2.0 min: timed out.",
        ),
        ({"pace": {"bytes_per_second": 0}}, "window", "`max_rate` lets nothing through"),
        ({"state": "throttled"}, "drain", "S3 throttles this node"),
    ],
)
def test_a_step_that_is_held_up_says_by_what(
    remote: dict[str, Any], waits_for: str, sentence: str
) -> None:
    found = explain(step_of("sealed"), status_of(remote=remote), NOW)
    assert found.waits_for == waits_for
    assert sentence in text(found)


def test_what_this_node_has_sent_waits_for_other_nodes_or_for_publication() -> None:
    sent = (shard(0, "clean"), shard(1, "clean"))
    others = explain(step_of("sealed", *sent, world_size=8), status_of(), NOW)
    assert (others.waits_for, "6 ranks are due from other nodes" in text(others)) == (
        "nodes",
        True,
    )
    assert explain(step_of("sealed", *sent), status_of(), NOW).waits_for == "publication"


def test_a_failure_is_told_with_its_error_and_that_it_is_tried_again() -> None:
    error = {"run": "train", "step": 7, "name": "weights-0", "at": NOW - 5, "code": "transient"}
    status = status_of(drain={"last_error": {**error, "message": "connection reset"}})
    found = text(explain(step_of("sealed"), status, NOW))
    assert "The last attempt at shard weights-0 failed 5.0 s ago (transient)" in found
    assert "connection reset. It is tried again by itself." in found
    other = status_of(drain={"last_error": {**error, "step": 6, "message": "connection reset"}})
    assert "connection reset" not in text(explain(step_of("sealed"), other, NOW))


@pytest.mark.parametrize(
    ("code", "next_move"),
    [("conflict", "Move the foreign object away"), ("deadly", "restart the service")],
)
def test_what_only_a_person_can_settle_waits_for_one(code: str, next_move: str) -> None:
    error = {"run": "train", "step": 7, "name": "weights-0", "at": NOW - 5, "code": code}
    status = status_of(drain={"last_error": {**error, "message": "another object lies there"}})
    found = explain(step_of("sealed"), status, NOW)
    assert found.waits_for == "person"
    assert "by itself" not in text(found)
    assert next_move in found.next_move


@pytest.mark.parametrize(
    ("states", "sentence"),
    [
        (("clean", "clean"), "All of it is here as well, so a restore is local."),
        (("clean", "evicted"), "1 of the 2 shards of this node are here, the rest in S3."),
        (("evicted", "evicted"), "None of its bytes are on this node"),
        (("clean", "remote"), "1 shard came from other nodes"),
    ],
)
def test_a_published_step_says_what_of_it_is_here(states: tuple[str, ...], sentence: str) -> None:
    shards = [shard(rank, state) for rank, state in enumerate(states)]
    found = explain(step_of("published", *shards, published_at=NOW - 30), status_of(), NOW)
    assert (found.waits_for, found.next_move) == ("", "")
    assert "It has been durable for 30 s (30 s after its save began)." in text(found)
    assert sentence in text(found)


def test_of_a_published_step_it_names_the_ranks_of_which_all_is_here() -> None:
    shards = shard(0, "clean"), shard(1, "remote")
    found = explain(step_of("published", *shards, ranks=(0,)), status_of(), NOW)
    assert "All of rank 0 of 2 is here as well, so their restore is local." in text(found)


@pytest.mark.parametrize(
    ("state", "sentence", "next_move"),
    [
        ("local_only", "a policy keeps it from S3", "cachetier flush train 7"),
        ("damaged", "failed their checksum and are not sent: weights-0", "Save the step again"),
        ("aborted", "A rank aborted its part", "Save the step again"),
        ("superseded", "A newer save of the step has replaced it", ""),
        ("refused", "Another save of the step was published first", ""),
        ("deleted", "It was deleted", ""),
        ("replicated", "A replica has it whole", ""),
    ],
)
def test_every_other_state_is_explained(state: str, sentence: str, next_move: str) -> None:
    found = explain(step_of(state, shard(0, "quarantined")), status_of(), NOW)
    assert sentence in text(found)
    assert next_move in found.next_move


def test_a_step_that_nobody_knows_names_those_that_there_are() -> None:
    gone = explain_unknown("train", 3, [7, 8])
    assert "The oldest step left is 7: it was deleted, expired" in text(gone)
    gap = explain_unknown("train", 12, [10, 11, 20])
    assert "The nearest step is 11; the newest is 20." in text(gap)
    assert "cachetier ls." in explain_unknown("other", 3, []).next_move


def test_a_step_that_only_other_nodes_hold_names_them_and_what_to_do() -> None:
    whole = UnflushedStep("train", 12, "a", 2, (0, 1), ("node-a", "node-c"), ("s1", "s2"))
    part = UnflushedStep("train", 13, "b", 2, (0,), ("node-a",), ("s1",))

    held = explain_unknown("train", 12, [11], [part, whole])
    assert (held.state, held.waits_for) == ("unknown", "nodes")
    assert "step 12 of run train (all of it) is on node-a, node-c" in text(held)
    assert "`cachetier flush train 12` there" in held.next_move
    assert "`cachetier forget NODE train`" in held.next_move  # nobody but a person knows which
    lost = explain_unknown("train", 13, [11], [part, whole])
    assert "No node says that it has the rest" in lost.next_move
    assert "`cachetier forget node-a train`" in lost.next_move
    assert "flush" not in lost.next_move  # no flush brings the rest
