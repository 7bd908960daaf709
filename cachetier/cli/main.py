"""The command ``cachetier``: which verbs there are. What they do is imported when one is called."""

from __future__ import annotations

import os
import sys

import typer

from cachetier.cli import dev, serve, shards, status, steps

app = typer.Typer(
    name="cachetier",
    help="Node-local write-back cache for checkpoints: NVMe speed now, object storage behind it.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help needs no rich, which takes longer than the help itself
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


for _name, _verb, _summary in (
    ("serve", serve.serve, "Run the service on this node."),
    ("dev", dev.dev, "Run the service and an S3 server in one process, to try it."),
    ("put", shards.put, "Put a file, or standard input, as one shard."),
    ("get", shards.get, "Get one shard, verified, from the nearest copy."),
    ("ls", steps.ls, "List runs, steps of a run, or shards of a step."),
    ("latest", steps.latest, "Print the newest step that can be restored."),
    ("seal", steps.seal, "Say that a rank has put all its shards."),
    ("wait", steps.wait, "Wait until a step, or a shard, has reached a level."),
    ("flush", steps.flush, "Drain now, and wait until nothing is dirty."),
    ("delete", steps.delete, "Delete a step, here and in S3."),
    ("status", status.status, "Show what the node holds and what is wrong."),
):
    app.command(_name, short_help=_summary)(_verb)


def main() -> None:
    """Run the command; errors become a line, a hint and an exit code."""
    try:
        app()
    except BrokenPipeError:
        # The reader of our output has gone, as `head` does; that is its right.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
