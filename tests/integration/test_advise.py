"""``cachetier plan interval`` against a real service."""

from __future__ import annotations

import json
import tempfile
import uuid
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest
from cachetier_client import Client
from click.testing import CliRunner

from cachetier.cli.app import app
from cachetier.testing.s3_endpoint import S3Endpoint
from tests.integration.serving import Served, node_settings, running, serving
from tests.integration.test_cli import STEP, run


@pytest.fixture
def served() -> Iterator[Served]:
    with serving() as served:
        yield served


def test_advise_says_how_often_to_save_and_what_decides(served: Served) -> None:
    nothing = run(served, "plan", "interval", "r", "--json")
    assert (nothing.code, nothing.json["error"]["code"]) == (1, "not_found")
    assert "This node knows no run r" in nothing.err

    run(served, "put", "-", *STEP, "--name", "x", stdin=b"x")
    unsealed = run(served, "plan", "interval", "r")
    assert unsealed.code == 2
    assert "Pass --blocked" in unsealed.err

    run(served, "put", "-", *STEP, "--name", "x", "--seal", stdin=b"x")
    undrained = run(served, "plan", "interval", "r")
    assert undrained.code == 2
    assert "Pass --durable" in undrained.err

    given = ["--durable", "30s", "--mtbf", "12h", "--blocked", "9s"]
    advice = run(served, "plan", "interval", "r", *given, "--step-time", "2s", "--json").json
    assert advice["bound"] == "young-daly"
    assert advice["interval_steps"] == 438
    assert advice["blocked"] == {"seconds": 9.0, "origin": "given", "about": ""}

    lines = run(served, "plan", "interval", "r", *given).out.splitlines()
    assert lines[0].startswith("r: a save every 15 min: more saves would cost more")
    assert lines[1].startswith("it blocks 1.02% of training; a failure costs 7.5 min on average")
    assert "  a failure every 12 h (given)" in lines

    assert run(served, "plan", "interval", "r", "--mtbf", "soon").code == 2
    assert run(served, "plan", "interval", "r", *given, "--overhead-cap", "3.5").code == 2


def test_what_a_real_node_saves_and_drains_is_measured(
    moto_s3: S3Endpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = f"cadence-{uuid.uuid4().hex[:12]}"
    moto_s3.create_bucket(bucket)
    settings = node_settings(tmp_path, moto_s3, f"s3://{bucket}/p", monkeypatch)
    with tempfile.TemporaryDirectory(prefix="ct-") as short:
        settings["socket"] = Path(short) / "s"
        with running(settings) as service, Client(f"unix://{service.socket}") as client:
            for step in (10, 20, 30):
                with client.checkpoint("r", step) as checkpoint:
                    client.put_shard(b"x", run="r", step=step, name="x", save_id=checkpoint.save_id)
                client.wait("r", step, timeout_seconds=60)
            advice = client.cadence("r", nodes=1)
            words = [
                "plan",
                "costs",
                "--from-run",
                "r",
                "--url",
                f"unix://{service.socket}",
                "--json",
            ]
            estimate = json.loads(CliRunner().invoke(app, words).stdout)

    assert advice.blocked.about == "by this client, median of 3 saves"
    assert advice.durable.about == "from start to publication, median of 3 steps"
    assert advice.durable.seconds >= advice.blocked.seconds > 0
    assert advice.step is not None
    assert advice.step.about == "from the starts of 3 saves"
    assert advice.mtbf.about.startswith("1 node at")
    assert estimate["size_bytes"] == 1
    assert estimate["cadence"]["durable"] == asdict(advice.durable)
