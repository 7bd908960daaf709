"""What `docker compose up` says, and goes on doing, when something of it is wrong or missing."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.acceptance.stack import Stack, eventually

pytestmark = [
    pytest.mark.acceptance,
    pytest.mark.xdist_group("docker"),
    pytest.mark.timeout(900),
]

BODY = b"weights" * 1000
SHARD = "/v1/runs/trouble/steps/{step}/shards/weights.bin"


def refusal_of(stack: Stack, *options: str) -> str:
    """Run the service once, its cache directory being new; return the one line it ends with."""
    service = ("--no-deps", "--env", "CACHETIER_CACHE_DIR=/tmp/new", *options, "cachetier")
    with pytest.raises(AssertionError) as ended:
        stack.compose("run", "--rm", "-T", *service)
    lines = [line for line in str(ended.value).splitlines() if "service.not_started" in line]
    assert "Traceback" not in str(ended.value)
    (line,) = lines
    assert line.endswith("code=config")
    return line


def test_a_missing_token_is_a_line_that_says_what_to_do(stack: Stack) -> None:
    without = Stack(
        stack.docker, {**stack.settings, "CACHETIER_SCRAPE_TOKEN": ""}, "acceptance-token"
    )

    with pytest.raises(AssertionError) as refused:
        without.compose("up", "--detach")

    (line,) = [line for line in str(refused.value).splitlines() if "CACHETIER_SCRAPE_TOKEN" in line]
    assert line.endswith("is missing a value: copy deploy/env.example to .env and fill it in")


def test_a_wrong_bucket_ends_up_and_the_log_has_one_line_for_each_try(stack: Stack) -> None:
    wrong = stack.beside("acceptance-bucket", CACHETIER_REMOTE="s3://nowhere/demo")
    try:
        with pytest.raises(
            AssertionError, match=r"container acceptance-bucket-cachetier-1 (is|ex)"
        ):
            wrong.up()
        lines = wrong.compose("logs", "--no-color", "--no-log-prefix", "cachetier").splitlines()
    finally:
        wrong.down()

    said = {re.sub(r"^\S+ \S+ ", "", line) for line in lines if line}  # without the time
    expected = (
        "critical service.not_started cannot start: s3://nowhere/demo at http://seaweedfs:8333: "
        "there is no bucket nowhere (NoSuchBucket) "
        "hint=Create it, or correct `remote`, its `url` and `endpoint`. code=config"
    )
    assert said == {expected}


def test_a_wrong_secret_is_one_line(stack: Stack) -> None:
    line = refusal_of(stack, "--env", "AWS_SECRET_ACCESS_KEY=not-the-secret")

    assert "the secret key does not belong to the access key (SignatureDoesNotMatch)" in line


@pytest.mark.parametrize("content", [None, "no certificate"])
def test_an_unreadable_certificate_is_one_line(
    stack: Stack, tmp_path: Path, content: str | None
) -> None:
    mounted = tmp_path / "ca.pem"
    if content is None:
        mounted.mkdir()  # what docker makes of a file that is not there
    else:
        mounted.write_text(content)

    line = refusal_of(
        stack,
        *("--volume", f"{mounted}:/etc/cachetier/ca.pem:ro"),
        *("--env", "AWS_CA_BUNDLE=/etc/cachetier/ca.pem"),
        *("--env", "CACHETIER_REMOTE_ENDPOINT=https://seaweedfs:8333"),
    )

    assert "cannot read certificates from /etc/cachetier/ca.pem" in line
    assert "hint=Correct AWS_CA_BUNDLE" in line


def test_the_service_does_without_those_who_watch_it(stack: Stack) -> None:
    stack.compose("stop", "prometheus", "grafana")
    try:
        stack.call("PUT", SHARD.format(step=1), BODY)
        stack.up("cachetier")  # starts neither of them
        running = stack.compose("ps", "--services", "--status", "running").split()
    finally:
        stack.up()

    assert sorted(running) == ["cachetier", "seaweedfs"]
    assert stack.call("GET", SHARD.format(step=1)) == BODY


def test_a_bucket_that_goes_away_later_ends_nothing(stack: Stack) -> None:
    stack.compose("stop", "seaweedfs")
    try:
        stack.call("PUT", SHARD.format(step=2), BODY)
        stack.compose("restart", "--no-deps", "cachetier")
        eventually(lambda: stack.call("GET", "/readyz"))
        assert stack.call("GET", SHARD.format(step=2)) == BODY
    finally:
        stack.up()

    waited = "/v1/runs/trouble/steps/2/wait?level=durable&name=weights.bin"
    assert b'"durable"' in stack.call("GET", waited)


def test_nothing_else_of_this_machine_is_listening_for_the_network(stack: Stack) -> None:
    listening = subprocess.run(
        ("ss", "--tcp", "--listening", "--numeric", "--no-header"),
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    ports = {stack.settings[name] for name in stack.settings if name.endswith("_PORT")}
    ours = [
        line.split()[3]
        for line in listening.splitlines()
        if line.split()[3].split(":")[-1] in ports
    ]

    assert sorted(ours) == sorted(f"127.0.0.1:{port}" for port in ports)
