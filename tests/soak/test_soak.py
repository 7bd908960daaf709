"""The shortest soaks: one round of each, so that they work when somebody wants a long one."""

from __future__ import annotations

from pathlib import Path

import pytest

from cachetier.testing.s3proxy import S3Proxy
from cachetier.testing.seaweed import seaweedfs
from tests.integration.needs import needs_weed
from tests.soak.__main__ import run
from tests.soak.moving import MovingSoak


@needs_weed
@pytest.mark.soak
@pytest.mark.slow
def test_a_short_round_of_load_and_faults_breaks_no_promise(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    verdict, soak = run(tmp_path, minutes=0.75, seed=1, only=0)

    assert verdict == "held", capsys.readouterr().out
    assert soak.tally.acked_bytes > 0
    assert sum(soak.tally.faults.values()) > 0


@needs_weed
@pytest.mark.soak
@pytest.mark.slow
def test_jobs_that_move_between_services_that_die_are_told_and_never_restore_a_mix(
    tmp_path: Path,
) -> None:
    with seaweedfs(tmp_path / "seaweed") as endpoint, S3Proxy(endpoint.url) as s3:
        soak = MovingSoak(tmp_path, endpoint, s3, seed=1, nodes=5)
        try:
            soak.fleet.start()
            failures = soak.round(0, seconds=30.0)
        finally:
            soak.close()

    assert failures == []
    assert soak.met["moves"] > 0
    assert soak.met["services killed"] > 0
    assert soak.met["steps read whole"] > 0
