"""The dashboards that are committed, from the code: part of ``make docs``."""

from __future__ import annotations

import json
from pathlib import Path

from tools.dashboards import fleet, node
from tools.dashboards.panels import Dashboard

FOLDER = Path(__file__).parents[2] / "deploy" / "dashboards"
DASHBOARDS: dict[str, Dashboard] = {"node.json": node.DASHBOARD, "fleet.json": fleet.DASHBOARD}


def documents() -> dict[Path, str]:
    """Return what each file of deploy/dashboards holds."""
    return {
        FOLDER / name: json.dumps(dashboard.written(), indent=1) + "\n"
        for name, dashboard in DASHBOARDS.items()
    }
