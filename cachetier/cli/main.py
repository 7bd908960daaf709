"""The command ``cachetier``: whatever happens, it ends with an exit code, not with a traceback."""

from __future__ import annotations

import os
import sys
import traceback
from types import TracebackType

COMPLETE = "_CACHETIER_COMPLETE"  # click's variable: a shell asks what the last word could become


def main() -> None:
    """Run the command; errors become a line, a hint and an exit code."""
    sys.excepthook = _tell_of_defect
    try:
        from cachetier.cli import app  # takes a moment, in which Ctrl-C may come already

        if COMPLETE in os.environ:
            app.register()
        app.app(prog_name="cachetier")
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        # The reader of our output has gone, as `head` does; that is its right.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)


def _tell_of_defect(
    kind: type[BaseException], error: BaseException, where: TracebackType | None
) -> None:
    from cachetier.visible import visible

    sys.stderr.write(visible("".join(traceback.format_exception(kind, error, where))))
