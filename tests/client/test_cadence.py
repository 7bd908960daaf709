"""How often to save: the rule by its properties, and what is measured of saves that were made."""

from __future__ import annotations

import math
import threading
from typing import Any

import pytest
from cachetier_client import Client, InvalidRequestError, StepInfo
from cachetier_client.cadence import (
    Figure,
    cadence_of,
    expected_mtbf,
    measured_blocked,
    measured_durable,
    measured_step,
    young_daly,
)
from hypothesis import given
from hypothesis import strategies as st

from tests.client.fake_service import FakeService, Refusal

HOUR, DAY = 3600.0, 86_400.0
seconds = st.floats(0.001, 1e6)
caps = st.floats(0.001, 0.9)


def step(number: int, started: float, sealed: float | None, published: float | None) -> StepInfo:
    described: dict[str, Any] = {"run": "r", "step": number, "size_bytes": 1000, "ranks": [0, 1]}
    times = {"started_at": started, "sealed_at": sealed, "published_at": published}
    return StepInfo.from_reply({**described, **times, "world_size": 8})


def waste(interval: float, blocked: float, mtbf: float) -> float:
    """Daly's expected time of a job, exactly, beside that of one without saves and failures."""
    return mtbf * math.expm1(interval / mtbf) / (interval - blocked)


# --- the rule ------------------------------------------------------------------------------------


@given(seconds, seconds, seconds, caps)
def test_an_interval_keeps_to_every_bound_and_one_of_them_decides(
    blocked: float, durable: float, mtbf: float, cap: float
) -> None:
    advice = cadence_of(Figure(blocked), Figure(durable), Figure(mtbf), overhead_cap=cap)

    bounds = {
        "young-daly": young_daly(blocked, mtbf),
        "overhead": blocked / cap,
        "drain": durable,
    }
    assert advice.interval_seconds == bounds[advice.bound] == max(bounds.values())
    assert advice.overhead <= cap * (1 + 1e-9)
    assert advice.lost_seconds >= durable
    assert advice.interval_steps is None


@given(seconds, st.floats(1.0, 1e6))
def test_no_other_interval_wastes_noticeably_less_than_youngs_and_dalys(
    blocked: float, times: float
) -> None:
    mtbf = blocked * times * 2
    best = young_daly(blocked, mtbf)

    others = (blocked + (best - blocked) * factor for factor in (0.25, 0.5, 0.8, 1.25, 2.0, 4.0))
    assert all(waste(best, blocked, mtbf) <= 1.02 * waste(each, blocked, mtbf) for each in others)


@given(seconds, seconds, seconds, seconds)
def test_who_fails_less_often_saves_no_more_often(
    blocked: float, durable: float, mtbf: float, more: float
) -> None:
    often = cadence_of(Figure(blocked), Figure(durable), Figure(mtbf))
    seldom = cadence_of(Figure(blocked), Figure(durable), Figure(mtbf + more))

    assert seldom.interval_seconds >= often.interval_seconds * (1 - 1e-9)


def test_a_known_case() -> None:
    """Nine seconds blocked, a failure every twelve hours: 882 s by Young, and a little by Daly."""
    times = Figure(9.0), Figure(41.0), Figure(12 * HOUR)
    advice = cadence_of(*times, Figure(2.0))

    assert advice.bound == "young-daly"
    assert advice.interval_seconds == pytest.approx(math.sqrt(2 * 9 * 12 * HOUR), rel=0.01)
    assert advice.interval_steps == math.ceil((advice.interval_seconds - 9.0) / 2.0)
    assert advice.overhead == pytest.approx(9 / advice.interval_seconds)
    assert advice.lost_seconds == pytest.approx(advice.interval_seconds / 2 + 41)
    assert advice.lost_seconds_node_kept == pytest.approx(advice.interval_seconds / 2 + 9)

    assert cadence_of(*times, overhead_cap=0.005).bound == "overhead"
    assert cadence_of(*times, overhead_cap=0.005).interval_seconds == 1800
    slow = cadence_of(Figure(0.0), Figure(700.0), Figure(12 * HOUR), Figure(1e6))
    assert (slow.bound, slow.interval_seconds, slow.overhead) == ("drain", 700.0, 0.0)
    assert slow.interval_steps == 1


def test_a_job_that_fails_while_it_saves_saves_once_a_failure() -> None:
    assert young_daly(100.0, 50.0) == 150.0


@pytest.mark.parametrize(
    ("blocked", "durable", "mtbf", "cap"),
    [
        (-1.0, 1.0, 1.0, 0.1),
        (math.nan, 1.0, 1.0, 0.1),
        (1.0, 0.0, 1.0, 0.1),
        (1.0, 1.0, math.inf, 0.1),
        (1.0, 1.0, 1.0, 0.0),
        (1.0, 1.0, 1.0, 3.5),
    ],
)
def test_what_is_no_time_and_no_share_is_refused(
    blocked: float, durable: float, mtbf: float, cap: float
) -> None:
    with pytest.raises(InvalidRequestError, match="is no "):
        cadence_of(Figure(blocked), Figure(durable), Figure(mtbf), overhead_cap=cap)


