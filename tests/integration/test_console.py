"""The console: who sees what, what pages show of the node, and what an admin may do from them."""

from __future__ import annotations

import html
import http.client
import json
import re
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cachetier_client import Client

from cachetier.console.rendering import runbooks, static_files, static_url
from cachetier.console.steps import step_table
from cachetier.doors.http.console.actions import ACTIONS
from cachetier.doors.http.console.routes import OBJECTS_SHOWN
from cachetier.doors.http.console.sections import PAGE_EVENTS, Live
from cachetier.drain.serve.stats import RemoteSnapshot
from cachetier.errors import RemoteError
from cachetier.model.names import DURABLE
from cachetier.steps.views import StepView
from cachetier.steps.whole_steps import WholeSteps
from cachetier.telemetry.recent_events import RecentEvent
from tests.integration.serving import Answer, Served, serving
from tests.integration.test_browsers import Browser, csrf_in, new_link
from tests.integration.test_s3_door import served_at

ROOT = Path(__file__).parents[2]
HX = {"HX-Request": "true"}
TENANTS = [{"name": "a", "role": "admin", "runs": ["a-*"]}, {"name": "b", "role": "write"}]


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serving(principal=TENANTS) as served, Client(served.unix_url) as client:
        for run in ("a-run", "r"):
            for rank in range(2):
                ids: dict[str, Any] = {"rank": rank, "world_size": 2, "save_id": "s"}
                for name in range(3):
                    data = bytes(100 + rank)
                    client.put_shard(data, run=run, step=1, name=f"w/{name}/{rank}", **ids)
            client.seal(run, 1, rank=0, world_size=2, save_id="s")
        yield served


@pytest.fixture
def owner(served: Served) -> Browser:
    browser = Browser(served)
    browser.sign_in(new_link(served))
    return browser


def signed_in_as(principal: str, served: Served) -> Browser:
    token = served.service.operations.access.create_token(principal, None)["token"]
    bearer = {"Authorization": f"Bearer {token}"}
    link = served.call("POST", "/v1/links", b"", bearer).json["url"].partition("=")[2]
    browser = Browser(served)
    browser.sign_in(link)
    return browser


def act(browser: Browser, name: str, **fields: str) -> Answer:
    return browser.post(f"/console/actions/{name}", fields, X_Cachetier_CSRF=browser.csrf, **HX)


def actions_on(browser: Browser, path: str) -> list[str]:
    """Return the actions that a page offers."""
    return re.findall(r"/console/actions/(\w+)", browser.get(path).body.decode())


def text(answer: Answer) -> str:
    """Return what a person reads of a page."""
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", answer.body.decode()))


def _away(*_where: object) -> None:
    raise RemoteError("it is away")


# --- who sees what -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    [
        *("/", "/console/runs/r", "/console/runs/r/1", "/console/live", "/console/history"),
        *("/console/cluster", "/console/actions/flush", "/console/runs/r/1/lines"),
    ],
)
def test_a_stranger_reads_how_to_get_in_and_nothing_else(served: Served, path: str) -> None:
    answer = Browser(served).get(path)
    assert answer.status == 401
    assert "cachetier console" in text(answer)
    assert "a-run" not in text(answer)
    assert Browser(served).get(path, **HX).headers["hx-refresh"] == "true"


def test_static_files_are_for_everybody_and_kept_while_they_are_the_same(served: Served) -> None:
    for name, file in static_files().items():
        answer = Browser(served).get(static_url(name))
        assert (answer.status, answer.body) == (200, file.body)
        again = Browser(served).get(static_url(name), If_None_Match=answer.headers["etag"])
        assert (again.status, again.body) == (304, b"")
    assert Browser(served).get("/console/static/../rendering.py").status in (401, 404)


