"""What the chart has from elsewhere: alerts, and what values may say of settings and tenants."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cachetier.config.settings import Settings
from cachetier.config.types import schema_of
from tools.pages import ROOT

CHART = ROOT / "deploy" / "helm" / "cachetier"
SCHEMA = (
    CHART / "values.schema.json"
)  # follows the service's settings; it refuses, and renders nothing
ALERTS = ROOT / "deploy" / "alerts.yml"
MONITORING = ROOT / "deploy" / "kubernetes-monitoring.yml"
_SPEC = "\nspec:\n"  # what stands before the rules, of the manifest's last object
# Settings that a value, or the chart's own arrangement, says already.
TAKEN = frozenset(
    {"cache_dir", "capacity", "socket", "allowed_uids", "principal", "remote"}
    | {"http", "tls", "health", "peers"}
    | {"notice", "grace"}
)


def documents() -> dict[Path, str]:
    """Return what of the chart, and of the manifests beside it, is made."""
    alerts = ALERTS.read_text(encoding="utf-8")
    rules = "".join(f"  {line}\n" if line else "\n" for line in alerts.splitlines())
    return {
        CHART / "files" / "alerts.yml": alerts,
        SCHEMA: json.dumps(values_schema(), indent=2) + "\n",
        MONITORING: f"{MONITORING.read_text(encoding='utf-8').rpartition(_SPEC)[0]}{_SPEC}{rules}",
    }


def digest() -> str:
    """Return the SHA-256 of each file that decides what is rendered, with its name."""
    whole = hashlib.sha256()
    for path in sorted(each for each in CHART.rglob("*") if each.is_file() and each != SCHEMA):
        whole.update(f"{path.relative_to(CHART)}\0{path.stat().st_size}\0".encode())
        whole.update(path.read_bytes())
    return whole.hexdigest()


# --- what values may say -------------------------------------------------------------------------

Schema = Mapping[str, Any]
TEXT: Schema = {"type": "string"}
NAME: Schema = {"type": "string", "pattern": "^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$", "maxLength": 63}
PATH: Schema = {"type": "string", "pattern": "^/[^ ]*[^ /]$"}
YES_OR_NO: Schema = {"type": "boolean"}
UID: Schema = {"type": "integer", "minimum": 1, "maximum": 4294967294}
ANYTHING: Schema = {"type": "object"}
TEXTS: Schema = {"type": "object", "additionalProperties": TEXT}


def _table(required: str = "", /, **properties: Schema) -> dict[str, Any]:
    """Return the schema of a mapping that may have these keys and no others."""
    table: dict[str, Any] = {
        "type": "object",
        "properties": properties,
        "additionalProperties": False,
    }
    return table | ({"required": required.split()} if required else {})


def _several(item: Schema) -> Schema:
    return {"type": "array", "items": item}


def _seconds(most: int) -> Schema:
    return {"type": "integer", "minimum": 0, "maximum": most}


def values_schema() -> dict[str, Any]:
    """Return the chart's values.schema.json; settings and tenants are those of the service."""
    settings = schema_of(Settings)["properties"]
    # A ConfigMap holds them, so no secret is among them: `env` takes one from a Secret.
    secrets = {name for name, schema in settings.items() if schema.get("writeOnly")}
    free = {name: schema for name, schema in settings.items() if name not in TAKEN | secrets}
    monitored = _table(
        enabled=YES_OR_NO,
        interval={"type": "string", "pattern": "^[0-9]+(ms|s|m)$"},
        labels=TEXTS,
        tlsConfig=ANYTHING,
    )
    given = {"nodes", "listen", "trust"}  # by the chart
    of_peers = settings["peers"]["properties"].items()
    peers = {name: schema for name, schema in of_peers if name not in given}
    prometheus = _table(namespaceLabels=TEXTS, podLabels=TEXTS)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Values of the chart cachetier",
        **_table(
            "name remote",
            name=NAME,
            image=_table(
                "repository",
                repository={"type": "string", "minLength": 1},
                tag=TEXT,
                digest={"type": "string", "pattern": "^(sha256:[0-9a-f]{64})?$"},
                pullPolicy={"enum": ["", "Always", "IfNotPresent", "Never"]},
                pullSecrets=_several(NAME),
            ),
            remote={"type": "string", "pattern": "^s3://[^/ ]+(/[^ ]*)?$"},
            capacity=settings["capacity"],
            allowedUids=_several(UID),
            tenants=settings["principal"],
            settings=_table(**free),
            peers=_table(enabled=YES_OR_NO, ca=TEXT, **peers),
            leave=_table(
                preStopSeconds=_seconds(86400),
                noticeSeconds=_seconds(86400),
                graceSeconds=_seconds(3600),
            ),
            cache=_cache(),
            socket=_table(hostPath=PATH),
            createDirectories=YES_OR_NO,
            secret=_table(
                "name",
                name=NAME,
                accessKeys=YES_OR_NO,
                create=YES_OR_NO,
                scrapeToken={"anyOf": [{"const": ""}, {"type": "string", "minLength": 16}]},
                accessKey=TEXT,
                secretKey=TEXT,
            ),
            tls=_table(secretName=TEXT, clientCa=TEXT),
            monitoring=_table(podMonitor=monitored, rules=_table(enabled=YES_OR_NO, labels=TEXTS)),
            networkPolicy=_table(
                enabled=YES_OR_NO,
                prometheus=prometheus,
                extraEgress=_several(ANYTHING),
                extraIngress=_several(ANYTHING),
            ),
            priorityClass=_table(
                "name",
                name=NAME,
                create=YES_OR_NO,
                value={"type": "integer", "maximum": 1000000000},
            ),
            serviceAccountName=TEXT,
            nodeSelector=TEXTS,
            tolerations=_several(ANYTHING),
            updateStrategy=ANYTHING,
            minReadySeconds=_seconds(3600),
            podDisruptionBudget=_table(maxUnavailable={"type": ["integer", "string"]}),
            podAnnotations=TEXTS,
            env=_several({"type": "object", "required": ["name"]}),
            resources=ANYTHING,
            trainingPod=_table(
                enabled=YES_OR_NO,
                name=NAME,
                image=TEXT,
                command=_several(TEXT),
                run=TEXT,
                uid=UID,
                tenant=TEXT,
                flushSeconds=_seconds(86400),
            ),
            leaveJob=_table(node=TEXT),
            **{"global": ANYTHING},
        ),
    }


def _cache() -> dict[str, Any]:
    """Return the schema of `cache`: a volume for each node has a class, a size and nodes."""
    local = _table(storageClassName=TEXT, size=TEXT, nodes={"type": "integer", "minimum": 0})
    kind = {"enum": ["hostPath", "localVolume"]}
    filled = {
        "properties": {
            "storageClassName": {"minLength": 1},
            "size": {"pattern": "^[0-9.]+[KMGTP]i?$"},
            "nodes": {"minimum": 1},
        }
    }
    return {
        **_table("kind", kind=kind, hostPath=PATH, localVolume=local),
        "if": {"properties": {"kind": {"const": "localVolume"}}},
        "then": {"properties": {"localVolume": filled}},
    }
