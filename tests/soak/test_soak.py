"""The shortest soak: one round, so that it works when somebody wants a long one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.needs import needs_weed
from tests.soak.__main__ import run


@needs_weed
@pytest.mark.soak
@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_short_round_of_load_and_faults_breaks_no_promise(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    verdict, soak = run(tmp_path, minutes=0.75, seed=1, only=0)

    assert verdict == "held", capsys.readouterr().out
    assert soak.tally.acked_bytes > 0
    assert sum(soak.tally.faults.values()) > 0
