"""Every benchmark works, at a tiny size. Speed is judged by ``make bench``, never here.

A run takes a rotating tenth of them: all take some minutes, by ``make soak``.
"""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from benchmarks import bytes as bytes_group
from benchmarks import console, core, drain, link, peers, report, s3, truth
from benchmarks import torch as torch_group
from benchmarks.__main__ import main
from benchmarks.core import demo
from benchmarks.measures import Result, at_least, at_most, median_of
from tests.integration.browsers import needs_chromium
from tests.integration.needs import needs_weed

KEYS = {"group", "measure", "value", "unit", "bar", "holds", "runs"}
TRAINED = {"stored_size", "time_to_durable"}  # with states of a model that torch trains
WITHOUT_DEMO = [
    *(("core", name) for name in sorted(set(core.BENCHES) - {"demo"})),
    *(("drain", name) for name in sorted(drain.BENCHES)),
    *(("link", name) for name in sorted(link.BENCHES)),
    *(("processor", name) for name in sorted(link.PROCESSOR)),
    *(("bytes", name) for name in sorted(set(bytes_group.BENCHES) - TRAINED)),
    *(pytest.param("bytes", name, marks=pytest.mark.torch) for name in sorted(TRAINED)),
    *(
        pytest.param("torch", name, marks=[pytest.mark.torch])
        for name in sorted(set(torch_group.BENCHES) - {"beside_s3", "gpu"})  # gpu: none without one
    ),
    *(pytest.param("console", name, marks=needs_chromium) for name in sorted(console.BENCHES)),
    *(pytest.param("peers", name, marks=needs_weed) for name in sorted(peers.BENCHES)),
    *(("truth", name) for name in sorted(truth.BENCHES)),
    *(("s3", name) for name in sorted(set(s3.BENCHES) - {"s3_torch"})),
    *(
        pytest.param(
            group,
            name,
            marks=[
                pytest.mark.torch,
                pytest.mark.skipif(
                    importlib.util.find_spec("s3torchconnector") is None,
                    reason="s3torchconnector comes with `make bench`",
                ),
            ],
        )
        for group, name in (("torch", "beside_s3"), ("s3", "s3_torch"))
    ),
]


@pytest.fixture(autouse=True)
def on_its_own_disk_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    scratch = tmp_path / "scratch"
    monkeypatch.setenv("CACHETIER_BENCH_DIR", str(scratch))
    return scratch


@pytest.mark.soak
@pytest.mark.slow
@pytest.mark.parametrize(("group", "name"), WITHOUT_DEMO)
def test_a_benchmark_measures_and_leaves_nothing_behind(
    group: str, name: str, tmp_path: Path, on_its_own_disk_space: Path
) -> None:
    results = tmp_path / "results.json"
    chosen = ["--quick", "--only", group, "--measure", name, "--results", str(results)]
    assert main(chosen) == 0
    rows = json.loads(results.read_text())
    assert rows
    for row in rows:
        assert set(row) == KEYS
        assert row["group"] == group
        assert row["value"] >= 0
        assert row["runs"] >= 1
    assert list(on_its_own_disk_space.iterdir()) == []


def test_a_benchmark_that_breaks_is_told_of_and_does_not_cost_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def breaks(_bench: object) -> list[Result]:
        raise RuntimeError("no such disk")

    def works(_bench: object) -> list[Result]:
        return [Result("ones", 1.0, "s", at_most(0.5), (1.0,))]

    monkeypatch.setitem(core.BENCHES, "first", breaks)
    monkeypatch.setitem(core.BENCHES, "second", works)
    results = tmp_path / "results.json"
    chosen = ["--quick", "--measure", "first", "--measure", "second"]
    assert main([*chosen, "--results", str(results)]) == 1
    rows = {row["measure"]: row for row in json.loads(results.read_text())}
    assert rows["first"]["value"] is None
    assert rows["ones"] == {
        "group": "core",
        "measure": "ones",
        "value": 1.0,
        "unit": "s",
        "bar": "<= 0.5",
        "holds": False,
        "runs": 1,
    }


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--measure", "wrong"], "no benchmark 'wrong'; there are "),
        (["--only", "drain", "--measure", "small"], "no benchmark 'small'; there are "),
        (["--only", "wrong"], "invalid choice: 'wrong' (choose from "),
    ],
)
def test_a_benchmark_that_does_not_exist_is_refused_before_anything_is_measured(
    arguments: list[str],
    told: str,
    on_its_own_disk_space: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as refused:
        main(["--quick", *arguments])
    assert refused.value.code == 2
    error = capsys.readouterr().err
    assert told in error
    for name in drain.BENCHES if "drain" in arguments else ("drain",):
        assert name in error
    assert not on_its_own_disk_space.exists()


def test_a_missed_bar_is_no_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(_bench: object) -> list[Result]:
        return [Result("ones", 1.0, "s", at_most(0.5), (1.0,))]

    monkeypatch.setitem(core.BENCHES, "slow", slow)
    assert main(["--quick", "--measure", "slow", "--results", str(tmp_path / "r.json")]) == 0


def test_groups_that_were_not_measured_keep_their_entries(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    report.write(path, {"drain": [Result("rate", 1.0, "GB/s")], "core": []}, whole=True)
    report.write(path, {"core": [Result("old", 1.0, "s"), Result("put", 1.0, "s")]}, whole=True)
    report.write(path, {"core": [Result("put", 2.0, "s")]}, whole=True)
    assert [(row["measure"], row["value"]) for row in report.read(path)] == [
        ("rate", 1.0),
        ("put", 2.0),
    ]


def test_the_readme_takes_the_figures_and_keeps_its_text(tmp_path: Path) -> None:
    readme = tmp_path / "README.md"
    readme.write_text(f"before\n{report.BEGIN}\nolder figures\n{report.END}\nafter\n")
    row = median_of("puts", [1.0, 3.0, 2.0], "times", at_least(2)).as_json("core")
    report.record(readme, [row], ["2 cores"])
    text = readme.read_text()
    assert text.startswith("before\n") and text.endswith("after\n")
    assert "- 2 cores" in text
    assert "| core | puts | 2 times | >= 2 | yes | 3 |" in text
    assert "older figures" not in text


def test_the_readme_shows_the_groups_one_after_the_other(tmp_path: Path) -> None:
    readme = tmp_path / "README.md"
    readme.write_text(f"{report.BEGIN}\n{report.END}\n")
    rows = [Result(f"{group} {n}", n, "s").as_json(group) for n in (1, 2) for group in ("b", "a")]
    report.record(readme, rows, [])
    shown = [line.split(" | ")[1] for line in readme.read_text().splitlines() if " s | " in line]
    assert shown == ["a 1", "a 2", "b 1", "b 2"]


def test_the_demo_is_judged_by_its_own_report() -> None:
    saves = [
        {"blocked_seconds": 0.1, "direct_put_seconds": 1.0},
        {"blocked_seconds": None, "direct_put_seconds": 1.0},
        {"blocked_seconds": 0.3, "direct_put_seconds": 1.0},
    ]
    (result,) = demo.results_of({"checkpoints": saves, "blocked": {"ratio": 0.11}})
    assert (result.value, result.values, result.holds) == (0.11, (0.1, 0.3), True)
