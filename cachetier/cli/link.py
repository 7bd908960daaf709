"""``cachetier link``: sign a browser in."""

from __future__ import annotations

import typer

from cachetier.cli.output import AsJson, Url, print_json, reach, reported


def link(url: Url = None, as_json: AsJson = False) -> None:
    """Print a link that signs a browser in as whoever runs this, once, within a minute.

    The session may do what you may. It ends after 8 hours, after 30 minutes without a request, when
    you sign out, and when the service stops.

    JSON: `url`, `expires_seconds`.
    """
    with reported(as_json), reach(url) as client:
        made = client.link()
        if as_json:
            print_json(made)
            return
        typer.echo(made["url"])
        typer.echo(f"Open it within {made['expires_seconds']:g} seconds; it works once.", err=True)
