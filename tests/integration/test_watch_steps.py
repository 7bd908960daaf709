"""One step number is one step: what its files are is decided by what is there, in whatever order.

What cannot be told apart is not taken, and says so.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from cachetier_client import Client
from cachetier_client.adopt import trainer_folder
from cachetier_client.adopt import watcher as module
from cachetier_client.adopt.rules import SaveRules
from cachetier_client.adopt.sources import files_of
from cachetier_client.adopt.trainer_folder import TrainerFolder
from cachetier_client.adopt.watcher import Outcome, Watcher
from cachetier_client.identity.step_names import StepName
from cachetier_client.results import Receipt

from tests.fakes.fake_clock import FakeClock
from tests.integration.serving import Served, serving
from tests.integration.trainer import MARKER, save, stored


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "out"
    folder.mkdir()
    return folder


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serving() as served:
        yield served


def written(root: Path, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(f"bytes of {name}".encode())


class Shelf:
    """Takes what a watcher hands over: the names of each step's files."""

    def __init__(self) -> None:
        self.steps: dict[int, list[str]] = {}
        self.outcomes: list[Outcome] = []

    def adopt(self, source: str, step: int, _origin: str) -> list[Receipt]:
        files = files_of(source)
        self.steps[step] = sorted(file.name for file in files)
        return []

    def troubles(self) -> list[tuple[str, str]]:
        return [(each.trouble, each.hint) for each in self.outcomes if each.trouble]


def taken(
    root: Path, rules: SaveRules | None = None, *, quiet_commits: float | None = None
) -> Shelf:
    shelf = Shelf()
    folder = TrainerFolder(str(root), rules or SaveRules())
    Watcher(folder, shelf.adopt, shelf.outcomes.append, quiet_commits=quiet_commits).run(once=True)
    return shelf


ORDERS = list(itertools.permutations(range(3)))


