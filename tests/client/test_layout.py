"""Keys in the bucket: readable, and nobody's by accident."""

from __future__ import annotations

import pytest
from cachetier_client.bucket_format.layout import Layout, own_location, plain_location, rank_of_part

LAYOUT = Layout("team/ckpt")


def test_the_first_save_of_a_step_lies_where_people_look() -> None:
    assert LAYOUT.shard_key("run", plain_location(7), "rank-0/x") == "team/ckpt/run/7/rank-0/x"
    assert LAYOUT.manifest_key("run", 7) == "team/ckpt/run/7/.cachetier/manifest.json"


def test_any_other_save_has_keys_of_its_own() -> None:
    location = own_location(7, "job.2")

    assert LAYOUT.shard_key("run", location, "x") == "team/ckpt/run/7~job.2/x"
    assert LAYOUT.part_key("run", location, 3) == "team/ckpt/run/7~job.2/.cachetier/rank-3.json"
    assert location != plain_location(7)


def test_a_spread_save_has_its_shards_under_sixteen_prefixes_and_nothing_else_there() -> None:
    location = plain_location(7, spread=True)
    keys = {LAYOUT.shard_key("run", location, f"rank-0/{n}") for n in range(200)}
    prefixes = LAYOUT.shard_prefixes("run", location)

    assert {key[: len(prefixes[0])] for key in keys} == set(prefixes)
    assert len(prefixes) == 16
    assert prefixes[3] == "team/ckpt/~3/run/7~~/"
    assert LAYOUT.part_key("run", location, 0) == "team/ckpt/run/7~~/.cachetier/rank-0.json"
    assert LAYOUT.manifest_key("run", 7) == "team/ckpt/run/7/.cachetier/manifest.json"


def test_locations_of_both_layouts_and_of_other_saves_never_meet() -> None:
    locations = [
        plain_location(7),
        plain_location(7, spread=True),
        own_location(7, "a"),
        own_location(7, "a", spread=True),
    ]
    keys = {LAYOUT.shard_key("run", location, "x") for location in locations}

    assert len(keys) == len(locations)
    assert Layout().shard_prefixes("run", plain_location(7)) == ("run/7/",)


def test_without_a_prefix_runs_are_at_the_root_of_the_bucket() -> None:
    assert Layout().manifest_key("run", 0) == "run/0/.cachetier/manifest.json"
    assert Layout().run_prefix("run") == "run/"


def test_steps_are_told_from_other_saves_and_foreign_folders() -> None:
    base = LAYOUT.run_prefix("run")
    folders = ["10/", "9/", "7~job.2/", "notes/", "007/", "-1/", "/", "9/"]

    assert LAYOUT.steps_in("run", tuple(base + folder for folder in folders)) == [9, 10]


@pytest.mark.parametrize("rank", [0, 7, 12345])
def test_the_rank_of_a_part_is_read_back_from_its_key(rank: int) -> None:
    assert rank_of_part(LAYOUT.part_key("run", "7", rank)) == rank


@pytest.mark.parametrize(
    "key",
    [
        "manifest.json",
        "a/rank-.json",
        "rank-01.json",
        "rank--1.json",
        "rank-1.json.bak",
        "xrank-1.json",
        "",
    ],
)
def test_other_keys_are_no_part(key: str) -> None:
    assert rank_of_part(key) is None


def test_no_shard_can_be_named_like_a_part_or_manifest() -> None:
    """The reserved segment is refused in names, so these keys cannot meet."""
    part = LAYOUT.part_key("run", "7", 0)
    assert "/.cachetier/" in part
    assert "/.cachetier/" in LAYOUT.manifest_key("run", 7)
