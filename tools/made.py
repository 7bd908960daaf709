"""What in the repository is made from the code: ``make docs`` writes it, a test holds it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tools import (
    cli_page,
    config_page,
    drawings,
    fsck_page,
    install_page,
    logs_page,
    metrics_page,
    share,
    states_page,
    stores_page,
    versions,
)
from tools.dashboards import files as dashboards
from tools.helm import chart as helm_chart

MAKERS: tuple[Callable[[], dict[Path, str]], ...] = (
    cli_page.documents,
    config_page.documents,
    drawings.documents,
    fsck_page.documents,
    install_page.documents,
    logs_page.documents,
    metrics_page.documents,
    helm_chart.documents,
    share.documents,
    states_page.documents,
    stores_page.documents,
    versions.documents,
    dashboards.documents,
)


def documents() -> dict[Path, str]:
    """Return the text of each file, by its path."""
    return {path: text for make in MAKERS for path, text in make().items()}
