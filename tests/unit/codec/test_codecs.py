"""Every codec that a shard may be stored by is registered, and keeps what the registry promises."""

from __future__ import annotations

import pytest
from cachetier_client.bucket_format.stored import ELEMENT_SIZES_OF, FRAME_LIMIT_BYTES, Codec
from cachetier_client.io.digests import BLOCK_BYTES

from cachetier.codec import planes
from cachetier.codec.codecs import CODECS, content_headers
from tests.fakes.bodies import noise


def test_every_codec_but_raw_is_registered_and_says_its_elements() -> None:
    assert {*CODECS, Codec.RAW} == set(ELEMENT_SIZES_OF) == set(Codec)


@pytest.mark.parametrize("codec", CODECS)
def test_what_a_codec_makes_of_a_block_its_decoder_gives_back(codec: Codec) -> None:
    known, element_size = CODECS[codec], ELEMENT_SIZES_OF[codec][0]
    block = noise(BLOCK_BYTES, 1)
    split = planes.split(block, element_size) if element_size else block
    for frame in (known.encoder(1)(split), known.stored_frame(split)):
        assert len(frame) <= FRAME_LIMIT_BYTES
        assert bytes(known.decoder()(frame, len(block), element_size)) == block


def test_clients_of_http_are_told_what_others_can_decode() -> None:
    told = {codec: dict(content_headers(codec)) for codec in Codec}
    assert told == {Codec.RAW: {}, Codec.ZSTD: {"content-encoding": "zstd"}, Codec.PLANES: {}}
