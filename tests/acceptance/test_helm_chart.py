"""The Helm chart: what real Helm made of it is kept beside this file, and is the plain manifests.

`make helm` renders, lints and validates; here its output is held against the manifests, the
service's own settings, and a chart that has changed since. `make helm ARGS=--check` asks again.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from cachetier.config import settings as config
from tools.helm.chart import digest

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
CASES = Path(__file__).parent / "helm"
NAMES = sorted(path.name.partition(".")[0] for path in CASES.glob("*.values.yml"))
# What Helm knows its own objects by, and what makes pods follow their settings.
OF_HELM = {
    "app.kubernetes.io/instance",
    "app.kubernetes.io/version",
    "app.kubernetes.io/managed-by",
    "helm.sh/chart",
    "checksum/config",
}

Objects = dict[tuple[str, str], dict[str, Any]]


def objects(*paths: Path) -> Objects:
    """Return the objects of manifests by kind and name, less what only Helm adds to them."""
    found = [each for path in paths for each in yaml.safe_load_all(path.read_text("utf-8"))]
    for each in found:
        _without_marks(each["metadata"])
        if "template" in each.get("spec", {}):
            _without_marks(each["spec"]["template"]["metadata"])
    return {(each["kind"], _name(each["metadata"])): each for each in found}


def _name(metadata: dict[str, Any]) -> str:
    return str(metadata.get("name") or metadata["generateName"])


def _without_marks(metadata: dict[str, Any]) -> None:
    for part in ("labels", "annotations"):
        kept = {key: value for key, value in metadata.pop(part, {}).items() if key not in OF_HELM}
        # The plain manifests label an object where somebody selects it.
        if kept and kept != {"app.kubernetes.io/name": "cachetier"}:
            metadata[part] = kept


def rendered(name: str) -> Objects:
    return objects(CASES / f"{name}.rendered.yml")


@pytest.mark.parametrize("name", NAMES)
def test_what_is_kept_is_what_helm_made_of_this_chart(name: str) -> None:
    head = (CASES / f"{name}.rendered.yml").read_text("utf-8").partition("\n")[0]

    assert re.search(r"Helm v\d+\.\d+\.\d+ .* digest [0-9a-f]{64}", head)
    assert digest() in head, "the chart has changed: run `make helm`"


def test_the_chart_as_it_stands_is_the_plain_manifest() -> None:
    assert rendered("default") == objects(DEPLOY / "kubernetes.yml")


def test_with_monitoring_and_a_pod_that_trains_it_is_all_of_the_plain_manifests() -> None:
    assert rendered("watched") == objects(*DEPLOY.glob("kubernetes*.yml"))


@pytest.mark.parametrize("name", NAMES)
def test_the_service_accepts_what_the_chart_makes_of_its_values(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = rendered(name)
    (data,) = (each["data"] for (kind, _), each in made.items() if kind == "ConfigMap")
    for variable, value in data.items():
        monkeypatch.setenv(variable, value)
    monkeypatch.setenv("CACHETIER_SCRAPE_TOKEN", "t" * 40)
    pod = pod_of(made)
    for each in pod["containers"][0]["env"]:
        if "value" in each:
            monkeypatch.setenv(each["name"], each["value"].replace("$(ZONE)", "zone-1"))

    settings = config.load()

    stops = sum(pre_stop_seconds(pod)) + settings.notice + settings.grace + 10
    assert stops <= pod["terminationGracePeriodSeconds"] < stops + 60
    listen = {"tenants": "0.0.0.0:7072", "volumes": "http://0.0.0.0:7072"}
    if name in listen:
        assert settings.peers.listen == listen[name]
        assert settings.peers.domain == {"tenants": "room-3", "volumes": "zone-1"}[name]


@pytest.mark.parametrize("name", ["tenants", "volumes"])
def test_peers_find_each_other_by_a_service_and_only_they_get_to_its_port(name: str) -> None:
    made = rendered(name)
    pod, (policy,) = pod_of(made), [each for (kind, _), each in made.items() if "Policy" in kind]
    (container,) = pod["containers"]
    variables = {each["name"]: each for each in container["env"]}
    table = json.loads(variables["CACHETIER_PEERS"]["value"])
    host, _, port = table["nodes"][0].partition(":")
    service = made["Service", host]["spec"]

    assert (service["clusterIP"], service["publishNotReadyAddresses"]) == ("None", True)
    assert service["selector"] == policy["spec"]["podSelector"]["matchLabels"]
    assert {"name": "peers", "containerPort": int(port)} in container["ports"]
    assert list(variables).index("ZONE") < list(variables).index("CACHETIER_PEERS")
    rule = {"ports": [{"protocol": "TCP", "port": "peers"}]}
    them = [{"podSelector": {"matchLabels": service["selector"]}}]
    assert rule | {"from": them} in policy["spec"]["ingress"]
    assert rule | {"to": them} in policy["spec"]["egress"]
    trust = Path(table["trust"])
    (mount,) = (
        each for each in container["volumeMounts"] if each["mountPath"] == str(trust.parent)
    )
    (volume,) = (each["secret"] for each in pod["volumes"] if each["name"] == mount["name"])
    assert (mount["readOnly"], volume["defaultMode"]) == (True, 0o440)
    assert pod["securityContext"]["fsGroup"] == pod["securityContext"]["runAsGroup"]
    items = {"tenants": None, "volumes": [{"key": "peers-token", "path": trust.name}]}
    assert volume.get("items") == items[name]


def pod_of(made: Objects) -> dict[str, Any]:
    (pod,) = (
        each["spec"]["template"]["spec"]
        for (kind, _), each in made.items()
        if kind in ("DaemonSet", "StatefulSet")
    )
    return dict(pod)


def pre_stop_seconds(pod: dict[str, Any]) -> list[int]:
    (container,) = pod["containers"]
    steps = container.get("lifecycle", {}).values()
    return [int(step["exec"]["command"][-1].removesuffix("s")) for step in steps]


def test_tenants_are_principals_each_with_a_door_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = rendered("tenants")
    for variable, value in made["ConfigMap", "cachetier-h100"]["data"].items():
        monkeypatch.setenv(variable, value)
    training = made["Pod", "train"]["spec"]

    first, second = config.load().principal

    assert (first.name, first.uid, first.bytes) == ("team-a", frozenset({2001}), "800 GB")
    assert second.socket is not None
    (mount, _) = training["containers"][0]["volumeMounts"]
    (volume, _) = training["volumes"]
    directory = str(second.socket.parent)
    assert mount == {"name": "cachetier", "mountPath": directory, "readOnly": True}
    assert volume["hostPath"] == {"path": directory, "type": "Directory"}


def test_a_local_volume_outlives_its_pod_and_ties_it_to_its_node() -> None:
    made = rendered("volumes")
    stateful = made["StatefulSet", "cachetier"]["spec"]

    assert stateful["persistentVolumeClaimRetentionPolicy"] == {
        "whenDeleted": "Retain",
        "whenScaled": "Retain",
    }
    pod = stateful["template"]["spec"]
    assert "podAntiAffinity" in pod["affinity"]
    assert [each["name"] for each in pod["volumes"]] == ["socket", "tmp", "peers"]
    assert [each["metadata"]["name"] for each in stateful["volumeClaimTemplates"]] == ["cache"]


def test_a_drain_that_evicts_such_a_pod_does_not_get_it_back_on_the_cordoned_node() -> None:
    made = rendered("volumes")
    stateful, pod = made["StatefulSet", "cachetier"]["spec"], pod_of(made)
    labels = stateful["selector"]["matchLabels"]

    tolerated = [each for each in pod["tolerations"] if "key" not in each]
    assert tolerated == [{"operator": "Exists", "effect": "NoExecute"}]
    service = made["Service", stateful["serviceName"]]["spec"]
    assert (service["clusterIP"], service["selector"]) == ("None", labels)
    budget = made["PodDisruptionBudget", "cachetier"]["spec"]
    assert (budget["maxUnavailable"], budget["selector"]) == ("10%", {"matchLabels": labels})
    assert stateful["updateStrategy"]["rollingUpdate"] == {"maxUnavailable": "10%"}


def test_directories_are_made_by_the_patch_as_by_the_chart() -> None:
    patch = yaml.safe_load((DEPLOY / "host-directories.patch.yml").read_text("utf-8"))
    patched = patch["spec"]["template"]["spec"]
    pod = pod_of(rendered("tenants"))
    (by_chart,), (by_patch,) = pod["initContainers"], patched["initContainers"]

    for_a_tenant = "install -d -m 0755 -o 10001 -g 10001 /run/cachetier/team-b\n"
    *shell, script = by_chart.pop("command")
    assert [*shell, script.replace(for_a_tenant, "")] == by_patch.pop("command")
    assert by_chart | {"image": "cachetier:0.1.0"} == by_patch
    made = {each["name"]: each for each in pod["volumes"]}
    assert [made[each["name"]] for each in patched["volumes"]] == patched["volumes"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives directories away")
def test_the_init_container_makes_both_directories_and_repeats_itself(tmp_path: Path) -> None:
    (container,) = pod_of(rendered("tenants"))["initContainers"]
    *shell, script = container["command"]
    script = script.replace("/var/cache", f"{tmp_path}/cache").replace("/run", f"{tmp_path}/run")

    for _ in range(2):
        subprocess.run((*shell, script), check=True, timeout=50)

    made = {each.name: each.stat() for each in tmp_path.rglob("*") if each.name != tmp_path.name}
    found = {name: (each.st_uid, each.st_mode & 0o777) for name, each in made.items()}
    assert found["team-b"] == found["cachetier"] == (10001, 0o755)
    cache = (tmp_path / "cache" / "cachetier").stat()
    assert (cache.st_uid, cache.st_mode & 0o777) == (10001, 0o700)


def test_the_series_that_the_operator_scrapes_are_those_that_the_alerts_ask_for() -> None:
    made = objects(DEPLOY / "kubernetes-monitoring.yml")
    (endpoint,) = made["PodMonitor", "cachetier"]["spec"]["podMetricsEndpoints"]
    rules = json.dumps(made["PrometheusRule", "cachetier"]["spec"])

    (job,) = (each for each in endpoint["relabelings"] if each["targetLabel"] == "job")
    asked = set(re.findall(r'job=\\"(\w+)\\"', rules))
    assert asked == {job["replacement"]} == {"cachetier"}
