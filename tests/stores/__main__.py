"""``make stores``: run against other S3 servers what SeaweedFS has to pass.

One server at a time stands in its place: for the conformance suite, the two fault matrices in full
and the proof of order. ``docs/stores-results.json`` keeps what came of it, and ``make docs`` writes
the table of ``docs/remotes.md`` from it. A part that is run alone leaves what is known of the rest.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from tests.faults.slices import EVERYTHING, VARIABLE
from tests.stores.servers import PROGRAMS, ROOT, STORES, libraries_of, program
from tools.frameworks import Environment, Kind, reason_of

RESULTS = ROOT / "docs" / "stores-results.json"
KIND = Kind("stores", ROOT / "tests" / "stores", "")
PARTS = {
    "conformance": ("tests/conformance", "tests/stores/test_nginx.py"),
    "faults": ("tests/integration/test_s3_fault_matrix.py",),
    "faults of objects": ("tests/integration/test_object_fault_matrix.py",),
    "order": ("tests/integration/test_s3_order.py",),
}


def install(name: str) -> None:
    """Have the programs of a store, below ``build/stores``.

    Raises:
        subprocess.CalledProcessError: They cannot be had here; ``stderr`` says why.
    """
    if (KIND.lists / f"{name}.txt").exists():
        Environment(KIND, name).install()
    if package := STORES[name].debian:
        command = [ROOT / "tools" / "get_debian.sh", PROGRAMS / package, package, f"{package}+"]
        subprocess.run(list(map(str, command)), check=True, capture_output=True, text=True)


def version(name: str) -> str:
    """Return the number that the program of a store calls its version."""
    done = subprocess.run(
        [program(name), *STORES[name].version],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=True,
        env={**os.environ, **libraries_of(name)},
    )
    found = re.search(r"\d+\.\d+(\.\d+)?", done.stdout)
    return found[0] if found else done.stdout.strip()


def run_part(name: str, part: str, workers: str) -> dict[str, Any]:
    """Run the tests of a part against a store, and return what came of them."""
    report, counted = PROGRAMS / f"{name}.xml", PROGRAMS / f"{name}.found.json"
    report.unlink(missing_ok=True)
    paths = [path for path in PARTS[part] if "nginx" not in path or name == "nginx"]
    command = [sys.executable, "-m", "pytest", "-q", "-n", workers, f"--junitxml={report}"]
    command += [f"--faults-found={counted}", "-p", "tests.stores.instead", "--store", name]
    everything = {VARIABLE: EVERYTHING, **os.environ}
    subprocess.run([*command, *paths], cwd=ROOT, env=everything, check=False)
    kinds = json.loads(counted.read_text(encoding="utf-8"))["kinds"]
    return outcome_of(report, STORES[name].short) | {
        "cells": sum(each["number"] for each in kinds.values()),
        "date": dt.datetime.now(dt.UTC).date().isoformat(),
    }


def outcome_of(report: Path, short: Mapping[str, str]) -> dict[str, Any]:
    """Return how many tests ended how, by a report of pytest.

    A failure that ``short`` has a pattern of is the server's, and counted by its cause.
    """
    ended: Counter[str] = Counter({"passed": 0, "short": 0, "failed": 0, "skipped": 0})
    causes: Counter[str] = Counter()
    failed: list[str] = []
    for case in ET.parse(report).iter("testcase"):
        name = str(case.get("name"))
        tags = {each.tag for each in case}
        cause = next((why for pattern, why in short.items() if re.search(pattern, name)), None)
        if not tags & {"failure", "error"}:
            ended["skipped" if "skipped" in tags else "passed"] += 1
        elif cause is not None:
            ended["short"] += 1
            causes[cause] += 1
        else:
            ended["failed"] += 1
            failed.append(name)
    return {**ended, "causes": dict(causes), "names of failed": sorted(set(failed))}


@click.command()
@click.option("--only", default="", help="One of the servers.")
@click.option("--part", default="", help=f"One of {', '.join(PARTS)}.")
@click.option("--workers", default="2", help="Processes, each with a server.")
def main(only: str, part: str, workers: str) -> None:
    """Judge each server, or one, in all parts, or one."""
    if only not in ("", *STORES) or part not in ("", *PARTS):
        raise click.BadParameter(f"servers: {', '.join(STORES)}; parts: {', '.join(PARTS)}")
    failed = False
    for name in [only] if only else STORES:
        click.echo(f"==> {name}")
        row: dict[str, Any] = {"title": STORES[name].title, "settings": STORES[name].settings}
        try:
            install(name)
            row["version"] = version(name)
        except (subprocess.CalledProcessError, FileNotFoundError) as error:
            failed = True
            _keep(name, row | {"reason": reason_of(getattr(error, "stderr", "") or str(error))}, {})
            continue
        for each in [part] if part else PARTS:
            came = run_part(name, each, workers)
            failed |= bool(came["failed"])
            _keep(name, row, {each: came})
    if failed:
        raise click.exceptions.Exit(1)


def _keep(name: str, row: dict[str, Any], parts: dict[str, Any]) -> None:
    """Write what is known of a store; what other parts found stays."""
    found = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    known = found.get(name, {}).get("parts", {})
    found[name] = row | {"parts": known | parts}
    RESULTS.write_text(json.dumps(dict(sorted(found.items())), indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
