"""What the demo says while it runs: headings, lines, and never a long silence."""

from __future__ import annotations

import time

from rich.console import Console
from rich.rule import Rule

SILENCE_SECONDS = 4.0


class Narrator:
    """Prints lines that begin with the time since the start, in minutes and seconds."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._began_at = time.monotonic()
        self._spoke_at = self._began_at
        self._phases = 0

    @property
    def elapsed_seconds(self) -> float:
        return time.monotonic() - self._began_at

    def phase(self, title: str) -> None:
        """Begin the next part of the story."""
        self._phases += 1
        heading = f"[bold]{self._clock()}  {self._phases}. {title}[/]"
        self.console.print()
        self.console.print(Rule(heading, align="left", style="dim"))
        self._spoke_at = time.monotonic()

    def say(self, text: str) -> None:
        """Print one line; rich's markup is understood."""
        self.console.print(f"[dim]{self._clock()}[/]  {text}", soft_wrap=True, highlight=False)
        self._spoke_at = time.monotonic()

    def waiting_for(self, what: str) -> None:
        """Say what is being waited for, if nothing was said for a while."""
        if time.monotonic() - self._spoke_at > SILENCE_SECONDS:
            self.say(f"[dim]… waiting for {what}[/]")

    def _clock(self) -> str:
        minutes, seconds = divmod(int(self.elapsed_seconds), 60)
        return f"{minutes}:{seconds:02}"
