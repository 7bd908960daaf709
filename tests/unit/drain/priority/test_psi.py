"""What the kernel tells of pressure, and what it may tell instead."""

from __future__ import annotations

from pathlib import Path

import pytest

from cachetier.drain.priority.psi import READ_BYTES, Sensors, scheduled_seconds, stalled_seconds

SOME = b"some avg10=0.54 avg60=0.35 avg300=2.47 total=181115426\n"
FULL = b"full avg10=0.00 avg60=0.00 avg300=0.00 total=7\n"


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        (SOME + FULL, 181.115426),
        (FULL + SOME, 181.115426),
        (SOME, 181.115426),
        (FULL, None),
        (b"", None),
        (b"some avg10=1.00", None),
        (b"some total=12x\n", None),
        (b"some total=-5\n", None),
        (b"some avg10=1 total=" + b"9" * 100, None),
        (b"\xff\xfe\x00some", None),
    ],
)
def test_the_stalled_time_is_read_or_nothing(text: bytes, seconds: float | None) -> None:
    assert stalled_seconds(text) == seconds


@pytest.mark.parametrize(
    ("text", "clocks"),
    [
        (b"1500000000 250000000 42\n", (1.5, 0.25)),
        (b"0 0 0\n", (0.0, 0.0)),
        (b"", None),
        (b"12\n", None),
        (b"-1 5 0", None),
        (b"1e9 5 0", None),
        (b"9" * 400 + b" 1 1", None),
    ],
)
def test_a_thread_s_clocks_are_read_or_nothing(
    text: bytes, clocks: tuple[float, float] | None
) -> None:
    assert scheduled_seconds(text) == clocks


def write_thread(proc: Path, number: int, ran: float, waited: float, process: str = "self") -> Path:
    task = proc / process / "task" / str(number)
    task.mkdir(parents=True, exist_ok=True)
    (task / "schedstat").write_text(f"{int(ran * 1e9)} {int(waited * 1e9)} 1\n")
    return task


def test_a_kernel_without_any_of_it_gives_no_signal(tmp_path: Path) -> None:
    sample = Sensors(tmp_path).sample(5.0, 0.25)

    assert sample.at == 5.0
    assert sample.cpu_stalled is sample.io_stalled is None
    assert (sample.own_cpu_waited, sample.own_cpu_used, sample.own_io) == (0.0, 0.0, 0.25)


def test_all_threads_count_and_those_that_ended_go_on_counting(tmp_path: Path) -> None:
    sensors = Sensors(tmp_path)
    write_thread(tmp_path, 10, 1.0, 2.0)
    ending = write_thread(tmp_path, 11, 3.0, 4.0)
    first = sensors.sample(0.0, 0.0)
    assert (first.own_cpu_used, first.own_cpu_waited) == (4.0, 6.0)

    (ending / "schedstat").unlink()
    ending.rmdir()
    write_thread(tmp_path, 10, 1.5, 2.0)
    for _ in range(2):
        later = sensors.sample(0.0, 0.0)
        assert (later.own_cpu_used, later.own_cpu_waited) == (4.5, 6.0)


def test_what_carriers_ran_and_read_counts_as_our_own(tmp_path: Path) -> None:
    sensors = Sensors(tmp_path, lambda: [77, 78], lambda: 0.5)  # one of which has ended
    write_thread(tmp_path, 10, 1.0, 2.0)
    write_thread(tmp_path, 77, 3.0, 4.0, "77")
    sample = sensors.sample(0.0, 0.25)

    assert (sample.own_cpu_used, sample.own_cpu_waited, sample.own_io) == (4.0, 6.0, 0.75)


def test_no_more_than_the_start_of_a_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "pressure").mkdir()
    (tmp_path / "pressure" / "cpu").write_bytes(b"x" * READ_BYTES + SOME)
    (tmp_path / "pressure" / "io").write_bytes(SOME + b"x" * (1 << 20))
    sample = Sensors(tmp_path).sample(0.0, 0.0)

    assert sample.cpu_stalled is None
    assert sample.io_stalled == 181.115426
