"""The console in a real browser: live, by keyboard, for everybody, and with very many shards."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from cachetier_client import Client
from cachetier_client.bucket_format.layout import Layout
from playwright.sync_api import Browser, Page, Route, expect

from cachetier.console.steps import LINE_CELLS
from cachetier.doors.http.door import HttpDoor
from cachetier.drain.serve.stats import RemoteSnapshot
from cachetier.model.names import DURABLE
from tests.integration.browsers import (
    chromium,
    link_to,
    needs_chromium,
    sign_in,
    tab,
    violations,
    with_many_shards,
)
from tests.integration.drain_node import patterned
from tests.integration.serving import Served, serving
from tests.integration.test_whole_steps import LARGE, saved_by_two_ranks
from tests.integration.two_remotes import until

pytestmark = [needs_chromium, pytest.mark.xdist_group("chromium")]

MANY = 10_000
SEEN_LINES = 32
MOUNT = {"name": "objects", "bucket": "bucket/objects"}


def put(served: Served, run: str, shards: int, ranks: int = 1) -> None:
    """Put a step of so many shards of each of so many ranks, and seal all but the last rank."""
    with Client(served.unix_url) as client:
        for rank in range(ranks):
            who: dict[str, Any] = {"rank": rank, "world_size": ranks, "save_id": "s"}
            for number in range(shards):
                name = f"layer/{number:05}/rank-{rank}"
                client.put_shard(b"x" * 99, run=run, step=1, name=name, **who)
            if rank < ranks - 1 or ranks == 1:
                client.seal(run, 1, **who)


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    where: dict[str, Any] = {
        "s3": "127.0.0.1:0",
        "s3_mount": [MOUNT],
        "cluster": "http://127.0.0.1:1",
    }
    with serving(**where) as served:
        put(served, "llama", 3, ranks=4)
        put(served, "many", 1)
        served.service.store.write(with_many_shards, "many", MANY)
        yield served


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def session(browser: Browser, served: Served) -> Any:
    """Return the cookies of the owner's session."""
    with tab(browser) as page:
        sign_in(page, served)
        return page.context.storage_state()


@pytest.fixture
def page(browser: Browser, served: Served, session: Any) -> Iterator[Page]:
    with tab(browser, storage_state=session, viewport={"width": 1280, "height": 800}) as page:
        page.goto(str(served.service.url))
        yield page


def test_a_newcomer_comes_from_a_link_to_a_watched_and_restored_shard(
    page: Page, served: Served, tmp_path: Path
) -> None:
    expect(page.get_by_text("Losing this node now costs")).to_be_visible()
    page.get_by_role("link", name="llama", exact=True).click()
    page.get_by_role("link", name="1", exact=True).click()
    expect(page.get_by_text("It waits for rank 3 of this node to seal.")).to_be_visible()
    with Client(served.unix_url) as client:
        client.seal("llama", 1, rank=3, world_size=4, save_id="s")
    expect(page.locator("#section-step")).to_contain_text("4/4")
    expect(page.get_by_text("It waits for rank 3")).to_be_hidden()
    page.get_by_role("gridcell").first.click()
    with page.expect_download() as download:
        page.get_by_role("link", name="Download").click()
    download.value.save_as(tmp_path / "shard")
    assert (tmp_path / "shard").read_bytes() == b"x" * 99


def test_a_node_that_was_replaced_has_a_step_again_by_the_console_alone(
    browser: Browser, tmp_path: Path
) -> None:
    bucket = saved_by_two_ranks(tmp_path / "first"), Layout("ckpt")
    with serving(bucket=bucket, restore_keep="off") as served, tab(browser) as page:
        sign_in(page, served)
        page.get_by_label("A run that only the bucket has").fill("run")
        page.keyboard.press("Enter")
        page.get_by_role("link", name="7", exact=True).click()
        expect(page.get_by_text("Nothing of this step is on this node")).to_be_visible()
        page.get_by_role("button", name="Restore…").click()
        page.get_by_role("button", name="Restore", exact=True).click()
        expect(page.get_by_role("dialog")).to_contain_text("It comes back now: 6 shards, 16.8 MB")
        page.get_by_role("button", name="Close").click()
        expect(page.get_by_role("gridcell")).to_have_count(6)
        expect(page.locator("#section-legend")).to_contain_text("in S3 and here 6")
        expect(page.get_by_text("Only the node that saved a step knows")).to_be_visible()
        expect(page.locator("#section-step")).to_contain_text("2/2")
        page.get_by_role("gridcell").first.click()
        with page.expect_download() as download:
            page.get_by_role("link", name="Download").click()
        download.value.save_as(tmp_path / "shard")
        assert (tmp_path / "shard").read_bytes() == patterned(LARGE, 0)
        page.goto(str(served.service.url))
        expect(page.locator(".events")).to_contain_text("run/7 was restored to this node: 6 shards")


