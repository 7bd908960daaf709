"""Every metric is driven by what it says it counts, and status shows the same figures."""

from __future__ import annotations

import pytest

from cachetier.telemetry.metric_table import SERIES
from cachetier.testing.s3_endpoint import S3Endpoint
from tests.integration.driving import SCENARIOS, Scenario


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda each: each.happens.__name__)
def test_metrics_are_driven_by(
    scenario: Scenario, moto_s3: S3Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in moto_s3.environment().items():
        monkeypatch.setenv(name, value)

    seen = scenario.played(moto_s3)

    assert {name for name in scenario.drives if not seen.largest.get(name)} == set()


def test_every_metric_is_driven_by_some_scenario() -> None:
    assert set().union(*(each.drives for each in SCENARIOS)) == SERIES.keys()
