"""The arithmetic of ``auto``, with numbers that anybody can check."""

from __future__ import annotations

import pytest

from cachetier.drain.upload.compression_model import (
    CompressionSample,
    LinkRate,
    Means,
    judge,
    together,
)

MB = 1e6
BF16 = CompressionSample(0.78, 1 / (400 * MB))  # 400 MB/s a thread
FP32 = CompressionSample(0.93, 1 / (400 * MB))
ZEROS = CompressionSample(0.0003, 1 / (1500 * MB))
NOISE = CompressionSample(0.99, 1 / (900 * MB))


def means(link: float | None, threads: int = 2, seen: float | None = None) -> Means:
    known = None if link is None else LinkRate(link, seen or link)
    return Means(known, threads)


@pytest.mark.parametrize(
    ("sample", "link", "threads", "compress"),
    [
        (BF16, 50 * MB, 2, True),  # 15.6 s instead of 20
        (BF16, 600 * MB, 2, True),  # 1.30 s instead of 1.67
        (BF16, 700 * MB, 2, True),  # 1.25 s, which is what making it takes, instead of 1.43
        (BF16, 800 * MB, 2, False),  # 1.25 s instead of 1.25
        (BF16, 1000 * MB, 2, False),
        (BF16, 1000 * MB, 4, True),  # as fast as it is made, it is sent
        (BF16, 400 * MB, 1, False),
        (FP32, 50 * MB, 2, True),
        (
            CompressionSample(0.96, BF16.seconds_per_byte),
            50 * MB,
            2,
            False,
        ),  # four per cent are too few
        (ZEROS, 1000 * MB, 2, True),
        (ZEROS, 1000 * MB, 1, True),
        (ZEROS, 3000 * MB, 1, False),
        (NOISE, 1 * MB, 8, False),
    ],
)
def test_compressing_has_to_take_off_a_twentieth(
    sample: CompressionSample, link: float, threads: int, compress: bool
) -> None:
    assert judge(sample, means(link, threads)).compress is compress


def test_as_long_as_nobody_knows_the_link_what_shrinks_is_compressed() -> None:
    assert judge(BF16, means(None)).compress
    assert not judge(BF16, means(None)).sure
    assert not judge(NOISE, means(None)).compress
    assert judge(NOISE, means(None)).sure


def test_plain_bytes_are_sure_only_where_what_went_through_says_so_too() -> None:
    assert judge(BF16, means(1000 * MB, seen=900 * MB)).sure
    assert not judge(BF16, means(1000 * MB, seen=90 * MB)).sure
    assert judge(BF16, means(50 * MB, seen=40 * MB)).sure  # compressed frames can always be stored


def test_pauses_for_training_count_as_work() -> None:
    rested = Means(LinkRate(500 * MB, 500 * MB), 2)
    paused = Means(LinkRate(500 * MB, 500 * MB), 2, pause_seconds_per_byte=1 / (200 * MB))

    assert judge(BF16, rested).compress
    assert not judge(BF16, paused).compress


def test_the_sentence_has_the_numbers_that_decided() -> None:
    verdict = judge(BF16, means(50 * MB))

    assert verdict.why == (
        "1 GB takes 20 s raw on a link of 50.0 MB/s, "
        "15.6 s compressed to 0.78 at 800 MB/s: compressed"
    )
    assert verdict.link_bytes_per_second == 50 * MB
    assert verdict.compress_bytes_per_second == pytest.approx(800 * MB)
    assert "only" in judge(NOISE, means(None)).why
    assert "not known yet" in judge(BF16, means(None)).why


def test_what_takes_long_is_said_as_a_time() -> None:
    assert "1 GB takes 22 min raw" in judge(BF16, means(1e9 / 1320)).why


def test_samples_give_their_mean_ratio_and_best_speed_and_newer_ones_are_weighed_in() -> None:
    assert together(
        [CompressionSample(0.5, 1.0), CompressionSample(1.0, 3.0)]
    ) == CompressionSample(0.75, 1.0)
    assert CompressionSample(1.0, 0.0).after(
        CompressionSample(0.0, 1.0), 0.25
    ) == CompressionSample(0.75, 0.25)
