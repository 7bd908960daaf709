"""Bytes split by their place in an element come back, whatever the length."""

from __future__ import annotations

import random
import struct

import pytest
from cachetier_client.bucket_format.stored import ELEMENT_SIZES
from hypothesis import given
from hypothesis import strategies as st

from cachetier.codec import planes
from cachetier.codec.frames import FrameEncoder
from cachetier.errors import IntegrityError

sizes = st.sampled_from(ELEMENT_SIZES)


@given(st.binary(max_size=67), sizes)
def test_what_is_split_comes_back(block: bytes, element_size: int) -> None:
    assert planes.join(planes.split(block, element_size), element_size) == block


def test_planes_lie_one_after_the_other_and_the_rest_behind() -> None:
    assert planes.split(memoryview(b"aAbBcCdDx"), 2) == b"abcdABCDx"
    assert planes.split(b"aA1?bB2!xyz", 4) == b"abAB12?!xyz"


@given(st.binary(max_size=67), sizes)
def test_joining_what_never_was_split_neither_fails_nor_grows(data: bytes, size: int) -> None:
    assert len(planes.join(data, size)) == len(data)


@pytest.mark.parametrize("element_size", [-1, 0, 1, 3, 16, 1 << 40])
def test_elements_of_any_other_size_are_an_error(element_size: int) -> None:
    with pytest.raises(IntegrityError, match="no elements"):
        planes.join(b"data", element_size)


def test_numbers_of_like_size_compress_better_as_planes() -> None:
    source = random.Random(0)
    block = struct.pack("<100000f", *(source.gauss(0, 0.02) for _ in range(100_000)))
    encoder = FrameEncoder(1)

    plain, split = len(encoder.encode(block)), len(encoder.encode(planes.split(block, 4)))

    assert split < 0.95 * plain
    assert split < 0.88 * len(block)