@pytest.fixture(params=ORDERS[::2], ids=str)
def order(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Read folders in another order than their names have."""
    entries = trainer_folder._entries

    def permuted(folder: str) -> list[Any]:
        found = entries(folder)
        return [found[at] for at in request.param if at < len(found)] + found[3:]

    monkeypatch.setattr(trainer_folder, "_entries", permuted)


@pytest.mark.usefixtures("order")
@pytest.mark.parametrize(
    "names",
    [
        ("mp_rank_00/step=2250.ckpt", "mp_rank_01/step=2250.ckpt"),
        ("model_step_2250.pt", "optimizer_step_2250.pt", "rng_step_2250.pt"),
        ("epoch=1-step=2250.ckpt", "epoch=1-step=2250-v1.ckpt", "epoch=1-step=2250-last.ckpt"),
        ("best-step=2250-loss=0.3.ckpt", "last-step=2250.ckpt"),
        ("tp0_pp0/global_step2250/.metadata", "tp0_pp1/global_step2250/.metadata"),
        ("rank_0/step_2250.pt", "rank_0/opt_step_2250.pt", "rank_1/step_2250.pt"),
    ],
    ids=lambda names: names[0],
)
def test_all_files_of_one_step_number_are_one_step(root: Path, names: Sequence[str]) -> None:
    written(root, *names)
    shelf = taken(root)
    assert shelf.steps == {2250: sorted(names)}
    assert shelf.troubles() == []


@pytest.mark.usefixtures("order")
@pytest.mark.parametrize(
    ("names", "named"),
    [
        (("checkpoint-500", "checkpoint-500-merged"), "--step-name 'checkpoint-{step}'"),
        (("run_a/checkpoint-500", "run_b/checkpoint-500"), "a run of its own"),
        (("version_0/step-500", "version_1/step-500"), "a run of its own"),
    ],
)
def test_folders_of_one_step_that_cannot_be_told_apart_are_not_taken(
    root: Path, names: Sequence[str], named: str
) -> None:
    for name in names:
        save(root / name, {"model": b"x"}, MARKER if "checkpoint" in name else ".metadata")
    save(root / "checkpoint-600", {"model": b"x"})
    shelf = taken(root)
    assert shelf.steps == {600: ["model", MARKER]}
    ((trouble, hint),) = shelf.troubles()
    assert f"step 500 is in several places: {', '.join(names)}" in trouble
    assert named in hint
    assert [each.failed for each in shelf.outcomes if each.trouble] == [True]


def test_the_hint_of_a_copy_beside_its_step_can_be_followed(root: Path) -> None:
    for name in ("checkpoint-500", "checkpoint-500-merged"):
        save(root / name, {name: b"x"})
    shelf = taken(root, SaveRules(StepName("checkpoint-{step}")))
    assert shelf.steps == {500: ["checkpoint-500", MARKER]}
    assert shelf.troubles() == []


def test_a_rank_that_has_written_nothing_of_a_step_yet_holds_it_back(root: Path) -> None:
    written(root, "mp_rank_00/step=1.ckpt", "mp_rank_01/step=1.ckpt", "mp_rank_00/step=2.ckpt")
    shelf = taken(root)
    assert list(shelf.steps) == [1]
    ((trouble, hint),) = shelf.troubles()
    assert "mp_rank_01 has nothing of it" in trouble
    assert "--quiet-commits" in hint
    assert list(taken(root, quiet_commits=0.0).steps) == [1, 2]


@pytest.mark.usefixtures("order")
@pytest.mark.parametrize("run", ["1234567", "20240513", "ckpt-20240513", "job_step_3"])
@pytest.mark.parametrize("quiet_commits", [None, 0.0])
def test_a_folder_named_by_job_or_date_never_wins_over_the_step_inside_it(
    root: Path, run: str, quiet_commits: float | None
) -> None:
    save(root / run / "checkpoint-500", {"model": b"x"})
    save(root / run / "checkpoint-600", {"model": b"x"})
    written(root, f"{run}/config.json", f"{run}/{MARKER}")  # the trainer's own state at the end
    shelf = taken(root, quiet_commits=quiet_commits)
    assert shelf.steps == {500: ["model", MARKER], 600: ["model", MARKER]}


@pytest.mark.parametrize(
    ("names", "steps"),
    [
        (["1234567/1000/.metadata"], {1000: [".metadata"]}),  # the one with a marker
        (["1000/.metadata", "1000/0/x", "1000/1/x"], {1000: [".metadata", "0/x", "1/x"]}),
        (["1234567/epoch=1-step=16.ckpt"], {16: ["epoch=1-step=16.ckpt"]}),
        (["checkpoint-5/epoch_3.pt", f"checkpoint-5/{MARKER}"], {5: ["epoch_3.pt", MARKER]}),
        (
            ["checkpoint-5/global_step5/zero.pt", f"checkpoint-5/{MARKER}"],
            {5: ["global_step5/zero.pt", MARKER]},
        ),
        (
            ["checkpoint-5/samples/step_100/x.png", f"checkpoint-5/{MARKER}"],
            {5: ["samples/step_100/x.png", MARKER]},
        ),
        (["tmp-checkpoint-5/global_step5/.metadata"], {}),
    ],
    ids=lambda names: names[0] if isinstance(names, list) else "",
)
def test_the_innermost_folder_with_a_word_or_a_marker_is_the_step(
    root: Path, names: Sequence[str], steps: dict[int, list[str]]
) -> None:
    written(root, *names)
    assert taken(root).steps == steps


def test_a_number_inside_a_number_is_no_step_for_being_quiet(root: Path) -> None:
    written(root, "1234567/1000/x", "1234567/2000/x", "ckpt-9/step_1.pt", "ckpt-9/step_2.pt")
    shelf = taken(root, quiet_commits=0.0)
    assert shelf.steps == {}
    troubles = dict(shelf.troubles())
    assert [each for each in troubles if "1000 in 1234567 may be a step as well" in each]
    assert [each for each in troubles if "step_1.pt in ckpt-9 may be a step as well" in each]
    assert all("Watch that folder itself" in hint for hint in troubles.values())
    assert sorted(taken(root / "1234567", quiet_commits=0.0).steps) == [1000, 2000]
    assert sorted(taken(root / "ckpt-9", quiet_commits=0.0).steps) == [1, 2]


@pytest.mark.parametrize(
    "name", [b"checkpoint-7-\xff/file", b"step_7-\xff.pt", b"\xff/checkpoint-7/file"]
)
def test_a_name_that_is_not_utf8_is_skipped_and_told_and_the_watcher_goes_on(
    root: Path, name: bytes
) -> None:
    odd = os.path.join(os.fsencode(root), name)
    os.makedirs(os.path.dirname(odd), exist_ok=True)
    Path(os.fsdecode(odd)).write_bytes(b"x")
    save(root / "checkpoint-500", {"model": b"x"})
    shelf = taken(root)
    assert list(shelf.steps) == [500]
    skipped = [each for each in shelf.outcomes if each.trouble]
    assert [(each.trouble, each.failed) for each in skipped] == [
        ("skipped: its name is not UTF-8", False)
    ]
    assert f"{skipped}".isascii(), "it can be printed anywhere"


def test_a_file_in_a_step_whose_name_is_not_utf8_costs_that_step_alone(root: Path) -> None:
    save(root / "checkpoint-400", {os.fsdecode(b"mod\xffel"): b"x"})
    save(root / "checkpoint-500", {"model": b"x"})
    shelf = taken(root)
    assert list(shelf.steps) == [500]
    ((trouble, _),) = shelf.troubles()
    assert "mod\\udcffel" in trouble


def test_what_comes_later_of_a_step_makes_it_whole_and_what_is_there_stays_if_it_goes(
    served: Served, root: Path
) -> None:
    with Client(served.unix_url, run="late") as client:

        def look() -> list[Outcome]:
            outcomes: list[Outcome] = []

            def adopt(source: str, step: int, origin: str) -> list[Receipt]:
                return client.adopt(source, step=step, origin=origin)

            Watcher(TrainerFolder(str(root), SaveRules()), adopt, outcomes.append).run(once=True)
            return outcomes

        both = {
            "model_step_7.pt": b"bytes of model_step_7.pt",
            "a_step_7.pt": b"bytes of a_step_7.pt",
        }
        written(root, "model_step_7.pt")
        look()
        written(root, "a_step_7.pt")
        (outcome,) = look()
        assert (outcome.path, outcome.failed) == ("a_step_7.pt and 1 more", False)
        assert stored(client, "late", 7) == both
        (root / "model_step_7.pt").unlink()
        assert [each.failed for each in look()] == [False]
        assert stored(client, "late", 7) == both


def test_a_step_of_several_files_needs_links(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def link(*_names: object, **_more: object) -> None:
        raise PermissionError(1, "no links here")

    monkeypatch.setattr(os, "link", link)
    written(root, "model_step_7.pt", "optimizer_step_7.pt")
    shelf = taken(root)
    assert shelf.steps == {}
    assert [each.failed for each in shelf.outcomes] == [True]
    assert "a folder of its own" in shelf.troubles()[0][1]


def test_what_cannot_be_told_apart_is_told_once(root: Path) -> None:
    clock, outcomes = FakeClock(), list[Outcome]()
    folder = TrainerFolder(str(root), SaveRules())
    watcher = Watcher(folder, Shelf().adopt, outcomes.append, clock=clock)
    for name in ("checkpoint-500", "checkpoint-500-merged"):
        save(root / name, {"model": b"x"})
    watcher._once = False
    for _ in range(3):
        watcher._note_all()
        clock.advance(module.SETTLE_SECONDS)
        watcher.look()
    assert len(outcomes) == 1