# --- what is measured ----------------------------------------------------------------------------


def test_a_step_that_queues_behind_another_is_timed_from_where_the_other_ended() -> None:
    steps = [step(1, 100, 105, 140), step(2, 110, 115, 182), step(3, 300, 305, 341)]

    found = measured_durable(steps)
    assert found is not None
    assert (found.seconds, found.origin) == (41, "measured")  # of 40, 42 and 41


def test_before_a_step_is_durable_its_bytes_and_the_drains_rate_tell() -> None:
    waiting = [step(1, 100, 105, None)]

    assert measured_durable(waiting) is None
    assert measured_durable([], 10.0) is None
    found = measured_durable(waiting, 10.0)
    assert found is not None
    assert found.seconds == 100


def test_steps_that_other_nodes_published_measure_nothing_here() -> None:
    """Their instants are of other clocks."""
    elsewhere = [step(1, 100, None, 140), step(2, 200, None, 240)]

    assert measured_durable(elsewhere) is None
    assert measured_blocked([], elsewhere) is None
    assert measured_step(elsewhere, None) is None
    assert expected_mtbf(elsewhere, None, 0.01) is None


def test_a_training_step_is_what_lies_between_two_saves_without_the_save() -> None:
    steps = [step(100, 0.5, 10, 20), step(200, 210.5, 215, 220), step(300, 420.5, 425, 430)]

    found = measured_step(steps, Figure(10.0))
    assert found is not None
    assert found.seconds == 2.0
    assert measured_step(steps[:1], None) is None
    assert measured_step([steps[1], step(300, 100, 105, None)], None) is None  # begun anew


def test_nodes_are_counted_by_the_ranks_that_sealed_here() -> None:
    found = expected_mtbf([step(1, 100, 105, None)], None, 0.01)

    assert found is not None
    assert found.seconds == DAY / (4 * 0.01)
    assert found.origin == "assumed"
    with pytest.raises(InvalidRequestError, match="never fail"):
        expected_mtbf([], 0, 0.01)
    with pytest.raises(InvalidRequestError, match="never fail"):
        expected_mtbf([], 2, 0.0)


def described(number: int, started: float) -> dict[str, Any]:
    times = {"started_at": started, "sealed_at": started + 5, "published_at": started + 60}
    ids = {"run": "r", "step": number, "save_id": "one", "state": "published", "shards": 1}
    return {**ids, **times, "ranks": [0], "world_size": 2, "size_bytes": 10}


def test_a_client_advises_from_what_its_node_and_itself_have_seen(
    service: FakeService, client: Client
) -> None:
    service.answers["steps"] = {"steps": [described(100, 1000.0), described(200, 1400.0)]}

    before = client.cadence("r")
    assert (before.blocked.seconds, before.blocked.origin) == (5.0, "assumed")
    assert (before.durable.seconds, before.durable.origin) == (60.0, "measured")
    assert before.mtbf.about.startswith("2 nodes")
    assert before.step is not None
    assert before.interval_steps is not None

    with client.checkpoint("r", 300, save_id="x"):
        pass
    with client.blocking("other"):
        pass
    other = threading.Thread(target=lambda: client.checkpoint("r", 400, save_id="y").seal())
    other.start()
    other.join()
    after = client.cadence("r", mtbf_seconds=HOUR)
    assert after.blocked.origin == "measured"
    assert "1 save" in after.blocked.about  # not the other run's, nor the other thread's
    assert after.mtbf == Figure(HOUR)
    assert after.bound == "drain"


def test_a_client_says_what_to_pass_where_nothing_was_measured(
    service: FakeService, client: Client
) -> None:
    service.answers["steps"] = {"steps": []}
    service.answers["status"] = {"status": {"drain": {"rate_bytes_per_second": None}}}
    with pytest.raises(InvalidRequestError, match=r"what a save blocks\. Next: Pass blocked_sec"):
        client.cadence("r")
    with pytest.raises(InvalidRequestError, match="Pass durable_seconds="):
        client.cadence("r", blocked_seconds=1.0)
    service.refusals["status"] = [Refusal("forbidden")]
    with pytest.raises(InvalidRequestError, match="Pass durable_seconds="):
        client.cadence("r", blocked_seconds=1.0)
    with pytest.raises(InvalidRequestError, match="Pass nodes="):
        client.cadence("r", blocked_seconds=1.0, durable_seconds=9.0)

    advice = client.cadence("r", blocked_seconds=1.0, durable_seconds=9.0, nodes=4)
    assert advice.interval_steps is None
    assert advice.mtbf.seconds == pytest.approx(DAY / (4 * 0.0065))
