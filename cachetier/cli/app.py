"""The table of verbs as typer runs it. The verbs are in ``verbs``; each is imported when called."""

from __future__ import annotations

import typer

from cachetier.cli.group import PLAIN, VerbGroup

app = typer.Typer(
    name="cachetier",
    cls=VerbGroup,
    help="Node-local write-back cache for checkpoints: NVMe speed now, object storage behind it.",
    epilog="`cachetier VERB --help` describes a verb. CACHETIER_URL says where the service is.",
    **PLAIN,
)


def _show_version(wanted: bool) -> None:
    if wanted:
        from cachetier import __version__

        typer.echo(f"cachetier {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: bool = typer.Option(
        False, "--version", help="Show the version and exit.", callback=_show_version, is_eager=True
    ),
) -> None:
    """Absorb checkpoint shards at NVMe speed, carry them to S3, give them back verified."""