def test_a_click_that_comes_before_the_scripts_is_not_lost(
    browser: Browser, served: Served, session: Any
) -> None:
    """A page is seen before its scripts run: on a busy machine by seconds."""
    held: list[Route] = []

    def hold(route: Route) -> None:  # Playwright takes no method of a list
        held.append(route)

    with tab(browser, storage_state=session) as page:
        page.route(re.compile("htmx.min.js"), hold)
        page.goto(f"{served.service.url}/console/runs/llama/1", wait_until="commit")
        page.get_by_role("gridcell").first.click()
        page.get_by_role("button", name="Pin…").click()
        for each in held:
            each.continue_()
        expect(page.get_by_role("dialog")).to_contain_text("llama / 1")
        expect(page.locator("#shard")).to_contain_text("layer/00000/rank-0")
    assert held


def test_what_happens_shows_without_a_reload(page: Page, served: Served) -> None:
    page.evaluate("window.stayed = true")
    expect(page.locator("#chart-rates canvas")).to_be_visible()
    tops = "[...charts].map(each => each.scales.y.max ?? 1000)"
    assert min(page.evaluate(tops)) >= 1000  # an axis of 1 B/s, 1 B/s and 0 B/s says nothing
    served.call("PUT", "/v1/runs/just-now/steps/1/shards/x", b"x")
    expect(page.get_by_role("link", name="just-now", exact=True)).to_be_visible()
    expect(page.locator(".events")).to_contain_text("rank 0 of 1 puts just-now/1")
    assert page.evaluate("window.stayed")


# Of each axis of each chart its labels, and how far the outermost one is from being cut.
AXES = """() => [...charts].map((chart) => {
  const ratio = devicePixelRatio, all = chart.bbox.left / ratio + chart.bbox.width / ratio;
  return chart.axes.map((axis, y) => {
    const labels = (axis._values ?? []).filter((each) => each);
    chart.ctx.font = axis.font[0];
    const widths = labels.map((each) => chart.ctx.measureText(each).width / ratio);
    const at = (axis._splits ?? []).slice(-labels.length).map((each) => chart.valToPos(each, "x"));
    const right = chart.bbox.left / ratio + at.at(-1) + widths.at(-1) / 2;
    return { labels, room: y ? axis.size() - Math.max(...widths) : chart.width - right };
  });
})"""


@pytest.mark.parametrize("width", [390, 1360])
def test_no_label_of_an_axis_is_cut_or_stands_twice(page: Page, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 900})

    def all_are_well() -> bool:
        axes = [axis for chart in page.evaluate(AXES) for axis in chart]
        return bool(axes) and all(
            axis["room"] >= 0 and len({*axis["labels"]}) == len(axis["labels"]) > 0 for axis in axes
        )

    until(all_are_well)  # once all that has come is drawn


def test_only_lines_that_can_be_seen_are_in_the_page(page: Page, served: Served) -> None:
    page.goto(f"{served.service.url}/console/runs/many/1")
    cells = page.get_by_role("gridcell")
    expect(page.get_by_role("row", name=re.compile("rank 0")).first).to_be_visible()
    assert cells.count() <= SEEN_LINES * LINE_CELLS
    last = page.locator(f"[title^='copy/{MANY - 1:05}, ']")
    assert last.count() == 0
    page.locator("#grid").evaluate("grid => grid.scrollTo(0, grid.scrollHeight)")
    expect(last).to_be_visible()
    assert cells.count() <= SEEN_LINES * LINE_CELLS
    assert page.locator("[title^='layer/00000/']").count() == 0


def test_the_grid_is_walked_by_keyboard(page: Page, served: Served) -> None:
    page.goto(f"{served.service.url}/console/runs/llama/1")
    page.get_by_role("gridcell").first.focus()
    for key in ("ArrowRight", "ArrowDown", "ArrowDown", "ArrowLeft", "End", "ArrowRight"):
        page.keyboard.press(key)
    focused = page.evaluate("document.activeElement.title")
    assert focused.startswith("layer/00002/rank-2, 99 B")
    page.keyboard.press("Enter")
    expect(page.locator("#shard")).to_contain_text("layer/00002/rank-2")


