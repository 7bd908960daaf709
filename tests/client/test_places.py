"""Where what is saved under a path lies, and that no two paths lie in one place."""

from __future__ import annotations

import pytest
from cachetier_client.errors import InvalidNameError
from cachetier_client.identity.names import base_run, checked_run
from cachetier_client.identity.places import (
    Place,
    file_place,
    folder_place,
    further_place,
    place_of,
)
from cachetier_client.identity.step_names import StepName, find_step
from hypothesis import given
from hypothesis import strategies as st

PLAIN = StepName()
SEGMENT = st.text("ab1._-=", min_size=1, max_size=6).filter(lambda each: each not in (".", ".."))
PATHS = st.lists(
    SEGMENT | st.sampled_from(["step-10", "iter_0000010", "7", "epoch=1-step=16.ckpt"]),
    min_size=1,
    max_size=4,
)


@pytest.mark.parametrize(
    ("path", "step"),
    [
        ("step-10", 10),
        ("checkpoints/epoch=1-step=16.ckpt", 16),
        ("checkpoint-500/global_step20", 20),
        ("global_step_10/actor", 10),
        ("iter_0000010", 10),
        ("1/epoch=3.ckpt", 3),
        ("1/last.ckpt", 1),
        ("3/version_0/step_7x", 7),
        ("last.ckpt", None),
        ("version_3/final", None),
        (f"step-{2**53}", None),
    ],
)
def test_the_step_is_what_people_would_say_it_is(path: str, step: int | None) -> None:
    found = find_step(path.split("/"))

    assert (found.step if found else None) == step


@pytest.mark.parametrize(
    ("path", "run", "step"),
    [
        ("1000", "run", 1000),
        ("step-10", "run~step-!~", 10),
        ("checkpoints/step-10", "run~checkpoints~step-!~", 10),
        ("iter_0000010", "run~iter_!!!!!!!~", 10),
        ("final", "run~final~", 0),
        ("1000/model", "run~!~model~", 1000),
        ("1/step-10", "run~1~step-!~", 10),
    ],
)
def test_a_folder_lies_in_the_run_or_in_a_branch(path: str, run: str, step: int) -> None:
    place = folder_place("run", path.split("/"), PLAIN)

    assert (place.run, place.step, place.path) == (run, step, f"run/{path}")


def test_a_file_alone_lies_in_a_branch_of_its_own() -> None:
    place = file_place("run", ["1", "epoch=1-step=16.ckpt"])

    assert place == Place("run~1~epoch=1-step=16.ckpt", 16, ("run", "1"), "epoch=1-step=16.ckpt")
    assert place.name_of(("run", "1", "epoch=1-step=16.ckpt")) == "epoch=1-step=16.ckpt"
    assert place.name_of(("run", "1", "other")) is None


def test_the_run_itself_is_no_place_for_files() -> None:
    with pytest.raises(InvalidNameError, match="a run"):
        folder_place("run", [], PLAIN)


def test_a_path_that_is_too_long_is_refused_before_anything_is_written() -> None:
    with pytest.raises(InvalidNameError, match="384"):
        file_place("run", ["a" * 200, "b" * 200])


@given(PATHS)
def test_places_tell_the_path_that_they_are_of(path: list[str]) -> None:
    for place in (file_place("run", path), folder_place("run", path, PLAIN)):
        assert checked_run(place.run) == place.run and base_run(place.run) == "run"
        assert place_of(place.run, place.step, PLAIN) == place
        assert place.path == "/".join(["run", *path])


@given(PATHS, PATHS)
def test_a_further_commit_tells_its_folder_too(path: list[str], name: list[str]) -> None:
    folder = folder_place("run", path, PLAIN)
    further = further_place(folder, "/".join(name), PLAIN)

    assert further.run != folder.run and checked_run(further.run)
    assert place_of(further.run, further.step, PLAIN) == further
    assert further.folder == folder.folder


@given(PATHS, PATHS)
def test_no_two_paths_lie_in_one_place(one: list[str], other: list[str]) -> None:
    places = {
        (place.run, place.step): (*place.parts, place.alone is None)
        for place in (
            file_place("run", one),
            file_place("run", other),
            folder_place("run", one, PLAIN),
            folder_place("run", other, PLAIN),
        )
    }
    assert len(places) == (2 if one == other else 4)


@pytest.mark.parametrize("run", ["~a", "run~", "run~~", "run~~a", "run~a~~", "run~a/b", "run~a b"])
def test_what_is_no_branch_is_refused(run: str) -> None:
    with pytest.raises(InvalidNameError):
        checked_run(run)
