"""A part that stalls on a real connection is broken off, and moved again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from awscrt.checksums import crc64nvme
from cachetier_client.bucket_format.uploads import UploadedPart

from cachetier.remote.base import ObjectStore
from cachetier.remote.call_policy import USUAL_FROM, CallPolicy, Stragglers
from cachetier.remote.stall_guard import StallWatch, Timeouts
from cachetier.testing.s3_endpoint import S3Endpoint
from cachetier.testing.s3proxy import S3Proxy
from cachetier.testing.troubles import Fault, Trouble, nth

PART = bytes(range(256)) * (5 << 12)  # 5 MiB, the least that S3 takes
DIGEST = crc64nvme(PART)
LAST = USUAL_FROM + 1
PATIENCE_SECONDS = 6000.0  # longer than this test may take
A_BYTE_SECONDS = 0.0003  # the head of an answer is there before its body counts as slow
STALLS = pytest.mark.parametrize("trouble", [Trouble.STALL, Trouble.TRICKLE])


@contextmanager
def one_bad_connection(
    seaweed_s3: S3Endpoint, trouble: Trouble, operation: str, trickle_seconds: float = 1.0
) -> Iterator[ObjectStore]:
    """Lend a store whose last such call stalls; in the end it must have been broken off."""
    stalls = StallWatch()
    proxy = S3Proxy(seaweed_s3.url, trickle_seconds=trickle_seconds)
    with proxy, pytest.MonkeyPatch.context() as patch:
        patch.setattr("cachetier.remote.call_policy.SLOW_SECONDS", 0.5)
        proxy.troubles.add(Fault(trouble, operation, nth(LAST)))
        timeouts = Timeouts(5.0, PATIENCE_SECONDS, stalls)
        stragglers = Stragglers([stalls.cut])
        plain = seaweed_s3.behind(proxy.url).store(timeouts=timeouts)
        yield CallPolicy(plain, stragglers=stragglers)
        assert (stragglers.broken_off, proxy.troubles.fired) == (1, {trouble: 1})


@STALLS
def test_the_end_of_an_upload_does_not_wait_for_one_bad_connection(
    seaweed_s3: S3Endpoint, folder: str, trouble: Trouble
) -> None:
    key = folder + "object"
    with one_bad_connection(seaweed_s3, trouble, "UploadPart") as store:
        upload, parts = store.create_upload(key), list[UploadedPart]()
        for number in range(1, LAST + 1):
            parts.append(store.upload_part(key, upload, number, PART, digest=DIGEST))
        store.complete_upload(key, upload, parts, digest=crc64nvme(PART * LAST))
    assert seaweed_s3.store().get(key) == PART * LAST


@STALLS
def test_the_end_of_a_restore_does_not_wait_for_one_bad_connection(
    seaweed_s3: S3Endpoint, folder: str, trouble: Trouble
) -> None:
    key = folder + "object"
    seaweed_s3.store().put(key, PART, digest=DIGEST)
    with one_bad_connection(seaweed_s3, trouble, "GetObject", A_BYTE_SECONDS) as store:
        for _ in range(LAST):
            into = bytearray(len(PART))
            store.read_into(key, 0, memoryview(into))
            assert into == PART
