"""The command ``cachetier``. Its verbs are in ``verbs``; each is imported when it is called."""

from __future__ import annotations

import os
import sys

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


def main() -> None:
    """Run the command; errors become a line, a hint and an exit code."""
    try:
        app(prog_name="cachetier")
    except BrokenPipeError:
        # The reader of our output has gone, as `head` does; that is its right.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
