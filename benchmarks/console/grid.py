"""A step of 10,000 shards in a real browser, while more shards of it arrive.

The page is opened anew for each first view. Then a step that still grows is watched: a timer on the
page's only thread says for how long each update kept it from anything else, and for how long it was
kept, by whatever runs on the machine, without an update.
"""

from __future__ import annotations

import itertools
import statistics
import threading
from typing import Any

from cachetier_client import Client
from playwright.sync_api import Page

from benchmarks.measures import Bar, Result, at_most, median_of
from benchmarks.node import node
from benchmarks.scratch import Bench
from tests.integration.browsers import FOUND, chromium

SHARDS, RANKS = 10_000, 16
VIEWS, WATCHED_SECONDS = 7, 30.0
RUN = "big"

FIRST_VIEW = """() => {
    const paints = performance.getEntriesByType('paint');
    const shown = paints.find(each => each.name == 'first-contentful-paint');
    const loaded = performance.getEntriesByType('navigation')[0].domContentLoadedEventEnd;
    return Math.max(shown.startTime, loaded) / 1000;
}"""
WATCH = """() => {
    const channel = new MessageChannel();
    let last = performance.now(), longest = 0;
    window.blocks = [];
    channel.port1.onmessage = () => {
        const now = performance.now();
        longest = Math.max(longest, now - last);
        last = now;
        setTimeout(() => channel.port2.postMessage(0), 1);
    };
    channel.port2.postMessage(0);
    window.idle = [];
    document.addEventListener('htmx:sseBeforeMessage', event => {
        if (event.target.id != 'grid-changed') return;
        window.idle.push(longest);
        longest = 0;
        setTimeout(() => { window.blocks.push(longest); longest = 0; }, 500);
    });
}"""


def measure(bench: Bench) -> list[Result]:
    """Return when the first view is there, and how long updates block the page."""
    if not FOUND:
        return [Result("console: a step of many shards", None, "", note="needs `make chromium`")]
    shards = SHARDS if not bench.quick else 500
    with node(bench.directory / "cache") as served, Client(served.url, run=RUN) as client:
        for rank in range(RANKS):
            _put(client, 1, rank, shards // RANKS)
        bench.say(f"{shards} shards are there")
        with chromium() as browser:
            page = browser.new_page(viewport={"width": 1360, "height": 900})
            page.goto(str(client.link()["url"]))
            page.get_by_role("button", name="Sign in").click()
            page.get_by_text("Losing this node").wait_for()
            address = f"http://127.0.0.1:{served.http_port}/console/runs/{RUN}/1"
            views = [_first_view(page, address) for _ in range(VIEWS if not bench.quick else 1)]
            cells = page.get_by_role("gridcell").count()
            work = _work(page, client, int(WATCHED_SECONDS) if not bench.quick else 2)
            blocks, idle = _blocks(page, client, WATCHED_SECONDS if not bench.quick else 4.0)
    what = f"console, a step of {shards:,} shards"
    return [
        median_of(f"{what}: first view", views, "s", at_most(1.0)),
        _p95(f"{what}: an update blocks the page, p95", blocks, at_most(50.0)),
        _p95(f"{what}: what the page's thread works in a second of updates, p95", work),
        _p95(f"{what}: the page is blocked without an update, p95", idle),
        Result(f"{what}: shards in the page at once", cells, "", None, (cells,)),
    ]


def _put(client: Client, step: int, rank: int, shards: int, first: int = 0) -> None:
    ids: dict[str, Any] = {"rank": rank, "world_size": RANKS, "save_id": "bench"}
    for number in range(first, first + shards):
        client.put_shard(b"x" * 200, step=step, name=f"layer/{number:05}/rank-{rank}", **ids)


def _first_view(page: Page, address: str) -> float:
    page.goto("about:blank")
    page.goto(address)
    page.get_by_role("gridcell").first.wait_for()
    page.wait_for_function("performance.getEntriesByName('first-contentful-paint').length")
    return float(page.evaluate(FIRST_VIEW))


def _p95(measure: str, values: list[float], bar: Bar | None = None) -> Result:
    p95 = statistics.quantiles(values, n=20)[-1] if len(values) > 1 else values[0]
    return Result(measure, min(p95, max(values)), "ms", bar, tuple(values))


def _work(page: Page, client: Client, seconds: int) -> list[float]:
    """Return the milliseconds of processor time that the page's thread takes in each second."""
    cdp = page.context.new_cdp_session(page)
    cdp.send("Performance.enable", {"timeDomain": "threadTicks"})
    found = []
    for second in range(seconds + 1):
        metrics = cdp.send("Performance.getMetrics")["metrics"]
        found += [1000 * each["value"] for each in metrics if each["name"] == "TaskDuration"]
        _put(client, 1, RANKS - 1, 5, 50_000 + 5 * second)
        page.wait_for_timeout(1000)
    return [after - before for before, after in itertools.pairwise(found)]


def _blocks(page: Page, client: Client, seconds: float) -> tuple[list[float], list[float]]:
    """Return for how many milliseconds each update blocked the page, and what lay between them."""
    page.evaluate(WATCH)
    done = threading.Event()

    def go_on() -> None:
        number = 100_000
        while not done.wait(0.2):
            _put(client, 1, RANKS - 1, 5, number)
            number += 5

    arriving = threading.Thread(target=go_on)
    arriving.start()
    try:
        page.wait_for_timeout(seconds * 1000)
    finally:
        done.set()
        arriving.join()
    blocks, idle = page.evaluate("[window.blocks, window.idle.slice(1)]")
    return blocks, idle
