"""Run the demo: ``make demo``, or ``python -m examples.demo``. Ends with 0 only if all held."""

from __future__ import annotations

import sys
from typing import Any

from rich.console import Console

from examples.demo import report
from examples.demo.story import Story
from examples.demo.telling import run_story, work_dir_of


def main() -> int:
    """Tell the story, print the report, and return the exit status."""
    return run_story(Story, _report, work_dir_of("python -m examples.demo", __doc__, ".demo"))


def _report(story: Story, console: Console, seconds: float) -> dict[str, Any]:
    outcome = story.outcome
    outcome.seconds = seconds
    report.show(outcome, console)
    return report.as_json(outcome)


if __name__ == "__main__":
    sys.exit(main())
