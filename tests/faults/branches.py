"""Which share of the durable core's branches tests take, in all the processes that they start.

``[tool.coverage]`` of pyproject.toml says what the core is. A process that is killed tells nothing.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
CONFIG = ROOT / "pyproject.toml"
BRANCHES = "percent of the branches of the core"


class Branches:
    """Gathers below ``place`` what processes that have ``environment`` tell at their end."""

    def __init__(self, place: Path) -> None:
        place.mkdir(exist_ok=True)
        for old in place.iterdir():
            old.unlink()
        self._place = place
        self.environment = {"COVERAGE_PROCESS_START": os.fspath(CONFIG), "BRANCHES": str(place)}

    def percent(self) -> int:
        """Return the share that was taken, in whole percent, rounded down."""
        page = self._place / "branches.json"
        self._coverage("combine", "--quiet")
        self._coverage("json", "--quiet", "-o", os.fspath(page))
        totals = json.loads(page.read_text(encoding="utf-8"))["totals"]
        return int(100 * totals["covered_branches"] / totals["num_branches"])

    def _coverage(self, *arguments: str) -> None:
        command = (sys.executable, "-m", "coverage", *arguments)
        environment = {**os.environ, "BRANCHES": os.fspath(self._place)}
        subprocess.run(command, cwd=ROOT, env=environment, check=True)