def test_a_tenant_sees_its_own_runs_and_no_figures_of_the_node(served: Served) -> None:
    browser = signed_in_as("a", served)
    home = text(browser.get("/"))
    assert "a-run" in home
    assert "Losing this node" not in home
    assert not re.search(r"\br/1\b|puts r\b", home)  # nor events of others
    for path in ("/console/runs/r", "/console/runs/r/1", "/console/cluster", "/console/history"):
        assert browser.get(path).status == 403
    assert browser.get("/console/runs/a-run/1").status == 200


def test_a_page_needs_its_session_and_no_token_opens_it(served: Served) -> None:
    assert served.call("GET", "/console/runs/r").status == 401


# --- pages ---------------------------------------------------------------------------------------


def test_the_page_of_the_node_leads_with_exposure(served: Served, owner: Browser) -> None:
    home = text(owner.get("/"))
    assert home.index("Losing this node now costs") < home.index("Acknowledged")
    for word in ("Backlog", "Durable in", "Runs", "Remotes", "Compression", "Pending run"):
        assert word in home
    assert "rank 0 of 2 has sealed r/1" in home


def test_a_run_shows_its_steps_with_levels(owner: Browser) -> None:
    page = text(owner.get("/console/runs/r"))
    assert re.search(r"Step State Levels .* 1 open - .* 1/2 6", page)


def test_a_step_shows_its_timeline_and_its_grid(owner: Browser) -> None:
    answer = owner.get("/console/runs/r/1")
    assert answer.body.count(b'role="gridcell"') == 6
    assert b'class="local" title="w/0/1, 101 B: on this node only' in answer.body
    assert "It waits for rank 1 of this node to seal." in text(answer)
    assert "not published yet" not in text(answer).replace("in S3, not published yet", "")


def test_lines_of_the_grid_come_as_they_are_asked_for(owner: Browser) -> None:
    lines = owner.get("/console/runs/r/1/lines?first=1&rows=1", **HX)
    assert lines.body.count(b'role="row"') == 1
    assert b'data-first="1" data-total="2"' in lines.body
    assert owner.get("/console/runs/r/1/lines?rows=-9", **HX).status == 200
    assert owner.get("/console/runs/r/1/lines?rows=x", **HX).status == 422


def test_a_shard_is_shown_of_its_own_step_alone(owner: Browser) -> None:
    page = owner.get("/console/runs/r/1")
    version = re.findall(rb'id="c(\d+)"', page.body)[0].decode()
    found = owner.get(f"/console/runs/r/1/shards/{version}", **HX)
    assert "w/0/0" in text(found)
    assert b'href="/v1/runs/r/steps/1/shards/w/0/0"' in found.body
    assert owner.get("/v1/runs/r/steps/1/shards/w/0/0").body == bytes(100)
    other = owner.get(f"/console/runs/a-run/1/shards/{version}", **HX)
    assert (other.status, "was deleted or replaced" in text(other)) == (404, True)


def test_what_is_not_there_is_a_page_that_says_so(owner: Browser) -> None:
    for path in ("/console/runs/r/77", "/console/runs/r/x", "/console/mounts/none"):
        answer = owner.get(path)
        assert answer.headers["content-type"] == "text/html; charset=utf-8"
        assert answer.status in (400, 404)
        assert "Back to the node" in text(answer)
    assert owner.get("/console/runbooks/none.md").status == 404


def test_a_defect_is_a_page_too_and_stands_in_the_log(
    owner: Browser, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_where: object) -> None:
        raise RuntimeError("a defect")

    monkeypatch.setattr(Live, "lines", broken)
    answer = owner.get("/console/runs/r/1")
    assert (answer.status, "Back to the node" in text(answer)) == (500, True)
    assert "GET /console/runs/r/1" in caplog.text


def test_a_run_that_nobody_knows_is_a_page_that_says_so_without_a_flush(owner: Browser) -> None:
    answer = owner.get("/console/runs/never")
    assert (answer.status, "neither this node nor S3 has a run never" in text(answer)) == (
        404,
        True,
    )
    assert b"/console/actions/" not in answer.body


