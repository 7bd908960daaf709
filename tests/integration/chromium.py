"""A real browser without a window, told what to do by the pipes of its debugging protocol."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

FOUND = shutil.which("chromium") or shutil.which("google-chrome") or ""
SECONDS = 30.0
FLAGS = (
    *("--headless=new", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu"),
    *("--disable-dev-shm-usage", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--disable-extensions", "--no-proxy-server"),
    "--host-resolver-rules=MAP rebound.example 127.0.0.1",
)

needs_chromium = pytest.mark.skipif(not FOUND, reason="needs `chromium`: apt-get install chromium")


class Page:
    """One tab."""

    def __init__(self, commands: int, answers: int) -> None:
        self._commands = commands
        self._answers = os.fdopen(answers, "rb")
        self._number = 0
        self._session: str | None = None
        target = self._ask("Target.createTarget", url="about:blank")["targetId"]
        attached = self._ask("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        self._ask("Page.enable")

    def open(self, url: str) -> None:
        self._ask("Page.navigate", url=url)
        self.wait_for("document.readyState == 'complete'")

    def click(self, label: str, until: str) -> None:
        """Click the button of this label, and wait until the page says ``until``."""
        found = f"[...document.querySelectorAll('button')].find(e => e.textContent == '{label}')"
        self.evaluate(f"{found}.click()")
        self.wait_for(f"document.body && document.body.innerText.includes({json.dumps(until)})")

    def wait_for(self, script: str) -> None:
        deadline = time.monotonic() + SECONDS
        while not self.evaluate(script):
            assert time.monotonic() < deadline, (script, self.text)
            time.sleep(0.02)

    def evaluate(self, script: str) -> Any:
        asked = {"expression": script, "returnByValue": True, "awaitPromise": True}
        return self._ask("Runtime.evaluate", **asked)["result"].get("value")

    @property
    def text(self) -> str:
        return str(self.evaluate("document.body.innerText"))

    @property
    def cookies(self) -> list[dict[str, Any]]:
        return list(self._ask("Network.getCookies")["cookies"])

    def screenshot(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self._ask("Page.captureScreenshot")["data"]))

    def close(self) -> None:
        self._answers.close()

    def _ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        command = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            command["sessionId"] = self._session
        os.write(self._commands, json.dumps(command).encode() + b"\0")
        while True:
            answer = json.loads(self._message())
            if answer.get("id") == self._number:
                # A page that is just being left has no one to ask.
                return dict(answer.get("result") or {"result": {}})

    def _message(self) -> bytes:
        message = bytearray()
        while (byte := self._answers.read(1)) != b"\0":
            assert byte, "the browser has ended"
            message += byte
        return bytes(message)


@contextmanager
def browsing(profile: Path) -> Iterator[Page]:
    """Lend a tab of a new browser until the block ends."""
    theirs_in, ours_out = os.pipe()
    ours_in, theirs_out = os.pipe()

    def take_their_places() -> None:
        kept = os.dup(theirs_out)
        os.dup2(theirs_in, 3)
        os.dup2(kept, 4)

    with (profile / "log").open("wb") as log:
        browser = subprocess.Popen(
            [FOUND, *FLAGS, f"--user-data-dir={profile}"],
            stdout=log,
            stderr=log,
            pass_fds=(3, 4, theirs_in, theirs_out),
            preexec_fn=take_their_places,  # noqa: PLW1509  it takes no lock
            start_new_session=True,
        )
    os.close(theirs_in)
    os.close(theirs_out)
    page: Page | None = None
    try:
        page = Page(ours_out, ours_in)
        yield page
    finally:
        os.close(ours_out)  # which ends the browser
        try:
            browser.wait(SECONDS)
        finally:
            browser.kill()
            browser.wait()
            if page is not None:
                page.close()
