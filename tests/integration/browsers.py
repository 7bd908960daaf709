"""A real browser without a window: Debian's Chromium, told what to do by Playwright."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import apsw
import pytest
from axe_playwright_python.sync_playwright import Axe
from cachetier_client import Client
from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests.integration.serving import Served

# As `make chromium` unpacks it, where the machine has none.
UNPACKED = Path(sys.prefix) / "chromium" / "usr"
_OWN = UNPACKED / "lib" / "chromium" / "chromium-headless-shell"
FOUND = (
    shutil.which("chromium-headless-shell")
    or shutil.which("chromium")
    or (str(_OWN) if _OWN.exists() else "")
)
FLAGS = (
    *("--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-proxy-server"),
    *("--disable-background-networking", "--host-resolver-rules=MAP rebound.example 127.0.0.1"),
)
SECONDS = 60.0

expect.set_options(timeout=SECONDS * 1000)

needs_chromium = pytest.mark.skipif(not FOUND, reason="needs a browser: `make chromium`")


@contextmanager
def chromium() -> Iterator[Browser]:
    """Lend a browser until the block ends."""
    libraries = UNPACKED / "lib" / "x86_64-linux-gnu"
    found = f"{libraries}:{libraries / 'pulseaudio'}"
    environment: dict[str, Any] = {**os.environ, "LD_LIBRARY_PATH": found}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=FOUND, args=list(FLAGS), env=environment, timeout=SECONDS * 1000
        )
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def tab(browser: Browser, **options: Any) -> Iterator[Page]:
    """Lend a tab with cookies of its own; errors of its scripts fail the test."""
    context = browser.new_context(**options)
    context.set_default_timeout(SECONDS * 1000)
    page = context.new_page()
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on(
        "console",
        lambda message: (
            errors.append(message.text) if "Content Security Policy" in message.text else None
        ),
    )
    try:
        yield page
        assert not errors, errors
    finally:
        context.close()


def with_many_shards(sql: apsw.Connection, run: str, shards: int) -> None:
    """Copy the row of a run's one shard, for pages to show; nobody may read these."""
    columns = (
        "save, rank, size_bytes, digest, block_digests, element_size, file_id, inline, state, "
        "committed_at, row_digest"
    )
    sql.execute(
        f"WITH RECURSIVE copies (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM copies WHERE i < ?1) "
        f"INSERT INTO shards (name, {columns}) SELECT printf('copy/%05d', i), {columns} "
        "FROM copies, shards WHERE save = (SELECT number FROM saves WHERE run = ?2) ORDER BY i",
        (shards - 1, run),
    )


def link_to(served: Served) -> str:
    with Client(served.unix_url) as client:
        return str(client.link()["url"])


def sign_in(page: Page, served: Served, path: str = "/") -> None:
    """Sign in as the owner, and open a page of the console."""
    link = link_to(served)
    page.goto(link)
    page.get_by_role("button", name="Sign in").click()
    parts = urlsplit(link)
    page.wait_for_url(f"{parts.scheme}://{parts.netloc}/")
    if path != "/":
        page.goto(f"{parts.scheme}://{parts.netloc}{path}")


def violations(page: Page) -> list[str]:
    """Return what keeps people from using a page, by axe's rules."""
    found = Axe().run(page).response["violations"]
    return [f"{each['id']}: {node['html'][:200]}" for each in found for node in each["nodes"]]
