"""What deploy/ and the compose file name exists: settings, metrics, files, ports. Always run."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from cachetier import config, config_sources
from cachetier.metrics import Levels, Metrics

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
VARIABLE = re.compile(r"\$\{([A-Z_0-9]+)(?:(:-|:\?)([^}]*))?\}")
METRIC = re.compile(r"\bcachetier_[a-z_]+")
GIVEN = {"CACHETIER_TOKEN": "t" * 40, "AWS_SECRET_ACCESS_KEY": "s" * 40}


def document(path: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return loaded


def interpolated(text: str) -> str:
    """Fill in a compose value as compose does where only what is required was given."""
    return VARIABLE.sub(lambda match: GIVEN.get(match[1], match[3] or ""), text)


COMPOSE = document(ROOT / "docker-compose.yml")
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
ENVIRONMENT: dict[str, str] = SERVICES["cachetier"]["environment"]


def test_the_service_accepts_the_environment_that_compose_gives_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, interpolated(str(value)))

    settings = config.load()

    assert settings.capacity_bytes(1 << 50) == 10 << 30
    assert settings.http_address == ("0.0.0.0", 7070)
    assert settings.token is not None
    assert settings.allowed_uids == frozenset()
    assert str(settings.socket_path).startswith("/run/cachetier/")


def test_variables_of_the_compose_file_do_not_upset_a_service_outside_it() -> None:
    text = (ROOT / "docker-compose.yml").read_text(encoding="utf-8")
    ours = {name for name, _, _ in VARIABLE.findall(text) if name.startswith(config_sources.PREFIX)}
    settings = {f"{config_sources.PREFIX}{name.upper()}" for name in config.Settings.model_fields}

    assert ours - settings - config_sources.FOREIGN_VARIABLES == set()


def test_the_example_environment_fills_in_variables_of_the_compose_file() -> None:
    text = (ROOT / "docker-compose.yml").read_text(encoding="utf-8")
    known = {name for name, _, _ in VARIABLE.findall(text)}
    required = {name for name, kind, _ in VARIABLE.findall(text) if kind == ":?"}
    example = (DEPLOY / "env.example").read_text(encoding="utf-8")
    named = set(re.findall(r"^#?([A-Z_0-9]+)=", example, re.MULTILINE))

    assert required <= named <= known


def test_every_published_port_is_on_the_loopback_of_the_host() -> None:
    ports = [port for service in SERVICES.values() for port in service.get("ports", ())]

    assert len(ports) == 3
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_every_named_volume_secret_and_mounted_file_is_there() -> None:
    volumes = [volume for service in SERVICES.values() for volume in service.get("volumes", ())]
    sources = [interpolated(volume).split(":")[0] for volume in volumes]
    files = [source for source in sources if source.startswith(".")]

    assert all((ROOT / source).is_file() for source in files)
    assert set(sources) - set(files) == set(COMPOSE["volumes"])
    assert set(SERVICES["prometheus"]["secrets"]) == set(COMPOSE["secrets"])


def test_prometheus_scrapes_the_service_with_its_token_and_loads_the_rules() -> None:
    prometheus = document(DEPLOY / "prometheus.yml")
    (scrape,) = prometheus["scrape_configs"]

    port = ENVIRONMENT["CACHETIER_HTTP"].rpartition(":")[2]
    assert scrape["static_configs"] == [{"targets": [f"cachetier:{port}"]}]
    assert Path(scrape["authorization"]["credentials_file"]).name in COMPOSE["secrets"]
    assert all((DEPLOY / name).is_file() for name in prometheus["rule_files"])


def test_the_alerts_name_metrics_that_exist_and_say_what_to_do() -> None:
    exposed = METRIC.findall(Metrics(Levels).exposition().decode())
    rules = [rule for group in document(DEPLOY / "alerts.yml")["groups"] for rule in group["rules"]]
    named = {name for rule in rules for name in METRIC.findall(rule["expr"])}

    assert {"cachetier_oldest_dirty_seconds", "cachetier_fenced"} <= named <= set(exposed)
    assert all(rule["annotations"].keys() == {"summary", "action"} for rule in rules)
    assert {rule["labels"]["severity"] for rule in rules} == {"warning", "critical"}


@pytest.mark.skipif(not shutil.which("promtool"), reason="no promtool on this machine")
def test_each_alert_fires_when_it_should() -> None:
    done = subprocess.run(
        ("promtool", "test", "rules", str(DEPLOY / "alerts_test.yml")),
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr


def test_the_image_builds_without_a_hub_feature_and_from_files_the_context_has() -> None:
    text = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    copies = re.findall(r"^COPY (?!--from)(.+) \S+$", text, re.MULTILINE)
    sources = {source for line in copies for source in line.split()}

    assert "# syntax" not in text
    assert text.count("FROM ${BASE_IMAGE}") == text.count("FROM ") == 2
    assert {line[1:] for line in ignored if line.startswith("!")} == sources
    assert all((ROOT / source).exists() for source in sources)
