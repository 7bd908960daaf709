"""What objbench's figures suggest."""

from __future__ import annotations

from cachetier.doctor.objbench import PART_BYTES, MeasuredThroughput, RemoteBenchOptions, advice_for


def cell(
    streams: int, rate: float, throttled: int = 0, part_bytes: int = PART_BYTES
) -> MeasuredThroughput:
    return MeasuredThroughput(streams, part_bytes, rate, rate, throttled, 0)


def test_the_fewest_streams_that_nearly_reach_the_best_are_suggested() -> None:
    cells = [cell(1, 100e6), cell(2, 190e6), cell(4, 300e6), cell(8, 310e6), cell(16, 305e6)]
    advice = advice_for(cells)
    assert (advice.drain_workers, advice.max_rate, advice.remarks) == (4, "", ())


def test_other_part_sizes_do_not_decide() -> None:
    cells = [cell(1, 300e6), cell(2, 301e6), cell(8, 900e6, part_bytes=2 * PART_BYTES)]
    assert advice_for(cells).drain_workers == 1


def test_a_store_that_was_still_getting_faster_is_worth_another_try() -> None:
    advice = advice_for([cell(8, 100e6), cell(16, 200e6)])
    assert advice.drain_workers == 16
    assert "--streams 32" in advice.remarks[0]


def test_a_dip_before_the_most_streams_is_no_growth() -> None:
    advice = advice_for([cell(4, 141e6), cell(8, 84e6), cell(16, 109e6)])
    assert (advice.drain_workers, advice.remarks) == (4, ())


def test_throttling_suggests_a_rate_below_what_passed_calmly() -> None:
    advice = advice_for([cell(1, 100e6), cell(2, 200e6), cell(4, 210e6, throttled=5)])
    assert (advice.drain_workers, advice.max_rate) == (2, "160 MB/s")
    assert "from 4 streams" in advice.remarks[0]


def test_a_store_that_throttles_from_the_first_stream_still_gets_advice() -> None:
    advice = advice_for([cell(1, 10e6, throttled=3), cell(2, 9e6, throttled=9)])
    assert (advice.drain_workers, advice.max_rate) == (1, "8 MB/s")


def test_failures_are_mentioned() -> None:
    failing = MeasuredThroughput(1, PART_BYTES, 1e6, 1e6, 0, 3)
    assert "3 requests failed" in advice_for([failing]).remarks[-1]


def test_a_plan_goes_up_to_its_streams_and_then_tries_other_parts() -> None:
    streams = [
        streams
        for streams, part_bytes in RemoteBenchOptions(streams=6).cells
        if part_bytes == PART_BYTES
    ]
    assert streams == [1, 2, 4, 6]
    assert len({part_bytes for _, part_bytes in RemoteBenchOptions(streams=6).cells}) == 3