@pytest.mark.parametrize("path", ["/nope", "/console/nope", "/console/runs/r/1/2/3"])
def test_an_address_that_is_none_is_a_page_for_people_and_a_problem_for_programs(
    owner: Browser, served: Served, path: str
) -> None:
    answer = owner.get(path, Accept="text/html,*/*")
    assert (answer.status, "Back to the node" in text(answer)) == (404, True)
    assert owner.get(path).code == "not_found"
    stranger = Browser(served).get("/console/nope", Accept="text/html")
    assert (stranger.status, "cachetier console" in text(stranger)) == (401, True)


def test_a_step_of_other_nodes_is_shown_as_the_bucket_has_it(
    owner: Browser, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = served.service.operations.checkpoints
    view, shards = steps.step("r", 1)
    monkeypatch.setattr(type(steps), "progress", lambda *_where: None)
    view = replace(view, state="published", levels=("replicated", "durable"))
    monkeypatch.setattr(type(steps), "step", lambda *_where: (view, shards))
    answer = owner.get("/console/runs/r/1")
    page = text(answer)
    assert re.search(r"State published Levels durable · unchecked", page)
    assert b"chip good" not in answer.body
    assert "or replaced what was saved here" in page
    assert "Only the node that saved a step knows its timeline" in page
    assert "other nodes saved it" in page
    assert "Restore… brings it here" in page


def test_steps_that_only_the_bucket_has_are_listed_beside_the_runs(
    owner: Browser, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = served.service.operations.checkpoints
    view = replace(steps.step("r", 1)[0], run="elsewhere", state="published", dirty_bytes=0)
    monkeypatch.setattr(type(steps), "durable_elsewhere", lambda *_where: [view])
    assert b"<progress" not in owner.get("/console/in-bucket/elsewhere").body
    assert b"/console/runs/elsewhere/1" in owner.get(part := "/console/in-bucket/elsewhere").body
    monkeypatch.undo()
    nothing = text(owner.get("/console/in-bucket/r"))
    assert nothing.strip() == "No other step of this run."
    monkeypatch.setattr(type(steps), "durable_elsewhere", _away)
    assert "cannot be asked now: it is away" in text(owner.get(part))
    assert owner.get("/console/runs/elsewhere").status == 200
    found = owner.get("/console/runs?run=elsewhere")
    assert (found.status, found.headers["location"]) == (303, "/console/runs/elsewhere")
    assert owner.get("/console/runs?run=..").status == 400


def test_what_s3_could_not_be_asked_about_or_another_node_replaced_is_not_green() -> None:
    levels = ("local", "replicated", "durable")
    where = "r", 1, "s", "published", levels, (0,), 1
    view = StepView(*where, 1, 1, 0, started_at=0.0, sealed_at=1.0, published_at=2.0)
    replaced = replace(view, checked_at=99.0, levels=levels[1:])  # by a save of another node
    for seen, tone in ((replace(view, checked_at=99.0), "good"), (view, ""), (replaced, "")):
        (row,) = step_table([seen], 100.0).rows
        assert (row[1].text, row[1].tone) == ("published", tone)


def test_a_trouble_is_said_once_and_its_runbook_is_a_page() -> None:
    with serving() as served:
        served.drain.snapshot.remote = RemoteSnapshot(DURABLE, "unreachable", "no route", 1.0)
        browser = Browser(served)
        browser.sign_in(new_link(served))
        told = browser.get("/").body.decode()
        (page,) = re.findall(r'href="(/console/runbooks/[^"]+)"', told)
        served.call("PUT", "/v1/runs/r/steps/1/shards/x", b"x")
        assert browser.get("/console/runs/r/1").body.decode().count("no route") == 1
        answer = browser.get(page)
    assert told.count("no route") == 1
    assert "<code>cachetier doctor</code> says what is wrong" in told
    assert b"<h1>CachetierRemoteUnreachable</h1>" in answer.body
    assert b'<a href="exposure-over-objective.md">' in answer.body
    assert b"remotes.md" not in answer.body  # what is no runbook is no page here


def test_the_image_and_the_wheel_have_the_runbooks() -> None:
    assert runbooks().keys() == {path.name for path in (ROOT / "docs/runbooks").glob("*.md")}


def test_events_are_filtered_and_paged() -> None:
    def event(number: int) -> RecentEvent:
        level = "warning" if number % 2 else "info"
        return RecentEvent(number, 0.0, level, "part.sealed", f"it is {number}", None, None)

    newest_first = [event(number) for number in range(2 * PAGE_EVENTS, 0, -1)]
    with serving() as served:
        object.__setattr__(served.service.operations, "recent_events", lambda: newest_first)
        browser = Browser(served)
        browser.sign_in(new_link(served))
        first = browser.get("/console/events")
        assert len(re.findall(r"it is \d+", text(first))) == PAGE_EVENTS
        older = re.search(r'href="(\?[^"]+)">Older', first.body.decode())
        assert older is not None
        rest = browser.get("/console/events" + html.unescape(older[1]))
        assert re.findall(r"it is (\d+)", text(rest)) == [
            str(at) for at in range(PAGE_EVENTS, 0, -1)
        ]
        assert "Older" not in text(rest)
        grave = browser.get("/console/events?grave=1")
        assert set(re.findall(r"it is \d*(\d)", text(grave))) == set("13579")
        found = text(browser.get("/console/events?words=is+19"))
        wanted = [*(str(at) for at in range(199, 189, -1)), "119", "19"]
        assert re.findall(r"it is (\d+)", found) == wanted
        assert "none is like that" in text(browser.get("/console/events?words=never"))
        assert 'href="/console/events"' in browser.get("/").body.decode()


def test_a_mount_lists_its_objects_page_by_page_and_none_hides(tmp_path: Path) -> None:
    with served_at(tmp_path / "cache") as (served, caller):
        s3 = caller.client()
        for number in range(OBJECTS_SHOWN + 1):
            s3.put_object(Bucket="bucket", Key=f"train/{number:03}", Body=b"12345")
        s3.put_object(Bucket="bucket", Key="train/last-\x1b[2J\u202e", Body=b"")
        browser = Browser(served)
        browser.sign_in(new_link(served))
        assert "s3:data" in text(browser.get("/"))
        first = browser.get("/console/mounts/data")
        assert "train/000 local 5 B" in text(first)
        more = re.search(r'href="(\?[^"]+)">More', first.body.decode())
        assert more is not None
        rest = browser.get("/console/mounts/data" + html.unescape(more[1]))
        assert "train/200 local 5 B" in text(rest)
        assert "train/last-\\x1b[2J\\u202e" in text(rest)
        assert "No object begins with x" in text(browser.get("/console/mounts/data?prefix=x"))


def test_an_empty_node_says_how_to_begin() -> None:
    with serving() as served:
        browser = Browser(served)
        browser.sign_in(new_link(served))
        home = text(browser.get("/"))
        assert "No run has saved here yet" in home
        assert "Losing this node now costs nothing." in home
        assert "No nodes are listed" in text(browser.get("/console/cluster"))


def test_a_cluster_is_what_its_nodes_say() -> None:
    with serving() as other:
        url = str(other.service.url)
        with serving(cluster=f"{url},http://127.0.0.1:1") as served:
            browser = Browser(served)
            browser.sign_in(new_link(served))
            page = text(browser.get("/console/cluster"))
    assert re.search(r"nodes 2 1 ready dirty 0 B", page)
    assert page.index("nobody listens there") < page.index(url.removeprefix("http://"))
    with serving(cluster="http://127.0.0.1:1") as served:
        browser = Browser(served)
        browser.sign_in(new_link(served))
        found = browser.get("/console/cluster/nodes?words=never", **HX)
        assert "No node matches" in text(found)
        assert "127.0.0.1:1" in text(browser.get("/console/cluster/nodes?words=away+127", **HX))


# --- live ----------------------------------------------------------------------------------------


class Stream:
    """Reads server-sent events."""

    def __init__(self, answer: http.client.HTTPResponse) -> None:
        self._answer = answer

    def until(self, name: str) -> str:
        """Return the data of the next event called ``name``."""
        event, data = "", list[str]()
        while line := self._answer.readline().decode():
            if line == "\n":
                if event == name:
                    return "\n".join(data)
                event, data = "", []
            field, _, value = line.rstrip("\n").partition(": ")
            if field == "event":
                event = value
            elif field == "data":
                data.append(value)
        return ""


@contextmanager
def streaming(browser: Browser, path: str) -> Iterator[Stream]:
    connection = http.client.HTTPConnection("127.0.0.1", browser.call.port, timeout=20)
    cookies = "; ".join(f"{name}={value}" for name, value in browser.cookies.items())
    with closing(connection):
        connection.request("GET", path, headers={"Cookie": cookies})
        with connection.getresponse() as answer:
            assert answer.headers["content-type"].startswith("text/event-stream")
            yield Stream(answer)


def test_a_page_hears_of_what_changes(served: Served, owner: Browser) -> None:
    with streaming(owner, "/console/live") as stream:
        assert "a-run" in stream.until("runs")
        assert len(json.loads(stream.until("sample"))) == 4
        served.call("PUT", "/v1/runs/new/steps/1/shards/x", b"new")
        assert "new" in stream.until("runs")


def test_a_step_that_is_watched_says_when_its_grid_changed(served: Served, owner: Browser) -> None:
    with streaming(owner, "/console/live?run=r&step=1") as stream:
        assert "on this node only" in stream.until("legend")
        assert stream.until("grid")
    with streaming(owner, "/console/live?run=never") as stream:
        assert stream.until("steps")
    assert owner.get("/console/live?run=r&step=x").status == 400


def test_a_stream_ends_with_its_session(served: Served, owner: Browser) -> None:
    with streaming(owner, "/console/live") as stream:
        stream.until("runs")
        owner.post("/session/end", {"csrf": owner.csrf})
        assert stream.until("never") == ""


def test_a_service_that_stops_does_not_wait_for_who_watches() -> None:
    with serving(grace="3600s") as served:
        browser = Browser(served)
        browser.sign_in(new_link(served))
        with streaming(browser, "/console/live") as stream:
            stream.until("tiles")
            stopping = threading.Thread(target=served.service.stop)
            stopping.start()
            assert stream.until("never") == ""
            stopping.join()


# --- actions -------------------------------------------------------------------------------------


def test_an_action_asks_first_and_stands_in_the_audit_log(served: Served, owner: Browser) -> None:
    asked = owner.get("/console/actions/pin?run=r&step=1", **HX)
    assert "Pin this step?" in text(asked)
    assert served.call("GET", "/v1/pins").json == {"pins": []}
    assert "stay here" in text(act(owner, "pin", run="r", step="1"))
    assert [pin["run"] for pin in served.call("GET", "/v1/pins").json["pins"]] == ["r"]
    assert actions_on(owner, "/console/runs/r/1") == ["flush", "restore", "unpin", "delete"]
    refused = act(owner, "delete", run="r", step="1", value="1")
    assert (refused.status, "pinned" in text(refused)) == (409, True)
    assert "not pinned any more" in text(act(owner, "unpin", run="r", step="1"))
    assert actions_on(owner, "/console/runs/r/1") == ["flush", "restore", "pin", "delete"]


def test_a_flush_says_what_is_left_and_holds_nobody_up(served: Served, owner: Browser) -> None:
    assert "6 shards" in text(act(owner, "flush", run="r", step="1"))
    assert ("r", 1) in served.drain.hurried
    assert "It goes first now" in text(act(owner, "flush"))
    assert (None, None) in served.drain.hurried


def test_a_step_is_restored_and_what_cannot_be_is_said(served: Served, owner: Browser) -> None:
    asked = owner.get("/console/actions/restore?run=r&step=1", **HX)
    assert b'value="0-1"' in asked.body
    for value, why in (("0-1", "no remote has r/1"), ("first", "not a list of ranks")):
        answer = act(owner, "restore", run="r", step="1", value=value)
        assert (answer.status >= 400, why in text(answer)) == (True, True)


def test_the_page_of_a_step_that_comes_says_how_far_restores_are(
    owner: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "Restores on this node" not in text(owner.get("/console/runs/r/1"))
    monkeypatch.setattr(WholeSteps, "is_coming", lambda _self, run, step: (run, step) == ("r", 1))
    assert "Restores on this node" in text(owner.get("/console/runs/r/1"))


def test_a_step_is_deleted_by_who_types_its_number(served: Served, owner: Browser) -> None:
    served.call("PUT", "/v1/runs/gone/steps/30/shards/x", b"x")
    wrong = act(owner, "delete", run="gone", step="30", value="3")
    assert (wrong.status, "Nothing was done" in text(wrong)) == (400, True)
    assert "Deleted: 1 shard here" in text(act(owner, "delete", run="gone", step="30", value="30"))
    assert served.call("GET", "/v1/runs/gone/steps").json == {"steps": []}


def test_a_retry_and_a_limit_reach_the_drain(served: Served, owner: Browser) -> None:
    assert "tries again" in text(act(owner, "retry"))
    assert served.drain.retried == 1
    assert "At most 200 MB/s" in text(act(owner, "rate", value="200 MB/s"))
    assert served.drain.queue.rate_limit == 200e6
    assert b'value="200 MB/s"' in owner.get("/console/actions/rate", **HX).body
    for wrong in ("fast", "0"):
        assert "Nothing was changed" in text(act(owner, "rate", value=wrong))
    assert served.drain.queue.rate_limit == 200e6
    act(owner, "rate", value="")
    assert served.drain.queue.rate_limit is None


@pytest.mark.parametrize("name", sorted(ACTIONS))
def test_actions_are_for_admins_and_of_those_for_who_may_touch_the_run(
    served: Served, name: str
) -> None:
    fields = {"run": "r", "step": "1", "value": "1"}
    writer, tenant = signed_in_as("b", served), signed_in_as("a", served)
    for browser, why in ((writer, "only admins may act"), (tenant, "may not touch|all runs")):
        answer = act(browser, name, **fields)
        assert answer.status == 403
        assert re.search(why, text(answer))
    assert b"/console/actions/" not in writer.get("/console/runs/r/1").body


def test_an_action_needs_the_token_of_its_page(owner: Browser, served: Served) -> None:
    before = served.drain.retried
    for headers in ({}, {"X_Cachetier_CSRF": "wrong"}):
        answer = owner.post("/console/actions/retry", {}, **HX, **headers)
        assert answer.status == 403
    assert owner.get("/console/actions/none", **HX).status == 404
    assert owner.post("/console/actions/pin", {}, X_Cachetier_CSRF=owner.csrf).status == 400
    assert served.drain.retried == before


def test_the_token_of_a_page_is_the_one_that_its_scripts_send(owner: Browser) -> None:
    home = owner.get("/")
    assert f'{{"X-Cachetier-CSRF": "{csrf_in(home)}"}}'.encode() in home.body


def test_files_saved_by_path_are_of_their_run_and_listed_on_its_page() -> None:
    with serving() as served:
        with Client(served.unix_url) as client:
            for step in (16, 32):
                branch = f"trainer~epoch=1-step={step}.ckpt"
                client.put_shard(b"x", run=branch, step=step, name="f", rank=0, world_size=1)
                client.seal(branch, step, rank=0, world_size=1)
        browser = Browser(served)
        browser.sign_in(new_link(served))
        home = browser.get("/").body.decode()
        assert home.count('id="run-trainer') == 1
        page = browser.get("/console/runs/trainer").body.decode()
        assert "trainer/epoch=1-step=16.ckpt" in page
        assert "trainer/epoch=1-step=32.ckpt" in page
        assert "knows no step" not in page
