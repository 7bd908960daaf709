#!/usr/bin/env python3
"""Stands in for Grafana in a container: up only if it was provisioned where Grafana looks.

It reads the folders of Grafana's image, writes where Grafana keeps its database, and answers the
health check. It runs on the base image's bare Python, so it parses no YAML.
"""

from __future__ import annotations

import http.server
import json
import os
import signal
import sys
from pathlib import Path

PROVISIONING = Path("/etc/grafana/provisioning")
STATE = Path("/var/lib/grafana")
PORT = 3000


def complaints() -> list[str]:
    """Return what Grafana would lack."""
    home = Path(os.environ["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"])
    dashboards = sorted(home.parent.glob("*.json"))
    missing = [
        f"no files in {PROVISIONING / kind}"
        for kind in ("datasources", "dashboards")
        if not sorted((PROVISIONING / kind).glob("*.yml"))
    ]
    if home not in dashboards:
        missing.append(f"no {home}")
    for path in dashboards:
        if not json.loads(path.read_text(encoding="utf-8"))["panels"]:
            missing.append(f"no panels in {path}")
    return missing


class Health(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/api/health" else 404)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing: the health check asks every few seconds."""


def main() -> None:
    if missing := complaints():
        sys.exit("; ".join(missing))
    (STATE / "grafana.db").touch()
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))  # the first process has no default
    http.server.ThreadingHTTPServer(("", PORT), Health).serve_forever()


if __name__ == "__main__":
    main()
