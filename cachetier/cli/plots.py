"""Plots of the verbs that draw: a PNG or an SVG, by an extra that not everybody has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cachetier.cli.output import refuse


def new_figure(path: Path, inches: tuple[float, float], *, as_json: bool) -> Any:
    """Return an empty figure to be saved at ``path``; refuse what cannot be drawn there."""
    if path.suffix not in (".png", ".svg"):
        refuse(f"--plot: {path} is neither .png nor .svg", "Name one.", as_json=as_json)
    try:
        from matplotlib.figure import Figure
    except ImportError:
        hint = "Install the extra `plot`, as docs/install.md says."
        refuse("--plot needs matplotlib, which is not here", hint, as_json=as_json)
    return Figure(figsize=inches, layout="constrained")
