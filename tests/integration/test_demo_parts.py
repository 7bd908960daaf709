"""The parts of the demo: what it saves, measures and reports. `make demo` runs the whole."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from cachetier_client import Client, StepInfo, UnflushedStep
from rich.console import Console

from examples.demo import report
from examples.demo.events import EventLog, Follower
from examples.demo.measure import (
    Flights,
    costs,
    median,
    over_quiet_seconds,
    over_reference_seconds,
    same_losses,
    same_weights,
    step_seconds,
)
from examples.demo.narrate import Narrator
from examples.demo.outcome import Kill, NodeLoss, Outcome
from examples.demo.record import RANKS, SAVE_EVERY, SAVES, STEPS, Record

STEP_SECONDS = 0.5
KILLED = SAVES[2]


def record(
    *, first: int = 0, last: int = STEPS, call: float = 0.0, slowed: float = 0.0, seed: int = 0
) -> Record:
    """Return a run whose saves, if any, take ``call`` and slow the step after by ``slowed``."""
    made, at = Record(), 100.0
    for step in range(first + 1, last + 1):
        at += STEP_SECONDS + (slowed if step > SAVE_EVERY and step % SAVE_EVERY == 1 else 0.0)
        loss = float(step + seed).hex()
        for events in made.events.values():
            events.append({"kind": "step", "at": at, "step": step, "loss": loss})
        if call and step in SAVES:
            for rank, events in made.events.items():
                took = call / (rank + 1)
                saved = {"step": step, "began_at": at, "at": at + took, "size_bytes": 1000}
                events.append({"kind": "saved", **saved})
            at += call
    for rank, events in made.events.items():
        ends = {"weights": f"w{rank}{seed}", "optimizer": f"o{rank}{seed}"}
        events.append({"kind": "finished", "at": at, "step": last, **ends})
    return made


def flights(made: Record, seconds: float) -> Flights:
    """Return when each save's bytes had left the node, ``seconds`` after it began."""
    return {step: made.began_at(step) + seconds for step in SAVES if made.saved(step)}


# --- measuring --------------------------------------------------------------------------------


def test_blocked_is_the_call_and_the_slower_steps_after_it() -> None:
    saving = record(call=0.25, slowed=0.125)
    found = costs(saving, record(), flights(saving, 0.5))

    assert [cost.step for cost in found] == list(SAVES)
    assert [cost.blocked_seconds for cost in found] == pytest.approx([0.375] * len(SAVES))
    assert [cost.call_seconds for cost in found] == pytest.approx([0.25] * len(SAVES))
    assert {cost.size_bytes for cost in found} == {1000 * RANKS}


def test_blocked_does_not_change_when_the_machine_has_become_slower_since_the_reference() -> None:
    saving = record(call=0.25)
    faster = record()
    for events in faster.events.values():
        for event in events:
            event["at"] /= 2

    assert over_quiet_seconds(saving, KILLED, flights(saving, 0.5)) == pytest.approx(0.25)
    assert over_reference_seconds(saving, faster, KILLED) == pytest.approx(
        0.25 + SAVE_EVERY * STEP_SECONDS / 2
    )


def test_the_steps_that_tell_how_long_one_takes_are_the_nearest_with_nothing_in_flight() -> None:
    saving = record(call=0.25)
    half = saving.ends()[KILLED]
    for events in saving.events.values():
        for event in events:  # from then on the machine is half as fast
            for instant in {"at", "began_at"} & event.keys():
                event[instant] += max(0.0, event[instant] - half)

    found = [over_quiet_seconds(saving, step, flights(saving, 0.5)) for step in SAVES]
    assert found[:2] == pytest.approx([0.25] * 2)
    assert found[3:] == pytest.approx([0.5] * len(found[3:]))


def test_without_quiet_steps_the_reference_says_how_long_a_step_takes() -> None:
    saving = record(first=KILLED - 1, call=0.25)
    always = flights(saving, STEPS * STEP_SECONDS)

    assert over_quiet_seconds(saving, KILLED, always) is None
    assert costs(saving, record(), always)[0].blocked_seconds == pytest.approx(0.25)


def test_the_last_save_is_followed_to_the_last_step() -> None:
    saving = record(call=0.25)

    assert over_reference_seconds(saving, record(), SAVES[-1]) == pytest.approx(0.25)


def test_a_save_that_a_kill_cut_off_has_a_call_but_no_blocked_time() -> None:
    killed = record(last=KILLED, call=0.25)
    cost = costs(killed, record(), flights(killed, 0.5))[-1]

    assert (cost.step, cost.blocked_seconds) == (KILLED, None)
    assert cost.call_seconds == pytest.approx(0.25)


