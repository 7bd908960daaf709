"""docs/metrics.md, from ``cachetier.telemetry.metric_table``."""

from __future__ import annotations

from pathlib import Path

from cachetier.telemetry.metric_table import SECTIONS, Series
from tools.pages import DOCS, table

PAGE = DOCS / "metrics.md"

HEAD = """\
# Metrics

`GET /metrics` at the HTTP door gives these in the text format of Prometheus (with a `token` set, it wants the token:
`authorization` in the scrape configuration; see `deploy/prometheus.yml`). This page is made from `cachetier/telemetry/metric_table.py` by `make docs`.

Gauges are read when somebody scrapes, in one transaction, so they belong together. The column *status* names the field of
[`GET /v1/status`](http.md#status) and `cachetier status --json` that shows the same figure: both are made from the same look at the
node, and agree. What could not be read is left out of the answer and counted in `cachetier_scrape_errors_total`; all else is there. `drain.` is the durable remote's; a replica's is in `remotes[].drain`. Counters count since the service started, unless it says otherwise.

Labels have few values, however long a node runs: `remote` is `durable` or a name from the settings, `run` are at most 20 runs with their branches, then `(others)` (the
most exposed, then the newest; of those with a save in the last 24 hours or with something not durable; never one whose name begins with
a dot, such as `.bench`: that is a trial, and nobody's training), `code` comes from the list of
[errors](protocol.md#errors).

To watch first: `cachetier_run_exposure_seconds` against `cachetier_exposure_objective_seconds`, and `cachetier_drain_eta_seconds`.
[runbooks](runbooks/README.md) says what to do when an alert fires.
"""


def documents() -> dict[Path, str]:
    """Return the page."""
    parts = [HEAD]
    for title, section in SECTIONS:
        parts += [
            f"## {title}",
            table(("name", "type", "unit", "labels", "status", ""), _rows(section)),
        ]
    return {PAGE: "\n".join(f"{part.strip()}\n" for part in parts)}


def _rows(section: tuple[Series, ...]) -> list[tuple[str, ...]]:
    return [
        (
            f"`{series.full_name}`",
            str(series.kind),
            series.unit,
            ", ".join(f"`{label}`" for label in series.labels),
            f"`{series.status}`" if series.status else "",
            series.meaning,
        )
        for series in section
    ]
