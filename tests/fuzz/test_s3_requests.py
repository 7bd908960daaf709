"""Requests of S3 that chance made up, signed by header or URL, end as a model says."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.faults.counting import count
from tests.faults.slices import SLICES, VARIABLE, everything
from tests.fuzz.s3_requests import campaign

REQUESTS, MANY = 250, 10_000


def test_presigned_parameters_and_conditions_are_never_ignored(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    number = MANY if everything() else REQUESTS
    seed = SLICES if everything() else int(os.environ[VARIABLE])

    statuses = campaign(tmp_path / "cache", seed, number)

    assert statuses.keys() >= {200, 204, 400, 404, 412, 501}
    count(request, "signed requests of S3", number, seed)


def test_a_door_that_ignores_a_condition_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cachetier.local.catalog.objects._check", lambda *_told: None)
    with pytest.raises(AssertionError, match="and not to"):
        campaign(tmp_path / "cache", 1, REQUESTS)


def test_a_door_that_ignores_parameters_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cachetier.doors.s3.app.with_parameters", lambda request: request)
    with pytest.raises(AssertionError, match="request"):
        campaign(tmp_path / "cache", 1, REQUESTS)