def test_a_save_that_one_rank_did_not_finish_does_not_count() -> None:
    torn = record(last=KILLED, call=0.25)
    torn.events[1] = [event for event in torn.events[1] if event.get("step") != KILLED]

    assert [cost.step for cost in costs(torn, record(), flights(torn, 0.5))] == list(SAVES[:2])


def test_the_time_of_a_step_is_a_median() -> None:
    assert step_seconds(record(slowed=9.0)) == pytest.approx(STEP_SECONDS)
    assert median([None, 3.0, 1.0, 2.0]) == 2.0
    assert median([None]) is None


def test_a_loss_is_told_once_all_ranks_have_taken_the_step() -> None:
    made = record()
    assert made.mean_loss(8, 4) == pytest.approx(6.5)

    made.events[1] = [event for event in made.events[1] if event["step"] < 8]
    assert made.mean_loss(8, 4) is None


def test_ends_are_compared_on_every_rank_and_in_every_part() -> None:
    other = record()
    other.events[1][-1]["optimizer"] = "different"

    assert same_weights(record(), record())
    assert not same_weights(other, record())
    assert not same_weights(record(), other)


def test_losses_are_compared_for_the_steps_that_were_taken() -> None:
    assert same_losses(record(first=KILLED), record())
    assert not same_losses(record(first=KILLED, seed=1), record())


# --- events -----------------------------------------------------------------------------------


def test_a_follower_gives_each_whole_line_once(tmp_path: Path) -> None:
    follower = Follower(tmp_path, 1)
    with EventLog(tmp_path, 0) as log:
        log.write("step", step=1)
    with (tmp_path / "rank-0.jsonl").open("a") as file:
        file.write('{"kind": "half')

    assert [(rank, event["step"]) for rank, event in follower.new()] == [(0, 1)]
    assert list(follower.new()) == []


def test_waiting_is_told_only_after_a_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    output = io.StringIO()
    narrator = Narrator(Console(file=output, width=80))
    narrator.waiting_for("nothing")
    assert output.getvalue() == ""

    monkeypatch.setattr("examples.demo.narrate.SILENCE_SECONDS", -1.0)
    narrator.waiting_for("the ranks")
    assert "0:00  … waiting for the ranks" in output.getvalue()


# --- the report -------------------------------------------------------------------------------


def step_info(step: int) -> StepInfo:
    reply = {
        "run": "bytes",
        "step": step,
        "state": "published",
        "levels": ["local", "replicated", "durable"],
        "started_at": 1000.0,
        "published_at": 1002.5,
    }
    return StepInfo.from_reply(reply)


def outcome(*, held: bool = True) -> Outcome:
    made = Outcome(reference=record(), seconds=90.0)
    direct, saving = record(call=1.0), record(call=0.1)
    made.direct = costs(direct, record(), flights(direct, 1.0))
    made.saves = costs(saving, record(), flights(saving, 0.5))
    made.steps = {step: step_info(step) for step in SAVES}
    made.kill = Kill(KILLED, [1, 2, 3], 4, 5, 60_000_000, 6, [KILLED], ["rank-0/weights"], 1)
    made.node_loss = NodeLoss(30, 500_000_000, SAVES[-1], 0.5)
    made.compare("the first thing", True)
    made.compare("the second thing", held)
    return made


def shown(made: Outcome) -> str:
    output = io.StringIO()
    report.show(made, Console(file=output, width=90))
    return output.getvalue()


def test_the_report_says_what_saving_cost_and_that_nothing_was_lost() -> None:
    text = shown(outcome())

    assert "a ratio of 0.10" in " ".join(text.split())
    assert "nothing" in text
    assert "Everything held" in text
    assert max(map(len, text.splitlines())) <= 90


def test_a_comparison_that_failed_fails_the_demo() -> None:
    assert outcome().held
    assert not outcome(held=False).held
    assert not Outcome().held  # nothing compared, nothing shown
    assert "✗ the second thing" in shown(outcome(held=False))


def test_a_checkpoint_that_is_not_durable_is_reported_as_lost() -> None:
    made = outcome()
    del made.steps[KILLED]

    assert f"steps [{KILLED}]" in shown(made)


def test_the_report_for_programs_has_what_the_benchmarks_read() -> None:
    made = json.loads(json.dumps(report.as_json(outcome())))

    assert made["blocked"]["ratio"] == pytest.approx(0.1)
    assert made["blocked"]["holds"] is True
    assert made["blocked"]["saves"] == len(SAVES)
    assert [row["step"] for row in made["checkpoints"]] == list(SAVES)
    assert made["checkpoints"][0]["durable_age_seconds"] == 2.5
    assert made["kill"]["dirty_bytes"] == 60_000_000
    assert made["node_loss"]["resumed_from"] == SAVES[-1]
    assert made["held"] is True


