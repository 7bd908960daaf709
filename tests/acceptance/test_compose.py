"""The compose file, for real: image, service, SeaweedFS, Prometheus and Grafana in containers."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any

import boto3
import pytest

from tests.acceptance.stack import PROJECT, Stack, eventually

pytestmark = [
    pytest.mark.acceptance,
    pytest.mark.xdist_group("docker"),
    pytest.mark.timeout(900),
]

BODY = bytes(range(256)) * 4096
SHARD = "/v1/runs/compose/steps/{step}/shards/weights.bin"
SERVICES = ("cachetier", "seaweedfs", "prometheus", "grafana")


def test_every_service_becomes_healthy_and_none_has_privileges(stack: Stack) -> None:
    users = {"cachetier": "10001", "seaweedfs": "1000", "prometheus": "65534", "grafana": "472"}

    for name in SERVICES:
        running = stack.container(name)
        host = running["HostConfig"]
        assert running["State"]["Health"]["Status"] == "healthy", name
        assert running["Config"]["User"].partition(":")[0] == users[name]
        assert host["CapDrop"] == ["ALL"]
        assert host["ReadonlyRootfs"] or name == "prometheus"
        assert (host["CpuShares"], host["Memory"] > 0) == (256, True)
        published = [
            port for of in running["NetworkSettings"]["Ports"].values() for port in of or ()
        ]
        assert {port["HostIp"] for port in published} == {"127.0.0.1"}


def test_the_image_says_what_it_is_and_carries_no_installer(stack: Stack) -> None:
    labels = stack.container("cachetier")["Config"]["Labels"]

    assert labels["org.opencontainers.image.title"] == "cachetier"
    version = labels["org.opencontainers.image.version"]
    assert stack.compose("exec", "-T", "cachetier", "cachetier", "--version").split() == [
        "cachetier",
        version,
    ]
    with pytest.raises(AssertionError, match="No module named pip"):
        stack.compose("exec", "-T", "cachetier", "python", "-m", "pip")


def test_a_shard_put_over_http_becomes_durable_in_the_s3_server(stack: Stack) -> None:
    path = SHARD.format(step=1)
    receipt = json.loads(stack.call("PUT", path, BODY))
    reached = json.loads(
        stack.call("GET", "/v1/runs/compose/steps/1/wait?level=durable&name=weights.bin")
    )

    remote = boto3.client(
        "s3",
        endpoint_url=stack.address("SEAWEEDFS_S3_PORT"),
        aws_access_key_id=stack.settings["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=stack.settings["AWS_SECRET_ACCESS_KEY"],
    )
    stored = remote.get_object(Bucket="checkpoints", Key="demo/compose/1/weights.bin")
    assert receipt["size_bytes"] == len(BODY)
    assert reached["level"] == "durable"
    assert stored["Body"].read() == BODY


def test_callers_without_the_token_are_refused_but_probes_are_not(stack: Stack) -> None:
    for path in (SHARD.format(step=1), "/metrics", "/v1/status"):
        with pytest.raises(urllib.error.HTTPError) as refusal:
            stack.call("GET", path, token="wrong")
        assert refusal.value.code in {401, 403}
        refusal.value.close()

    assert stack.call("GET", "/livez", token="wrong")
    assert stack.call("GET", "/readyz", token="wrong")


def test_prometheus_scrapes_with_the_token_and_has_the_rules(stack: Stack) -> None:
    def scraped() -> Any:
        return stack.prometheus("/api/v1/query?query=cachetier_dirty_bytes")["result"]

    assert eventually(scraped)
    groups = stack.prometheus("/api/v1/rules")["groups"]
    assert {rule["health"] for group in groups for rule in group["rules"]} <= {"ok", "unknown"}
    assert sum(len(group["rules"]) for group in groups) >= 3


def test_grafana_is_provisioned_with_a_prometheus_that_it_can_reach(stack: Stack) -> None:
    """Its stand-in is healthy only with the files in place; the address is tried from inside."""
    address = "http://prometheus:9090/api/v1/query?query=up"
    program = (
        f"import urllib.request as u; print(u.urlopen({address!r}, timeout=10).read().decode())"
    )

    def up() -> Any:
        asked = stack.compose("exec", "-T", "grafana", "python3", "-c", program)
        return [entry for entry in json.loads(asked)["data"]["result"] if entry["value"][1] == "1"]

    source = "/etc/grafana/provisioning/datasources/prometheus.yml"
    assert "url: http://prometheus:9090" in stack.compose("exec", "-T", "grafana", "cat", source)
    assert eventually(up)
    with urllib.request.urlopen(
        f"{stack.address('GRAFANA_PORT')}/api/health", timeout=10
    ) as health:
        assert health.status == 200


def test_the_demo_saves_and_restores_a_checkpoint_through_the_socket(stack: Stack) -> None:
    printed = stack.compose("run", "--rm", "-T", "demo")

    lines = printed.splitlines()
    assert len(lines) == 10
    assert [line.split()[0] for line in lines] == [
        *("node", "run", "put", "level", "seal"),
        *("durable", "object", "latest", "restore", "compared"),
    ]
    run = lines[1].split()[1].rstrip(":")
    steps = json.loads(stack.call("GET", f"/v1/runs/{run}/steps"))["steps"]
    assert [(step["step"], step["state"]) for step in steps] == [(1, "published")]


def test_a_rank_in_another_container_needs_the_socket_and_no_network(stack: Stack) -> None:
    program = (
        "from cachetier_client import get_shard, put_shard\n"
        f"body = bytes(range(256)) * {1 << 15}\n"
        "receipt = put_shard(body, run='compose', step=4, name='w', rank=0, world_size=1)\n"
        "assert bytes(get_shard('compose', 4, 'w')) == body\n"
        "print(receipt.level, receipt.size_bytes)\n"
    )

    printed = stack.docker.run(
        *("run", "--rm", "--network", "none", "--read-only", "--user", "10001:10001"),
        *("--volume", f"{PROJECT}_cachetier-run:/run/cachetier"),
        *("--entrypoint", "python", stack.settings["CACHETIER_IMAGE"], "-c", program),
    )

    assert printed.split() == ["local", str(8 << 20)]


def test_any_verb_runs_in_the_container_and_doctor_finds_nothing_wrong_there(stack: Stack) -> None:
    status = json.loads(stack.compose("exec", "-T", "cachetier", "cachetier", "status", "--json"))
    assert (status["state"], status["pid"]) == ("ready", 1)

    found = json.loads(stack.compose("exec", "-T", "cachetier", "cachetier", "doctor", "--json"))

    wrong = [finding for finding in found["findings"] if finding["state"] == "fail"]
    assert len(found["findings"]) > 10
    assert wrong == []


def test_a_killed_service_serves_what_it_acknowledged(stack: Stack) -> None:
    path = SHARD.format(step=2)
    stack.call("PUT", path, BODY)
    stack.compose("kill", "--signal", "KILL", "cachetier")
    assert stack.container("cachetier")["State"]["ExitCode"] == 137

    stack.up("cachetier")

    assert stack.call("GET", path) == BODY


def test_a_stopped_service_ends_in_good_order_within_its_grace(stack: Stack) -> None:
    stack.call("PUT", SHARD.format(step=3), BODY)
    stack.compose("stop", "cachetier")
    stopped = stack.container("cachetier")["State"]

    stack.up("cachetier")

    assert stopped["ExitCode"] == 0
    assert stack.call("GET", SHARD.format(step=3)) == BODY
