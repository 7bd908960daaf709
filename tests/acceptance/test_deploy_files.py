"""What the compose file and deploy/ name exists: settings, files, ports, users. Always run."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from cachetier.config import settings as config
from cachetier.config import sources as config_sources
from tests.acceptance.docker_host import docker_host

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
VARIABLE = re.compile(r"\$\{([A-Z_0-9]+)(?:(:-|:\?|-)([^}]*))?\}")
GIVEN = {"CACHETIER_SCRAPE_TOKEN": "t" * 40, "AWS_SECRET_ACCESS_KEY": "s" * 40}


def document(path: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return loaded


def interpolated(text: str) -> str:
    """Fill in a compose value as compose does where only what is required was given."""
    return VARIABLE.sub(lambda match: GIVEN.get(match[1], match[3] or ""), text)


COMPOSE = document(ROOT / "docker-compose.yml")
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
RUNNING = tuple(SERVICES.items())
ENVIRONMENT: dict[str, str] = SERVICES["cachetier"]["environment"]


def test_the_service_accepts_the_environment_that_compose_gives_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, interpolated(str(value)))

    settings = config.load()

    assert settings.capacity_bytes(1 << 50) == 10 << 30
    assert settings.http_address == ("0.0.0.0", 7070)
    assert settings.scrape_token is not None
    assert settings.allowed_uids == frozenset()
    assert str(settings.socket_path).startswith("/run/cachetier/")


def test_nodes_of_compose_find_their_peers_by_the_alias_that_all_have(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    beside = document(DEPLOY / "compose-peers.yml")
    service = beside["services"]["cachetier"]
    for name, value in {**ENVIRONMENT, **service["environment"]}.items():
        monkeypatch.setenv(name, interpolated(str(value)))

    peers = config.load().peers

    (alias,) = service["networks"]["peers"]["aliases"]
    assert peers.nodes == (f"{alias}:{config.address_of_door(peers.listen)[1]}",)
    assert peers.trust == f"/run/secrets/{service['secrets'][0]}"
    assert beside["secrets"].keys() == {*service["secrets"]}
    assert service["networks"].keys() == {"default", *beside["networks"]}  # S3, and the scrape
    text = (DEPLOY / "compose-peers.yml").read_text()
    for command in re.findall(r"^#     (.+?)  ", text, re.MULTILINE):
        assert command in (ROOT / "docs" / "compose.md").read_text()


def test_compose_waits_until_the_service_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, interpolated(str(value)))
    waits = re.fullmatch(r"(\d+)s", SERVICES["cachetier"]["stop_grace_period"])

    assert waits is not None
    assert int(waits[1]) >= config.load().grace + 10  # docs/operations.md


def test_variables_of_the_compose_file_do_not_upset_a_service_outside_it() -> None:
    text = (ROOT / "docker-compose.yml").read_text(encoding="utf-8")
    ours = {name for name, _, _ in VARIABLE.findall(text) if name.startswith(config_sources.PREFIX)}
    settings = {f"{config_sources.PREFIX}{name.upper()}" for name in config.NAMED}

    assert ours - settings - config_sources.FOREIGN_VARIABLES == set()


def test_the_example_environment_fills_in_variables_of_the_compose_file() -> None:
    text = (ROOT / "docker-compose.yml").read_text(encoding="utf-8")
    known = {name for name, _, _ in VARIABLE.findall(text)}
    required = {name for name, kind, _ in VARIABLE.findall(text) if kind == ":?"}
    example = (DEPLOY / "env.example").read_text(encoding="utf-8")
    named = set(re.findall(r"^#?([A-Z_0-9]+)=", example, re.MULTILINE))

    assert required <= named <= {*known, "COMPOSE_PROFILES", "COMPOSE_PROJECT_NAME"}


def test_a_missing_secret_is_asked_for_once_and_says_what_to_do() -> None:
    text = (ROOT / "docker-compose.yml").read_text(encoding="utf-8")
    asked = [(name, hint) for name, kind, hint in VARIABLE.findall(text) if kind == ":?"]

    assert sorted(name for name, _ in asked) == ["AWS_SECRET_ACCESS_KEY", "CACHETIER_SCRAPE_TOKEN"]
    assert {hint for _, hint in asked} == {"copy deploy/env.example to .env and fill it in"}
    assert (DEPLOY / "env.example").is_file()


def test_every_published_port_is_on_the_loopback_of_the_host() -> None:
    ports = {name: service.get("ports", []) for name, service in SERVICES.items()}

    published = [name for name, of_service in ports.items() if of_service]
    assert published == ["cachetier", "seaweedfs", "prometheus", "grafana"]
    assert all(interpolated(port).startswith("127.0.0.1:") for of in ports.values() for port in of)


def test_a_node_whose_bucket_is_elsewhere_runs_the_service_alone() -> None:
    alone = [name for name, service in SERVICES.items() if "profiles" not in service]
    example = (DEPLOY / "env.example").read_text(encoding="utf-8")

    assert alone == ["cachetier"]
    assert not any(need["required"] for need in SERVICES["cachetier"]["depends_on"].values())
    assert "\nCOMPOSE_PROFILES=store,watch\n" in example  # the first node has all of it


def test_a_node_has_the_name_that_its_settings_give_it_and_not_one_of_the_container() -> None:
    assert SERVICES["cachetier"]["hostname"] == "${CACHETIER_NODE:-}"
    assert "\nCACHETIER_NODE=\n" in (DEPLOY / "env.example").read_text(encoding="utf-8")


def test_every_image_is_pinned_to_a_version() -> None:
    """And by digest, once `make digests` has asked for them."""
    tags = {name: interpolated(service["image"]).partition(":")[2] for name, service in RUNNING}

    version = r"v?\d+\.\d+(\.\d+)?(@sha256:[0-9a-f]{64})?"
    assert all(re.fullmatch(version, tag) for tag in tags.values()), tags


@pytest.mark.parametrize("name", SERVICES)
def test_no_service_has_more_than_it_needs(name: str) -> None:
    service = SERVICES[name]

    uid = int(service["user"].partition(":")[0])
    assert uid > 0
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["read_only"] or name == "prometheus"
    assert service["cpu_shares"] < 1024  # the default: that of training
    assert service["mem_limit"]
    assert service["pids_limit"]
    assert service["logging"]["options"].keys() == {"max-size", "max-file"}


def test_every_service_that_stays_has_a_health_check() -> None:
    image = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")

    assert "HEALTHCHECK" in image
    assert [name for name, service in SERVICES.items() if "healthcheck" not in service] == [
        "cachetier"  # its image's
    ]
    assert SERVICES["demo"]["healthcheck"] == {"disable": True}


def test_nothing_that_is_watched_waits_for_what_watches_it() -> None:
    needed = {name: set(service.get("depends_on", ())) for name, service in SERVICES.items()}

    watching = {"prometheus", "grafana"}
    assert not any(needs & watching for needs in needed.values())
    assert not any(needed[name] for name in watching)


def test_the_demo_runs_when_it_is_asked_for_with_the_socket_and_no_network() -> None:
    demo = SERVICES["demo"]

    assert demo["profiles"] == ["demo"]
    assert demo["network_mode"] == "none"
    assert demo["image"] == SERVICES["cachetier"]["image"]
    assert demo["environment"]["CACHETIER_URL"] == f"unix://{ENVIRONMENT['CACHETIER_SOCKET']}"
    assert all(volume.endswith(":ro") for volume in demo["volumes"])


def test_every_named_volume_secret_and_mounted_file_is_there() -> None:
    volumes = [volume for service in SERVICES.values() for volume in service.get("volumes", ())]
    sources = [interpolated(volume).split(":")[0] for volume in volumes]
    files = [source for source in sources if source.startswith(".")]

    assert all((ROOT / source).exists() for source in files)
    assert set(sources) - set(files) == set(COMPOSE["volumes"])
    assert set(SERVICES["prometheus"]["secrets"]) == set(COMPOSE["secrets"])


def test_prometheus_scrapes_the_service_with_its_token_and_loads_the_rules() -> None:
    prometheus = document(DEPLOY / "prometheus.yml")
    (scrape,) = prometheus["scrape_configs"]

    port = ENVIRONMENT["CACHETIER_HTTP"].rpartition(":")[2]
    assert scrape["static_configs"] == [{"targets": [f"cachetier:{port}"]}]
    assert Path(scrape["authorization"]["credentials_file"]).name in COMPOSE["secrets"]
    assert all((DEPLOY / name).is_file() for name in prometheus["rule_files"])


# --- Grafana -------------------------------------------------------------------------------------

GRAFANA = SERVICES["grafana"]
PROVISIONING = DEPLOY / "grafana" / "provisioning"


def seen_in_grafana(source: str) -> str:
    """Return where the container sees a path of the repository."""
    pairs = (volume.split(":")[:2] for volume in GRAFANA["volumes"])
    mounted: dict[str, str] = dict(pairs)
    return mounted[source]


def test_grafana_has_one_data_source_which_is_the_prometheus_of_the_compose_file() -> None:
    provisioned = document(PROVISIONING / "datasources" / "prometheus.yml")
    (source,) = provisioned["datasources"]
    scrape_interval = document(DEPLOY / "prometheus.yml")["global"]["scrape_interval"]

    assert provisioned["apiVersion"] == 1
    assert (source["type"], source["isDefault"]) == ("prometheus", True)
    host, _, port = source["url"].removeprefix("http://").partition(":")
    assert f"--web.listen-address=0.0.0.0:{port}" in SERVICES[host]["command"]
    assert source["jsonData"]["timeInterval"] == scrape_interval


def test_grafana_reads_the_dashboards_from_where_they_are_mounted() -> None:
    provisioned = document(PROVISIONING / "dashboards" / "cachetier.yml")
    (provider,) = provisioned["providers"]
    folder = seen_in_grafana("./deploy/dashboards")
    home = GRAFANA["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]

    assert (provisioned["apiVersion"], provider["type"]) == (1, "file")
    assert (provider["options"]["path"], provider["allowUiUpdates"]) == (folder, False)
    assert home.startswith(f"{folder}/")
    assert (DEPLOY / "dashboards" / Path(home).name).is_file()
    for kind in ("datasources", "dashboards"):
        source = f"./deploy/grafana/provisioning/{kind}"
        assert seen_in_grafana(source) == f"/etc/grafana/provisioning/{kind}"


def test_every_dashboard_has_its_own_name_and_asks_the_provisioned_data_source() -> None:
    dashboards = [
        json.loads(path.read_text(encoding="utf-8"))
        for path in sorted((DEPLOY / "dashboards").glob("*.json"))
    ]
    uids = [dashboard["uid"] for dashboard in dashboards]

    assert len(dashboards) >= 2
    assert len(set(uids)) == len(uids)
    for dashboard in dashboards:
        assert dashboard.get("id") is None  # Grafana gives it
        variables = {each["name"]: each for each in dashboard["templating"]["list"]}
        assert variables["datasource"]["query"] == "prometheus"
        asked = {
            panel["datasource"]["uid"] for panel in dashboard["panels"] if panel.get("datasource")
        }
        assert asked <= {"${datasource}", "$datasource", "prometheus"}


def test_grafana_lets_everybody_look_and_nobody_change() -> None:
    settings = GRAFANA["environment"]

    assert settings["GF_AUTH_ANONYMOUS_ORG_ROLE"] == "Viewer"
    assert settings["GF_SECURITY_DISABLE_INITIAL_ADMIN_CREATION"] == "true"
    assert settings["GF_ANALYTICS_REPORTING_ENABLED"] == "false"
    assert settings["GF_PLUGINS_PREINSTALL_DISABLED"] == "true"


# --- the image -----------------------------------------------------------------------------------


def test_the_image_builds_without_a_hub_feature_and_from_files_the_context_has() -> None:
    text = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    copies = re.findall(r"^COPY (?!--from)(.+) \S+$", text, re.MULTILINE)
    sources = {source for line in copies for source in line.split()}

    assert "# syntax" not in text
    assert text.count("FROM ${BASE_IMAGE}") == text.count("FROM ") == 2
    assert {line[1:] for line in ignored if line.startswith("!")} == sources
    assert all((ROOT / source).exists() for source in sources)


def test_the_image_and_the_compose_file_agree_on_version_user_and_paths() -> None:
    image = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]

    assert f"ARG VERSION={version['version']}\n" in image
    assert interpolated(SERVICES["cachetier"]["image"]) == f"cachetier:{version['version']}"
    assert f"USER {SERVICES['cachetier']['user']}\n" in image
    for name in ("CACHETIER_CACHE_DIR", "CACHETIER_SOCKET"):
        assert f"{name}={ENVIRONMENT[name]}" in image


def test_container_tests_that_cannot_run_fail_instead_of_being_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))

    with (
        pytest.raises(pytest.fail.Exception, match="cannot run: no docker command"),
        docker_host(tmp_path),
    ):
        raise AssertionError("there is none")
