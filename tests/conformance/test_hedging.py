"""A part that stalls on a real connection is sent again, and the stalled send is broken off."""

from __future__ import annotations

import pytest
from awscrt.checksums import crc64nvme
from cachetier_client.bucket_format.uploads import UploadedPart

from cachetier.remote.call_policy import USUAL_FROM, CallPolicy, Hedge
from cachetier.remote.stall_guard import StallWatch, Timeouts
from cachetier.testing.s3_endpoint import S3Endpoint
from cachetier.testing.s3proxy import S3Proxy
from cachetier.testing.troubles import Fault, Trouble, nth

PART = bytes(range(256)) * (5 << 12)  # 5 MiB, the least that S3 takes
DIGEST = crc64nvme(PART)
PATIENCE_SECONDS = 6000.0  # longer than this test may take


@pytest.mark.parametrize("trouble", [Trouble.STALL, Trouble.TRICKLE])
def test_the_end_of_an_upload_does_not_wait_for_one_bad_connection(
    seaweed_s3: S3Endpoint, folder: str, monkeypatch: pytest.MonkeyPatch, trouble: Trouble
) -> None:
    monkeypatch.setattr("cachetier.remote.call_policy.HEDGE_AFTER_SECONDS", 0.5)
    last = USUAL_FROM + 1
    stalls, key = StallWatch(), folder + "object"
    with S3Proxy(seaweed_s3.url) as proxy:
        proxy.troubles.add(Fault(trouble, "UploadPart", nth(last)))
        timeouts = Timeouts(5.0, PATIENCE_SECONDS, stalls)
        plain = seaweed_s3.behind(proxy.url).store(timeouts=timeouts)
        hedge = Hedge(stalls.cut)
        store = CallPolicy(plain, hedge=hedge)
        upload, parts = store.create_upload(key), list[UploadedPart]()
        for number in range(1, last + 1):
            parts.append(store.upload_part(key, upload, number, PART, digest=DIGEST))
        plain.complete_upload(key, upload, parts, digest=crc64nvme(PART * last))

    assert (hedge.hedged, proxy.troubles.fired) == (1, {trouble: 1})
    assert seaweed_s3.store().get(key) == PART * last
