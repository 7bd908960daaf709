"""The command ``cachetier``: whatever happens, it ends with an exit code, not with a traceback."""

from __future__ import annotations

import os
import sys


def main() -> None:
    """Run the command; errors become a line, a hint and an exit code."""
    try:
        from cachetier.cli.app import app  # takes a moment, in which Ctrl-C may come already

        app(prog_name="cachetier")
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        # The reader of our output has gone, as `head` does; that is its right.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
