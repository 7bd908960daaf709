"""docs/metrics.md, from ``cachetier.telemetry.metric_table``."""

from __future__ import annotations

from pathlib import Path

from cachetier.telemetry.metric_table import SECTIONS, Series
from tools.pages import DOCS, table

PAGE = DOCS / "metrics.md"

HEAD = """\
# Metrics

`GET /metrics` at the HTTP door gives these in Prometheus's text format. With a `token` set it needs
`authorization` in the scrape configuration; see `deploy/prometheus.yml`. Watch first:
`cachetier_run_exposure_seconds` against `cachetier_exposure_objective_seconds`, and
`cachetier_drain_eta_seconds`. [Runbooks](runbooks/README.md) say what to do when an alert fires.

- The column *status* names the field of [`GET /v1/status`](http.md#status) with the same figure. `drain.` is the
  durable remote's; a replica's is in `remotes[].drain`. Gauges are read in one transaction.
- A gauge that cannot be read is left out, and counted in `cachetier_scrape_errors_total`.
- Counters count since the service started, unless it says otherwise.
- Labels have few values: `remote` is `durable` or a name from the settings; `code` is one of the
  [errors](protocol.md#errors); `run` is one of at most 20 runs (the most exposed, then the newest, with a save in the
  last 24 hours or something not durable), then `(others)`. Runs that begin with a dot, such as `.bench`, are left out.

`make docs` makes this page from `cachetier/telemetry/metric_table.py`.
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
