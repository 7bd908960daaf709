"""The tables of docs/planning.md follow from S3's limits and from what was measured."""

from __future__ import annotations

from math import ceil
from pathlib import Path

import pytest
from cachetier_client.bucket_format.uploads import LARGE_PART_BYTES, PART_BYTES
from cachetier_client.io.digests import BLOCK_BYTES

from cachetier.remote.fair_slots import AT_ONCE
from cachetier.restore.remote_shard import RANGE_BLOCKS
from cachetier.simulate.store import READS_PER_SECOND, WRITES_PER_SECOND

PAGE = (Path(__file__).parents[2] / "docs" / "planning.md").read_text(encoding="utf-8")
RANGE_BYTES = RANGE_BLOCKS * BLOCK_BYTES
GIB = 1 << 30
EACH = (8e6, 60e6, 90e6)
# Processor seconds per GiB and bytes a second of one process: benchmarks/README.md.
DRAIN_SECONDS, RESTORE_SECONDS = 0.7, 0.9
DRAIN_RATE, RESTORE_RATE = 1.2e9, 0.83e9
CHECKPOINT = 2e12


def row(*cells: str) -> str:
    return "| " + " | ".join(cells) + " |"


@pytest.mark.parametrize("gigabits", [25, 100, 400])
def test_what_fills_a_link(gigabits: int) -> None:
    link = gigabits / 8 * 1e9
    cells = [f"{gigabits} Gbit/s", f"{link / 1e9:.1f} GB/s"]
    cells += [f"{ceil(link / each):,}" for each in EACH]
    cells += [f"{min(link, AT_ONCE * each) / 1e9:.1f}" for each in EACH]
    cells += [f"{link / GIB * seconds:.0f}" for seconds in (DRAIN_SECONDS, RESTORE_SECONDS)]
    cells += [f"{link / PART_BYTES:,.0f}", f"{link / RANGE_BYTES:,.0f}"]
    assert row(*cells) in PAGE


@pytest.mark.parametrize(
    ("what", "requests", "size_bytes"),
    [
        ("writes, parts of 16 MiB", WRITES_PER_SECOND, PART_BYTES),
        (
            "writes, parts of 32 MiB, as they are while the store throttles",
            WRITES_PER_SECOND,
            LARGE_PART_BYTES,
        ),
        ("reads, ranges of 8 MiB", READS_PER_SECOND, RANGE_BYTES),
    ],
)
def test_what_a_prefix_allows(what: str, requests: float, size_bytes: int) -> None:
    rate = requests * size_bytes
    seconds = CHECKPOINT / rate
    cells = (
        what,
        f"{requests:,.0f}",
        f"{rate / 1e9:.0f} GB/s",
        f"{seconds:.0f} s",
        f"{seconds / 16:.1f} s",
    )
    assert row(*cells) in PAGE


@pytest.mark.parametrize("nodes", [8, 32, 256])
def test_how_long_two_terabytes_take(nodes: int) -> None:
    share = CHECKPOINT / nodes

    def seconds(rate: float, prefix: float) -> str:
        return f"{max(share / rate, CHECKPOINT / prefix):.0f} s"

    cells = [f"{nodes}", f"{share / 1e9:.0f} GB"]
    cells += [f"{share / disks:.1f} s" for disks in (0.85 * 2e9, 0.85 * 16e9)]
    for rate, limit in (
        (DRAIN_RATE, WRITES_PER_SECOND * PART_BYTES),
        (RESTORE_RATE, READS_PER_SECOND * RANGE_BYTES),
    ):
        cells += [seconds(rate, limit), seconds(AT_ONCE * 90e6, limit)]
    assert row(*cells) in PAGE
