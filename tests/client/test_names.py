"""The one grammar of names, against what people and attackers write."""

from __future__ import annotations

from typing import Any

import pytest
from cachetier_client.errors import CachetierClientError, InvalidNameError, InvalidRequestError
from cachetier_client.identity import names
from cachetier_client.identity.names import SaveIds

HOSTILE: list[object] = [
    "",
    ".",
    "..",
    "../x",
    "a/../b",
    "/etc/passwd",
    "a//b",
    "a/",
    "/a",
    "a\0b",
    "a\r\nSet-Cookie: x",
    "a\n",
    " a",
    "a b",
    "a\\b",
    "%2e%2e%2f",
    "~",
    "5~save",
    ".cachetier",
    "a/.cachetier/b",
    "ä",
    "\u202egnp.exe",
    "\ud800",
    "a" * 300,
    "a?b",
    "a#b",
    "a*b",
    "a:b",
    "'; DROP TABLE shards; --",
    None,
    7,
    1.5,
    True,
    ["a"],
    {"a": 1},
    b"a",
]


@pytest.mark.parametrize("name", HOSTILE, ids=ascii)
def test_a_hostile_shard_name_is_refused_up_front(name: object) -> None:
    with pytest.raises(InvalidNameError) as refusal:
        names.checked_name(name)
    assert len(refusal.value.message) < 300
    assert refusal.value.message.isascii()
    assert refusal.value.message.isprintable()


@pytest.mark.parametrize(
    "run", [*(each for each in HOSTILE if each != "5~save"), "-rf", "a/b", "a" * 129], ids=ascii
)
def test_a_hostile_run_is_refused_up_front(run: object) -> None:
    with pytest.raises(InvalidNameError):
        names.checked_run(run)


@pytest.mark.parametrize("save_id", [*HOSTILE, "-a", ".a", "_a", "a@b", "a" * 65], ids=ascii)
def test_a_hostile_save_id_is_refused_up_front(save_id: object) -> None:
    with pytest.raises(InvalidNameError):
        names.checked_save_id(save_id)


@pytest.mark.parametrize("step", [-1, 2**53, 1.0, "7", True, None, [], 10**400], ids=str)
def test_what_is_no_step_is_refused(step: object) -> None:
    with pytest.raises(InvalidNameError):
        names.checked_step(step)


@pytest.mark.parametrize(
    "text", ["", "-1", "+1", "007", "1.0", "1e3", "0x1", " 1", "1\n", "\u0661", "1" * 17, "9" * 16]
)
def test_a_step_in_a_path_is_a_canonical_decimal(text: str) -> None:
    with pytest.raises(InvalidNameError):
        names.parsed_step(text)


@pytest.mark.parametrize("text", ["0", "7", "10", "9007199254740991"])
def test_a_canonical_decimal_is_a_step(text: str) -> None:
    assert names.parsed_step(text) == int(text)


@pytest.mark.parametrize(
    "name",
    ["a", "model.pt", "rank-0/optim_1=2+3@4.bin", "a/b/c", "...", "-", "x.cachetier", "a" * 255],
)
def test_the_names_people_use_are_taken_as_they_are(name: str) -> None:
    assert names.checked_name(name) == name


@pytest.mark.parametrize("run", ["llama-3.1_8B+lora=7@home", "...", "a" * 128, "_", "0"])
def test_the_runs_people_use_are_taken_as_they_are(run: str) -> None:
    assert names.checked_run(run) == run


@pytest.mark.parametrize("save_id", ["0", "job-42.restart_3", "A" * 64])
def test_the_save_ids_that_jobs_have_are_taken_as_they_are(save_id: str) -> None:
    assert names.checked_save_id(save_id) == save_id


@pytest.mark.parametrize(
    ("rank", "world_size"),
    [(0, 0), (-1, 2), (2, 2), (0, 1_000_001), (True, 2), ("0", 1), (0, None), (0.0, 1), (0, -1)],
)
def test_a_rank_outside_its_world_is_refused(rank: object, world_size: object) -> None:
    with pytest.raises(InvalidRequestError):
        names.checked_place(rank, world_size)


def test_the_first_and_the_last_rank_of_a_world_are_in_it() -> None:
    assert names.checked_place(0, 1_000_000) == (0, 1_000_000)
    assert names.checked_place(999_999, 1_000_000) == (999_999, 1_000_000)


@pytest.mark.parametrize(
    "ids",
    [
        {"run": ".."},
        {"step": -1},
        {"step": None},
        {"save_id": ""},
        {"save_id": 7},
        {"rank": 1},
        {"rank": "0"},
        {"world_size": 0},
    ],
    ids=str,
)
def test_there_are_no_ids_but_valid_ones(ids: dict[str, Any]) -> None:
    with pytest.raises(CachetierClientError):
        SaveIds(**{"run": "run", "step": 1, "save_id": "s", **ids})


def test_sound_ids_are_what_they_were_made_of() -> None:
    assert SaveIds("run", 1, "s", 3, 4).fields() == {
        "run": "run",
        "step": 1,
        "rank": 3,
        "world_size": 4,
        "save_id": "s",
        "overwrite": False,
    }
