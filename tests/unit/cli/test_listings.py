"""What lists show on a terminal of eighty columns: long words go on below, and nothing is cut."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from cachetier_client.results import PinInfo, StepInfo
from rich.console import Console

from cachetier.cli import output, steps

RUN = "llama-3.1-405b-pretraining-phase-two-rerun"
STEP = StepInfo(
    run=RUN,
    step=1_000_000,
    save_id="s",
    state="published",
    levels=("local", "replicated", "durable"),
    ranks=tuple(range(1024)),
    world_size=1024,
    shard_count=12_288,
    size_bytes=812 * 10**9,
    dirty_bytes=99 * 10**9,
    started_at=1.0,
    sealed_at=2.0,
    published_at=3.0,
    pinned=True,
    checked_at=float("inf"),
)


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    shown = io.StringIO()
    for module in (output, steps):
        monkeypatch.setattr(module, "console", lambda: Console(file=shown, width=80))
    return shown


def test_no_figure_of_a_step_is_cut(screen: io.StringIO) -> None:
    steps._show_steps(RUN, [STEP], None, as_json=False)
    words = screen.getvalue().split()
    assert {"1000000", "1024/1024", "12288", "812", "99.0", "published,", "pinned"} <= set(words)
    assert "…" not in screen.getvalue()


def test_what_is_durable_need_not_be_called_replicated(screen: io.StringIO) -> None:
    steps._show_steps(RUN, [STEP], None, as_json=False)
    words = screen.getvalue().replace(",", "").split()
    assert "durable" in words
    assert "replicated" not in words


def test_the_name_of_a_shard_and_its_digest_are_whole(
    screen: io.StringIO, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "optimizer/" + "state." * 20
    shard = {"name": name, "digest": "e05316f3ccd90fd8", "state": "quarantined"}
    described = StepInfo.from_reply({"run": RUN, "step": 1, "shards": [shard]})
    steps._show_step(described, as_json=False)
    assert capsys.readouterr().out.endswith("restorable: nowhere\n")
    lines = screen.getvalue().splitlines()[1:]
    assert "".join(line.split(" ")[0] for line in lines) == name
    assert "e05316f3ccd90fd8" in screen.getvalue()


def test_a_pinned_run_can_be_read_whole(screen: io.StringIO) -> None:
    pinned = PinInfo(
        run=RUN,
        step=1_000_000,
        pinned_at=1.0,
        shards=12_288,
        local_shards=12_288,
        size_bytes=10**12,
        local_bytes=10**12,
    )
    steps._show_pins([pinned], as_json=False)
    first = "".join(line.split(" ")[0] for line in screen.getvalue().splitlines()[1:])
    assert first == RUN


@pytest.mark.parametrize(("ago", "says"), [(5.0, []), (90.0, ["as", "of"]), (None, ["unchecked"])])
def test_a_step_that_the_bucket_could_not_be_asked_about_says_so(
    screen: io.StringIO, ago: float | None, says: list[str]
) -> None:
    now = 1_000.0
    step = replace(STEP, checked_at=None if ago is None else now - ago)

    words = steps._state(step, now).replace(",", "").split()

    assert words[2 : 2 + len(says)] == says


@pytest.mark.parametrize("columns", ["20", "80", "200"])
def test_in_a_pipe_a_row_is_one_line_however_long(
    columns: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    name = "optimizer/" + "state." * 20
    shard = {"name": name, "digest": "e05316f3ccd90fd8", "state": "quarantined"}
    shards = [shard, {**shard, "name": "weights"}]
    described = StepInfo.from_reply({"run": RUN, "step": 1, "shards": shards})
    steps._show_step(described, as_json=False)
    _, _titles, first, second = capsys.readouterr().out.splitlines()
    assert first.split()[0] == name
    assert second.split()[0] == "weights"
    assert "quarantined" in first
