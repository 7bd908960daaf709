"""The systemd unit and the Kubernetes manifest: what they say fits what the service does."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from cachetier.access.audit import Audit
from cachetier.access.principals import Caller, Principal
from cachetier.access.roles import Role
from cachetier.config import settings as config

DEPLOY = Path(__file__).parents[2] / "deploy"
CREDENTIALS = {"CACHETIER_SCRAPE_TOKEN": "t" * 40}


def settings_of(monkeypatch: pytest.MonkeyPatch, given: Mapping[str, str]) -> config.Settings:
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    return config.load()


def needed_seconds(settings: config.Settings) -> float:
    """Return how long a stop may take; docs/operations.md."""
    return settings.notice + settings.grace + 10


# --- Kubernetes ----------------------------------------------------------------------------------

MANIFEST = list(yaml.safe_load_all((DEPLOY / "kubernetes.yml").read_text(encoding="utf-8")))
CONFIG, DAEMON_SET, POLICY = MANIFEST
POD: dict[str, Any] = DAEMON_SET["spec"]["template"]["spec"]
(CONTAINER,) = POD["containers"]


def test_the_service_accepts_the_settings_of_the_config_map(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = settings_of(monkeypatch, CONFIG["data"] | CREDENTIALS)
    given = [entry["name"] for entry in CONTAINER["env"]]

    assert CONTAINER["envFrom"] == [{"configMapRef": {"name": CONFIG["metadata"]["name"]}}]
    assert given == ["CACHETIER_SCRAPE_TOKEN", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"]
    assert settings.http_address == ("0.0.0.0", CONTAINER["ports"][0]["containerPort"])
    assert settings.health_address == ("0.0.0.0", CONTAINER["ports"][1]["containerPort"])


def test_an_upgrade_flushes_nothing_and_the_kubelet_waits_for_what_is_in_flight(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = settings_of(monkeypatch, CONFIG["data"] | CREDENTIALS)

    assert settings.notice == 0.0
    assert POD["terminationGracePeriodSeconds"] >= needed_seconds(settings)
    assert "lifecycle" not in CONTAINER
    assert DAEMON_SET["spec"]["updateStrategy"]["rollingUpdate"] == {"maxUnavailable": "10%"}
    assert DAEMON_SET["spec"]["minReadySeconds"] > 0


def test_a_node_is_left_by_a_job_as_the_user_of_the_service_on_that_very_node() -> None:
    job = yaml.safe_load((DEPLOY / "kubernetes-leave.yml").read_text(encoding="utf-8"))
    pod = job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    (volume,) = pod["volumes"]

    assert pod["nodeName"] == "NODE"
    assert pod["tolerations"] == [{"operator": "Exists"}]
    assert pod["securityContext"] == POD["securityContext"]
    assert container["image"] == CONTAINER["image"]
    assert container["securityContext"] == CONTAINER["securityContext"]
    verb, *options = container["command"][1:]
    assert (verb, options) == ("leave", ["--timeout", "240s"])
    assert container["env"][0]["value"] == f"unix://{CONFIG['data']['CACHETIER_SOCKET']}"
    assert volume["hostPath"]["path"] == CONFIG["data"]["CACHETIER_SOCKET"].rpartition("/")[0]
    selected = POLICY["spec"]["podSelector"]["matchLabels"]
    assert job["spec"]["template"]["metadata"]["labels"] != selected


def test_a_long_recovery_is_no_failed_start() -> None:
    probe = CONTAINER["startupProbe"]

    assert probe["periodSeconds"] * probe["failureThreshold"] >= 1800


def test_the_cache_and_the_socket_are_the_nodes_own_directories() -> None:
    paths = {each["name"]: each["mountPath"] for each in CONTAINER["volumeMounts"]}
    volumes = {each["name"]: each for each in POD["volumes"]}

    assert paths["cache"] == CONFIG["data"]["CACHETIER_CACHE_DIR"]
    assert CONFIG["data"]["CACHETIER_SOCKET"].startswith(paths["socket"])
    for name in ("cache", "socket"):
        assert volumes[name]["hostPath"]["type"] == "Directory"
    prepared = (DEPLOY / "tmpfiles.conf").read_text(encoding="utf-8")
    for name, mode in (("cache", "0700"), ("socket", "0755")):
        path = volumes[name]["hostPath"]["path"]
        assert re.search(rf"^d {path} +{mode} 10001 10001 -$", prepared, re.MULTILINE)


def test_the_pod_is_nobody_special_and_asks_for_little() -> None:
    pod, container = POD["securityContext"], CONTAINER["securityContext"]

    assert (pod["runAsNonRoot"], pod["runAsUser"]) == (True, 10001)
    assert pod["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["readOnlyRootFilesystem"]
    assert not container["allowPrivilegeEscalation"]
    assert container["capabilities"] == {"drop": ["ALL"]}
    assert not POD["automountServiceAccountToken"]
    assert not {"hostNetwork", "hostPID", "hostIPC"} & set(POD)
    assert "privileged" not in container
    assert "cpu" not in CONTAINER["resources"]["limits"]


def test_the_probes_ask_what_needs_no_token() -> None:
    asked = {
        kind: CONTAINER[kind]["httpGet"]
        for kind in ("startupProbe", "readinessProbe", "livenessProbe")
    }

    assert {kind: probe["path"] for kind, probe in asked.items()} == {
        "startupProbe": "/livez",
        "readinessProbe": "/readyz",
        "livenessProbe": "/livez",  # a fenced or leaving service serves on, and is not killed
    }
    assert {probe["port"] for probe in asked.values()} == {CONTAINER["ports"][1]["name"]}


def test_only_prometheus_gets_in_and_only_names_and_https_get_out() -> None:
    spec = POLICY["spec"]
    ((ingress,), egress) = spec["ingress"], spec["egress"]
    (who,) = ingress["from"]

    labels = DAEMON_SET["spec"]["template"]["metadata"]["labels"]
    assert spec["podSelector"]["matchLabels"] == labels
    assert spec["policyTypes"] == ["Ingress", "Egress"]
    assert who["podSelector"]["matchLabels"] == {"app.kubernetes.io/name": "prometheus"}
    assert who["namespaceSelector"]["matchLabels"]  # anybody may label a pod of their own so
    assert ingress["ports"] == [{"protocol": "TCP", "port": CONTAINER["ports"][0]["name"]}]
    opened = {(each["protocol"], each["port"]) for rule in egress for each in rule["ports"]}
    assert opened == {("UDP", 53), ("TCP", 53), ("TCP", 443)}
    assert {"ipBlock": {"cidr": "169.254.20.10/32"}} in egress[0]["to"]  # NodeLocal DNSCache


def test_a_training_pod_has_the_socket_and_nothing_else_of_the_node() -> None:
    document = yaml.safe_load((DEPLOY / "kubernetes-training.yml").read_text(encoding="utf-8"))
    pod = document["spec"]
    (container,) = pod["containers"]
    of_node = [each for each in pod["volumes"] if "emptyDir" not in each]
    environment = {each["name"]: each["value"] for each in container["env"]}

    directory = CONFIG["data"]["CACHETIER_SOCKET"].rpartition("/")[0]
    (volume,) = of_node
    assert volume["hostPath"] == {"path": directory, "type": "Directory"}
    mount = {"name": volume["name"], "mountPath": directory, "readOnly": True}
    assert mount in container["volumeMounts"]
    (restoring,) = pod["initContainers"]
    assert restoring["securityContext"] == container["securityContext"]
    assert restoring["volumeMounts"] == container["volumeMounts"]
    assert environment["CACHETIER_URL"] == f"unix://{CONFIG['data']['CACHETIER_SOCKET']}"
    assert environment["CACHETIER_SERVICE_UID"] == str(POD["securityContext"]["runAsUser"])
    assert str(pod["securityContext"]["runAsUser"]) == CONFIG["data"]["CACHETIER_ALLOWED_UIDS"]
    assert pod["securityContext"]["runAsNonRoot"]
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert not pod["automountServiceAccountToken"]
    assert not container["securityContext"]["allowPrivilegeEscalation"]
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    flush = container["lifecycle"]["preStop"]["exec"]["command"]
    assert pod["terminationGracePeriodSeconds"] > int(flush[-1].removesuffix("s"))


# --- systemd -------------------------------------------------------------------------------------

UNIT = (DEPLOY / "systemd" / "cachetier.service").read_text(encoding="utf-8")


CACHE = (DEPLOY / "systemd" / "cache.conf").read_text(encoding="utf-8")
LEAVE = (DEPLOY / "systemd" / "cachetier-leave.service").read_text(encoding="utf-8")


def directives(section: str, unit: str = UNIT) -> dict[str, list[str]]:
    """Read one section; a directive may come more than once."""
    body = re.split(r"^\[(\w+)\]$", unit, flags=re.MULTILINE)
    text = dict(zip(body[1::2], body[2::2], strict=True))[section]
    found: dict[str, list[str]] = {}
    for name, value in re.findall(r"^(\w+)=(.*)$", text, re.MULTILINE):
        found.setdefault(name, []).append(value)
    return found


SERVICE, CACHE_SERVICE, LEAVE_SERVICE = (
    directives("Service", each) for each in (UNIT, CACHE, LEAVE)
)


def test_an_upgrade_by_systemd_flushes_nothing_and_takes_nobodys_directory_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given = SERVICE["Environment"] + CACHE_SERVICE["Environment"]
    environment = dict(pair.split("=", 1) for pair in given)
    settings = settings_of(monkeypatch, environment | {"CACHETIER_REMOTE": "s3://bucket/llama"})

    assert settings.notice == 0.0
    assert int(SERVICE["TimeoutStopSec"][0]) >= needed_seconds(settings)
    assert SERVICE["KillMode"] == ["mixed"]  # the service stops its drain
    assert settings.socket_path == Path("/run", SERVICE["RuntimeDirectory"][0], "cachetier.sock")
    assert SERVICE["RuntimeDirectoryPreserve"] == ["yes"]  # containers have it mounted


def test_a_machine_that_is_shut_down_leaves_before_the_service_is_stopped() -> None:
    (stop,), (timeout,) = LEAVE_SERVICE["ExecStop"], LEAVE_SERVICE["TimeoutStopSec"]
    of_unit = directives("Unit", LEAVE)

    assert "cachetier.service" in of_unit["After"][0].split()  # so it is stopped before that one
    assert not {"Requires", "BindsTo", "PartOf"} & of_unit.keys()  # a restart would stop it too
    assert int(timeout) > int(re.findall(r"leave --timeout (\d+)s", stop)[0])
    assert "cachetier whoami || exit 0;" in stop  # a service that is not there is not waited for
    assert LEAVE_SERVICE["User"] == SERVICE["User"]
    assert LEAVE_SERVICE["RemainAfterExit"] == ["yes"]
    assert LEAVE_SERVICE["Environment"][0].endswith(SERVICE["Environment"][0].partition("=")[2])


def test_the_path_of_the_cache_stands_in_one_file() -> None:
    files = (DEPLOY / "systemd").iterdir()
    naming = {each.name for each in files if "/nvme" in each.read_text(encoding="utf-8")}
    (path,) = CACHE_SERVICE["ReadWritePaths"]

    assert naming == {"cache.conf"}
    assert directives("Unit", CACHE)["RequiresMountsFor"] == [path]
    assert CACHE_SERVICE["Environment"] == [f"CACHETIER_CACHE_DIR={path}"]
    user = SERVICE["User"][0]
    made = f"+/usr/bin/install -d -m 0700 -o {user} -g {user} {path}"
    assert CACHE_SERVICE["ExecStartPre"] == [made]


def test_the_audit_log_is_where_the_unit_may_write_and_is_rotated() -> None:
    rotated = (DEPLOY / "systemd" / "logrotate.conf").read_text(encoding="utf-8")
    (directory,), (mode,) = SERVICE["LogsDirectory"], SERVICE["LogsDirectoryMode"]

    assert f"\n/var/log/{directory}/audit.jsonl {{" in rotated
    assert f"su {SERVICE['User'][0]} {SERVICE['Group'][0]}\n" in rotated
    assert mode == "0700"
    page = (DEPLOY.parent / "docs" / "security.md").read_text(encoding="utf-8")
    assert f'audit = "/var/log/{directory}/audit.jsonl"' in page


@pytest.mark.skipif(not shutil.which("logrotate"), reason="no logrotate here")
def test_logrotate_takes_the_audit_log_away_and_the_service_opens_another(tmp_path: Path) -> None:
    text = (DEPLOY / "systemd" / "logrotate.conf").read_text(encoding="utf-8")
    log, conf = tmp_path / "audit.jsonl", tmp_path / "conf"
    own = re.sub(r"^ +su .*\n", "", text, flags=re.MULTILINE)
    conf.write_text(own.replace("/var/log/cachetier/audit.jsonl", str(log)))
    conf.chmod(0o600)
    audit = Audit(str(log))
    who = Caller(Principal("team", Role.WRITE))
    audit.done("seal", "ok", who)

    state = f"--state={tmp_path}/state"
    subprocess.run(("logrotate", "--force", state, str(conf)), check=True, timeout=50)
    audit.done("pin", "ok", who)
    audit.close()

    assert '"pin"' in log.read_text()
    assert [each for each in tmp_path.glob("audit.jsonl*") if '"seal"' in each.read_text()]


def test_the_hardening_leaves_what_courtesy_and_the_disk_need() -> None:
    assert SERVICE["Delegate"] == ["cpu"]
    for name in ("ProtectControlGroups", "ProcSubset", "PrivateUsers", "ProtectProc"):
        assert name not in SERVICE
    assert SERVICE["SystemCallFilter"] == ["@system-service"]
    assert {"AF_UNIX", "AF_INET", "AF_INET6"} <= set(SERVICE["RestrictAddressFamilies"][0].split())


def test_the_user_of_the_unit_is_made_before_it() -> None:
    users = (DEPLOY / "systemd" / "sysusers.conf").read_text(encoding="utf-8")

    assert re.search(rf"^u {SERVICE['User'][0]} - ", users, re.MULTILINE)


@pytest.mark.skipif(not shutil.which("systemd-sysusers"), reason="no systemd-sysusers here")
def test_systemd_makes_that_user_and_those_directories(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    for kind, program in (("sysusers", "systemd-sysusers"), ("tmpfiles", "systemd-tmpfiles")):
        folder = tmp_path / "usr" / "lib" / f"{kind}.d"
        folder.mkdir(parents=True)
        shutil.copyfile(DEPLOY / "systemd" / f"{kind}.conf", folder / "cachetier.conf")
        create = ["--create"] if kind == "tmpfiles" else []
        subprocess.run((program, f"--root={tmp_path}", *create), check=True, timeout=50)

    assert "cachetier:" in (tmp_path / "etc" / "passwd").read_text(encoding="utf-8")
    assert (tmp_path / "etc" / "cachetier").stat().st_mode & 0o777 == 0o755


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="no systemd-analyze here")
@pytest.mark.parametrize("name", ["cachetier.service", "cachetier-leave.service"])
def test_systemd_understands_the_unit(tmp_path: Path, name: str) -> None:
    program = tmp_path / "cachetier"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    unit = tmp_path / name
    for each, text in (("cachetier.service", UNIT), ("cachetier-leave.service", LEAVE)):
        (tmp_path / each).write_text(text.replace("/opt/cachetier/bin/cachetier", str(program)))
    (tmp_path / "cachetier.service.d").mkdir()
    (tmp_path / "cachetier.service.d" / "cache.conf").write_text(CACHE)

    done = subprocess.run(
        ("systemd-analyze", "verify", "--man=no", str(unit)),
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )

    complaints = [
        line
        for line in done.stderr.splitlines()
        if str(tmp_path) in line and "DelegateSubgroup" not in line  # before systemd 254
    ]
    assert (done.returncode, complaints) == (0, []), done.stderr