# --- training, saved and restored -------------------------------------------------------------


class DictClient:
    """Keeps shards in a dict: the calls that checkpointing makes, without a service."""

    def __init__(self) -> None:
        self.saved: dict[int, dict[str, bytes]] = {}

    @contextmanager
    def checkpoint(self, run: str, step: int, **place: int) -> Iterator[DictCheckpoint]:
        shards: dict[str, bytes] = {}
        yield DictCheckpoint(shards)
        self.saved[step] = shards

    def steps(self, run: str, level: str, *, timeout_seconds: float) -> list[SimpleNamespace]:
        one_rank = {"save_id": "one", "world_size": 1, "ranks": (0,)}
        return [SimpleNamespace(step=step, **one_rank) for step in self.saved]

    def unflushed(self, run: str, *, timeout_seconds: float) -> list[UnflushedStep]:
        return []

    def get_shard(self, run: str, step: int, name: str, *, out: Any = None) -> bytes:
        data = self.saved[step][name]
        if out is not None:
            memoryview(out.numpy()).cast("B")[:] = data
        return data


class DictCheckpoint:
    def __init__(self, shards: dict[str, bytes]) -> None:
        self.shards = shards

    def put(self, data: Any, name: str) -> SimpleNamespace:
        self.shards[name] = data if isinstance(data, bytes) else data.numpy().tobytes()
        return SimpleNamespace(size_bytes=len(self.shards[name]))


@pytest.fixture
def one_rank() -> Iterator[None]:
    torch = pytest.importorskip("torch")
    distributed = torch.distributed
    state, deterministic = torch.get_rng_state(), torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield
    distributed.destroy_process_group()
    torch.use_deterministic_algorithms(deterministic)
    torch.set_rng_state(state)


@pytest.mark.torch
def test_a_job_that_resumes_takes_the_same_steps_bit_for_bit(one_rank: None) -> None:
    from examples.demo.checkpointing import restore, save
    from examples.demo.model import Shape
    from examples.demo.train import Job

    shape = Shape(width=16, layers=1, heads=2, window=8)
    client = cast("Client", DictClient())

    straight = Job(shape)
    assert restore(client, "run", "local", straight.part) == 0  # nothing there yet
    for _ in range(3):
        straight.train_step()
    size_bytes = save(client, "run", 3, straight.part)
    expected = [straight.train_step() for _ in range(3)]

    resumed = Job(shape)
    fresh = resumed.fingerprints()
    assert restore(client, "run", "local", resumed.part) == 3
    assert [resumed.train_step() for _ in range(3)] == expected
    assert resumed.fingerprints() == straight.fingerprints()
    assert resumed.fingerprints() != fresh
    assert size_bytes > 3 * 4 * resumed.parameters  # weights and two moments, in float32


@pytest.mark.torch
def test_a_shard_can_be_read_with_json_and_numpy_alone(one_rank: None) -> None:
    import numpy as np

    from examples.demo.checkpointing import save
    from examples.demo.model import Shape
    from examples.demo.train import Job

    job, client = Job(Shape(width=16, layers=1, heads=2, window=8)), DictClient()
    save(cast("Client", client), "run", 1, job.part)

    shards: Mapping[str, bytes] = client.saved[1]
    tensors = json.loads(shards["rank-0/state.json"])["tensors"]["weights"]
    sizes = [int(np.prod(shape)) for _, shape in tensors]
    weights = np.frombuffer(shards["rank-0/weights"], "float32")
    assert weights.size == sum(sizes) == job.parameters
    assert tensors[0][0] == "bytes.weight"


@pytest.mark.torch
def test_windows_go_on_where_they_were_and_ranks_never_share_one(one_rank: None) -> None:
    import torch

    from examples.demo.text import Windows

    text = torch.arange(200, dtype=torch.uint8)

    def windows(rank: int) -> Windows:
        return Windows(text, length=8, rank=rank, world_size=2, seed=1)

    first, second = windows(0), windows(1)
    taken = [first.next_batch(2)[0] for _ in range(9)]  # into the second epoch
    others = [second.next_batch(2)[0] for _ in range(9)]
    assert first.epoch == 1
    for ours, theirs in zip(taken, others, strict=True):
        assert not set(ours[:, 0].tolist()) & set(theirs[:, 0].tolist())

    moved = windows(0)
    moved.go_to(epoch=first.epoch, taken=first.taken)
    for ours, theirs in zip(first.next_batch(2), moved.next_batch(2), strict=True):
        assert torch.equal(ours, theirs)
