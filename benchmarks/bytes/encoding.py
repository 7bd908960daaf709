"""How fast a core compresses, beside ``zstandard`` on the same bytes at once.

In processor seconds of the one thread that works, in turns; so a busy machine slows both alike.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import zstandard
from cachetier_client.io.digests import BLOCK_BYTES, digest_of

from benchmarks.bytes.payloads import filled, gaussian_bf16
from benchmarks.bytes.sizes import sizes_of
from benchmarks.measures import Result, at_least, median_of, ratios
from benchmarks.scratch import Bench
from cachetier.codec import planes
from cachetier.codec.frames import FrameDecoder, FrameEncoder

LEVEL = 1
ELEMENT_SIZE = 2


def measure(bench: Bench) -> list[Result]:
    sizes = sizes_of(bench)
    data = bytes(filled(gaussian_bf16(), sizes.encoded_bytes))
    blocks = [data[at : at + BLOCK_BYTES] for at in range(0, len(data), BLOCK_BYTES)]
    encoder, decoder = FrameEncoder(LEVEL), FrameDecoder()
    at_once = zstandard.ZstdCompressor(level=LEVEL)

    def encode() -> None:
        for block in blocks:
            encoder.encode(block)

    def encode_and_check() -> None:
        for block in blocks:
            frame = encoder.encode(block)
            digest_of(frame)
            digest_of(decoder.decode(frame, len(block)))

    def split_and_encode() -> None:
        for block in blocks:
            encoder.encode(planes.split(block, ELEMENT_SIZE))

    ways: dict[str, Callable[[], object]] = {
        "zstandard, all at once": lambda: at_once.compress(data),
        "frames": encode,
        "frames, each decoded and compared": encode_and_check,
        "planes, then frames": split_and_encode,
    }
    spent: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(sizes.encoding_runs + 1):
        for name, work in ways.items():
            began = time.thread_time()
            work()
            if number:  # the first one only warms up
                spent[name].append(time.thread_time() - began)
    yardstick, ours, *others = spent
    rates = {name: [len(data) / 1e9 / each for each in found] for name, found in spent.items()}
    bench.say(", ".join(f"{name} {found[-1]:.2f} GB/s" for name, found in rates.items()))
    what = "compression throughput per busy core / zstandard's one-shot, level 1: "
    return [
        median_of(f"{what}{ours}", ratios(rates[ours], rates[yardstick]), "", at_least(0.9)),
        *(median_of(f"{what}{name}", ratios(rates[name], rates[yardstick]), "") for name in others),
        median_of(f"{yardstick}, level 1, bf16 weights, per core", rates[yardstick], "GB/s"),
    ]
