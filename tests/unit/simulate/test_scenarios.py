"""The scenarios that are kept as examples come out as their page says, and wrong ones are named."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from cachetier.cli.app import app
from cachetier.errors import InvalidRequestError
from cachetier.simulate.outcome import SimulatedOutcome
from cachetier.simulate.scenario import Scenario, read_scenario
from cachetier.simulate.simulation import simulate

ROOT = Path(__file__).parents[3]
EXAMPLES = ROOT / "examples" / "simulate"
PAGE = (ROOT / "docs" / "planning.md").read_text()

SMALL = """
duration = "30min"
[nodes]
ranks = 2
[[runs]]
name = "train"
nodes = 2
checkpoint = "400MB"
every = "5min"
"""


def scenario(tmp_path: Path, more: str = "", text: str = SMALL) -> Scenario:
    path = tmp_path / "scenario.toml"
    path.write_text(text + more)
    return read_scenario(path)


def outcome(tmp_path: Path, more: str = "", text: str = SMALL) -> SimulatedOutcome:
    return simulate(scenario(tmp_path, more, text))


# --- the examples, as the page shows them --------------------------------------------------------


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.toml")), ids=lambda path: path.stem)
def test_an_example_comes_out_as_the_page_says(path: Path) -> None:
    result = CliRunner().invoke(app, ["plan", "simulate", str(path)])
    assert result.exit_code == 0, result
    command = f"$ cachetier plan simulate examples/simulate/{path.name}\n"
    shown = "\n".join(line.rstrip() for line in result.stdout.splitlines())
    assert f"{command}{shown}\n```" in PAGE, f"write this into docs/planning.md:\n{shown}"


def test_the_cure_of_the_bad_setting_cures() -> None:
    bad = read_scenario(EXAMPLES / "slow-link.toml")
    settings = msgspec.structs.replace(bad.settings, durable_every=4)
    (cured,) = simulate(msgspec.structs.replace(bad, settings=settings)).runs
    assert cured.waited_seconds is not None
    assert cured.waited_seconds.most == 0
    assert cured.states["local_only"] > cured.states["durable"] > 5
    assert cured.exposure_seconds.most < 35 * 60


# --- what it shows -------------------------------------------------------------------------------


def test_the_same_seed_gives_the_same_outcome_and_another_one_another(tmp_path: Path) -> None:
    read = scenario(tmp_path)
    first, again = asdict(simulate(read)), asdict(simulate(read))
    assert first == again
    assert asdict(simulate(msgspec.structs.replace(read, seed=1))) != first


def test_a_quiet_run_is_durable_within_seconds_and_nobody_waits(tmp_path: Path) -> None:
    found = outcome(tmp_path)
    (run,) = found.runs
    assert run.states == {"durable": 6}
    assert run.durable_seconds is not None
    assert run.durable_seconds.most < 5
    assert run.waited_seconds is not None
    assert run.waited_seconds.most == 0
    assert (found.requests.throttled, found.requests.unanswered) == (0, 0)
    assert found.sent_bytes == pytest.approx(6 * 400e6)


def test_a_lost_node_takes_along_what_was_trained_since_the_newest_durable_step(
    tmp_path: Path,
) -> None:
    loss = '[[losses]]\nat = "13min"\nrun = "train"\nnode = 1\nback_after = "1min"\n'
    (run,) = outcome(tmp_path, loss).runs
    assert run.lost_seconds == pytest.approx(3 * 60, abs=5)  # since the save of the tenth minute
    assert run.states == {"durable": 6}


def test_a_save_that_a_lost_node_had_not_sent_is_lost_and_saved_again(tmp_path: Path) -> None:
    away = '[store]\noutages = [{ at = "9min", lasts = "10min" }]\n'
    loss = '[[losses]]\nat = "13min"\nrun = "train"\nnode = 1\nback_after = "1min"\n'
    (run,) = outcome(tmp_path, away + loss).runs
    assert run.states["lost"] == 1
    assert run.lost_seconds == pytest.approx(8 * 60, abs=5)  # since that of the fifth
    assert run.states["durable"] == 5


def test_nothing_is_durable_while_the_store_is_away_and_everything_soon_after(
    tmp_path: Path,
) -> None:
    found = outcome(tmp_path, '[store]\noutages = [{ at = "4min", lasts = "15min" }]\n')
    (run,) = found.runs
    assert run.states == {"durable": 6}
    assert run.durable_seconds is not None
    assert 14 * 60 < run.durable_seconds.most < 15 * 60
    assert run.exposure_seconds.most > 15 * 60
    assert 1000 < found.requests.unanswered < 4000  # some two a second: a probe of each node


def test_a_full_node_refuses_or_lets_ranks_wait_as_the_setting_says(tmp_path: Path) -> None:
    full = '[settings]\ncapacity = "300MB"\nmax_rate = "0.5MB/s"\n'
    (waits,) = outcome(tmp_path, full).runs
    assert waits.waited_seconds is not None
    assert waits.waited_seconds.most > 60
    assert "refused" not in waits.states
    (refuses,) = outcome(tmp_path, full + 'when_full = "reject"\n').runs
    assert refuses.states["refused"] > 0


def test_a_prefix_of_its_own_keeps_a_run_from_what_another_one_does(tmp_path: Path) -> None:
    text = SMALL.replace('"400MB"', '"8GB"') + SMALL[SMALL.index("[[runs]]") :].replace(
        '"train"', '"other"'
    )
    slow = "[store]\nwrites_per_second = 5\n"
    shared, apart = outcome(tmp_path, slow, text), outcome(tmp_path, 'prefix = "b"\n' + slow, text)
    after = [found.runs[1].durable_seconds for found in (shared, apart)]
    assert after[0] is not None
    assert after[1] is not None
    assert after[0].p50 > 1.3 * after[1].p50


def test_json_has_all_of_it(tmp_path: Path) -> None:
    path = tmp_path / "scenario.toml"
    path.write_text(SMALL)
    result = CliRunner().invoke(app, ["plan", "simulate", str(path), "--seed", "3", "--json"])
    found = json.loads(result.stdout)
    assert (found["seed"], found["runs"][0]["states"]) == (3, {"durable": 6})
    assert len({len(found["timeline"][name]) for name in ("seconds", "dirty_bytes")}) == 1


def test_a_plot_is_drawn(tmp_path: Path) -> None:
    path, plot = tmp_path / "scenario.toml", tmp_path / "plot.svg"
    path.write_text(SMALL)
    assert (
        CliRunner().invoke(app, ["plan", "simulate", str(path), "--plot", str(plot)]).exit_code == 0
    )
    assert plot.read_bytes().startswith(b"<?xml")


# --- what is impossible --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("runs = [", "cannot read"),
        ('duration = "1h"', "missing required field `runs`"),
        (SMALL + "[settings]\ncapacty = 3\n", "settings: Object contains unknown field `capacty`"),
        (SMALL + '[settings]\ncapacity = "much"\n', "settings.capacity: 'much' is not a size"),
        (SMALL + '[settings]\nwhen_full = "write_through"\n', "settings.when_full"),
        (SMALL + "[settings]\nlow_watermark = 0.95\n", "settings.low_watermark: it is above"),
        (SMALL + '[settings]\nmax_rate = "0"\n', "a rate of 0 never moves anything"),
        (SMALL.replace("ranks = 2", "ranks = 0"), "nodes.ranks: Expected `int` >= 1"),
        (SMALL.replace("ranks = 2", 'link = "fast"'), "nodes.link: 'fast' is not a rate"),
        (SMALL.replace("ranks = 2", "latency_ms = [9, 2]"), "nodes.latency_ms"),
        (SMALL.replace("nodes = 2", "nodes = 1001"), "more than 1000"),
        (SMALL.replace('"train"', '"a/b"'), "runs.name"),
        (SMALL.replace('"400MB"', '"3B"'), "runs.train.checkpoint: 4 shards of it would be empty"),
        (SMALL.replace('"400MB"', '"400TB"'), "larger than settings.capacity"),
        (SMALL.replace('"5min"', '"0s"'), "runs.train.every"),
        (SMALL.replace('"30min"', '"0s"'), "duration"),
        (SMALL + 'on = "nobody"\n', "runs.train.on: nobody is no run"),
        (SMALL + '[[losses]]\nat = "1min"\nrun = "train"\nnode = 2\n', "losses: train has no node"),
        (SMALL + SMALL[SMALL.index("[[runs]]") :], "two runs have one name"),
    ],
)
def test_an_impossible_scenario_names_its_field(tmp_path: Path, text: str, named: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        scenario(tmp_path, text=text)
    assert named in caught.value.message
    assert caught.value.hint