def test_an_action_is_confirmed_by_keyboard_and_what_fails_is_said(
    page: Page, served: Served
) -> None:
    served.call("PUT", "/v1/runs/unwanted/steps/7/shards/x", b"x")
    page.goto(f"{served.service.url}/console/runs/unwanted/7")
    delete, dialog = page.get_by_role("button", name="Delete…"), page.get_by_role("dialog")
    typed = page.get_by_role("textbox")
    delete.focus()
    page.keyboard.press("Enter")
    expect(typed).to_be_focused()
    page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()
    delete.click()
    expect(typed).to_be_focused()
    page.keyboard.type("8")
    page.keyboard.press("Enter")
    expect(dialog).to_contain_text("Nothing was done")
    expect(page.get_by_role("button", name="Close")).to_be_focused()
    page.keyboard.press("Enter")
    expect(dialog).to_be_hidden()
    delete.click()
    expect(typed).to_be_focused()
    assert violations(page) == []
    page.keyboard.type("7")
    page.keyboard.press("Enter")
    expect(dialog).to_contain_text("Deleted: 1 shard")
    assert served.call("GET", "/v1/runs/unwanted/steps").json == {"steps": []}


STEP = "/console/runs/llama/1"
MORE = ("/console/events", "/console/runbooks/remote-refused.md", "/console/runs/none", "/nope")
AWAY = f'head_bucket: Could not connect to the endpoint URL: "http://{"long" * 20}:8333/bucket"'
# Nothing scrolls sideways, so nothing is cut: neither *Sign out* nor the end of an address.
CUT = """[...document.querySelectorAll(".top, .panel, .tile, .troubles")]
    .filter(each => each.scrollWidth > each.clientWidth + 1).map(each => each.innerText)"""


@pytest.mark.parametrize(
    ("scheme", "width", "paths"),
    [
        ("light", 1360, ("/", "/console/runs/llama", STEP, "/console/cluster", *MORE)),
        ("dark", 390, ("/", "/console/runs/llama", STEP, "/console/cluster", *MORE)),
    ],
)
def test_nothing_keeps_anybody_from_using_a_page(
    browser: Browser,
    served: Served,
    scheme: str,
    width: int,
    paths: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(served.drain.snapshot, "remote", RemoteSnapshot(DURABLE, "refused", AWAY))
    with tab(browser, color_scheme=scheme, viewport={"width": width, "height": 800}) as page:
        page.goto(str(served.service.url))
        assert violations(page) == []
        sign_in(page, served)
        for path in paths:
            page.goto(f"{served.service.url}{path}")
            assert (path, violations(page)) == (path, [])
            wide = page.evaluate("document.documentElement.scrollWidth > innerWidth")
            assert (path, wide, page.evaluate(CUT)) == (path, False, [])
        page.get_by_role("button", name="Theme").click()
        assert page.evaluate("document.documentElement.dataset.theme") == "dark"


def test_a_service_that_went_away_greys_the_page_and_comes_back(browser: Browser) -> None:
    gone = "The service went away"
    with serving() as served, tab(browser) as page:
        door = HttpDoor(("127.0.0.1", 0), served.service.operations)
        door.start()
        address = "127.0.0.1", int(door.url.rpartition(":")[2])
        page.goto(f"{door.url}/session?{urlsplit(link_to(served)).query}")
        page.get_by_role("button", name="Sign in").click()
        expect(page.get_by_text("Losing this node now costs nothing.")).to_be_visible()
        door.stop(1.0)
        expect(page.get_by_text(gone)).to_be_visible()
        opacity = "getComputedStyle(document.querySelector('main')).opacity"
        until(lambda: float(page.evaluate(opacity)) < 0.9)  # it fades
        door = HttpDoor(address, served.service.operations)
        door.start()
        expect(page.get_by_text(gone)).to_be_hidden()
        door.stop(1.0)
        expect(page.get_by_text(gone)).to_be_visible()
        with serving(http=f"127.0.0.1:{address[1]}"):  # which knows no session
            expect(page.get_by_text("Not signed in to cachetier")).to_be_visible()
