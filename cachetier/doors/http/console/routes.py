"""The routes of the console: whole pages, the parts of them that htmx asks for, static files."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, RedirectResponse, Response, StreamingResponse

from cachetier.console.cluster import Cluster
from cachetier.console.history import LOOK_SECONDS
from cachetier.console.rendering import run_url, runbooks, static_files
from cachetier.doors.http.browsers import CONSOLE_PATH, HOME_PATH, session_in
from cachetier.doors.http.console.actions import add_actions
from cachetier.doors.http.console.sections import FIRST_ROWS, PAGE_EVENTS, Live
from cachetier.doors.http.console.visit import (
    Run,
    Step,
    missing_page,
    page,
    sees_node,
    visit_router,
)
from cachetier.doors.http.front import address_of, caller_of
from cachetier.doors.http.problems import RouteError
from cachetier.doors.operations import Operations
from cachetier.errors import CachetierError, NotFoundError

OBJECTS_SHOWN = 200
RUN_HINT = "The page of the node lists the runs that it knows."
_RUN, _STEP = f"{CONSOLE_PATH}runs/{{run}}", f"{CONSOLE_PATH}runs/{{run}}/{{step}}"


def console_routes(node: Operations, live: Live, cluster: Cluster) -> list[APIRouter]:
    """Return all that is below ``/`` and ``/console/``."""
    router, for_all = visit_router(), APIRouter(include_in_schema=False)
    _add_pages(router, node, live)
    _add_parts(router, live)
    _add_cluster(router, node, live, cluster)
    add_live(router, node, live)
    add_actions(router, node, live.pools)
    _add_static(for_all)
    return [router, for_all]


def _add_pages(router: APIRouter, node: Operations, live: Live) -> None:
    @router.get(HOME_PATH)
    async def home(request: Request) -> Response:
        caller = caller_of(request.scope)
        sections, sees = await live.of_node(caller), sees_node(caller)
        return page(request, "node.html", sections=sections, sees_node=sees)

    @router.get(f"{CONSOLE_PATH}runs")
    async def look_up(run: Run) -> Response:
        return RedirectResponse(run_url(run), 303)

    @router.get(_RUN)
    async def run_page(request: Request, run: Run) -> Response:
        caller = caller_of(request.scope)
        sections = await live.of_run(caller, run)
        if not await live.is_known(caller, run):
            raise NotFoundError(f"neither this node nor S3 has a run {run}", hint=RUN_HINT)
        return page(request, "run.html", sections=sections, run=run)

    @router.get(_STEP)
    async def step_page(request: Request, run: Run, step: Step) -> Response:
        caller = caller_of(request.scope)
        sections = await live.of_step(caller, run, step)
        shown: dict[str, Any] = await live.lines(caller, run, step, 0, FIRST_ROWS)
        return page(request, "step.html", sections=sections, run=run, step=step, **shown)

    @router.get(f"{CONSOLE_PATH}mounts/{{name}}")
    async def mount_page(
        request: Request, name: str, prefix: str = "", after: str = ""
    ) -> Response:
        wish = {"run": name, "prefix": prefix, "after": after, "limit": OBJECTS_SHOWN}
        with node.access.doing(caller_of(request.scope), "objects", name):
            found = await live.pools.patient(node.s3.listed, wish)
        return page(request, "mount.html", name=name, prefix=prefix, **found)

    @router.get(f"{CONSOLE_PATH}events")
    async def events_page(
        request: Request, words: str = "", before: int = 0, grave: bool = False
    ) -> Response:
        found = live.events(caller_of(request.scope), words, before, grave=grave)
        shown = found[:PAGE_EVENTS]
        older = shown[-1].number if len(found) > len(shown) else 0
        asked: dict[str, Any] = {"words": words, "grave": grave}
        return page(request, "all_events.html", events=shown, older=older, **asked)

    @router.get(f"{CONSOLE_PATH}runbooks/{{name}}")
    async def runbook(request: Request, name: str) -> Response:
        text = runbooks().get(name)
        if text is None:
            return missing_page(request)
        return page(request, "runbook.html", name=name.removesuffix(".md"), text=text)


def _add_parts(router: APIRouter, live: Live) -> None:
    """Add what the scripts of the pages ask for."""

    @router.get(f"{CONSOLE_PATH}history")
    async def history(request: Request) -> Response:
        live.node.access.check(caller_of(request.scope), "status", None)
        return JSONResponse(live.history.columns())

    @router.get(f"{CONSOLE_PATH}in-bucket/{{run}}")
    async def in_bucket(request: Request, run: Run) -> Response:
        found, trouble = await live.in_bucket(caller_of(request.scope), run)
        return page(request, "in_bucket.html", steps=found, paths=(), trouble=trouble)

    @router.get(f"{_STEP}/lines")
    async def lines(
        request: Request, run: Run, step: Step, first: int = 0, rows: int = FIRST_ROWS
    ) -> Response:
        shown: dict[str, Any] = await live.lines(caller_of(request.scope), run, step, first, rows)
        return page(request, "lines.html", **shown)

    @router.get(f"{_STEP}/shards/{{version}}")
    async def shard(request: Request, run: Run, step: Step, version: int) -> Response:
        place = await live.shard(caller_of(request.scope), run, step, version)
        return page(request, "shard.html", run=run, step=step, **place)


def _add_cluster(router: APIRouter, node: Operations, live: Live, cluster: Cluster) -> None:
    async def asked(request: Request, words: str) -> dict[str, Any]:
        node.access.check(caller_of(request.scope), "status", None)
        return {"words": words, **await live.pools.patient(cluster.shown, words)}

    @router.get(f"{CONSOLE_PATH}cluster")
    async def cluster_page(request: Request, words: str = "") -> Response:
        return page(request, "cluster.html", **await asked(request, words))

    @router.get(f"{CONSOLE_PATH}cluster/nodes")
    async def cluster_nodes(request: Request, words: str = "") -> Response:
        return page(request, "cluster_nodes.html", **await asked(request, words))


def _add_static(router: APIRouter) -> None:
    @router.get(f"{CONSOLE_PATH}static/{{name:path}}")
    async def static(request: Request, name: str) -> Response:
        found = static_files().get(name)
        if found is None:
            raise RouteError(f"the console has no file {name[:60]!r}")
        headers = {"ETag": found.etag, "Cache-Control": "no-cache"}
        if request.headers.get("if-none-match") == found.etag:
            return Response(status_code=304, headers=headers)
        return Response(found.body, headers=headers, media_type=found.media_type)


# --- live -----------------------------------------------------------------------------------------

STOP_LOOKS = 5  # in each span between two updates: a service that stops does not wait for us
RETRY_MS = 1000  # in which a browser that was cut off asks again
QUIET_ROUNDS = 15  # after which a stream without news says that it lives


def add_live(router: APIRouter, node: Operations, live: Live) -> None:
    """Add the stream of each page."""

    @router.get(f"{CONSOLE_PATH}live")
    async def of_page(
        request: Request, run: Run | None = None, step: Step | None = None
    ) -> Response:
        stream = _events(request, node, live, run, step)
        return StreamingResponse(stream, media_type="text/event-stream")


async def _events(
    request: Request, node: Operations, live: Live, run: str | None, step: int | None
) -> AsyncIterator[str]:
    known: dict[str, str] = {}
    quiet = 0
    yield f"retry: {RETRY_MS}\n\n"
    while await _goes_on(request, node):
        try:
            news: Mapping[str, str] = await live.of_page(caller_of(request.scope), run, step)
        except CachetierError as error:
            news = {"trouble": error.message}
        changed = {name: text for name, text in news.items() if known.get(name) != text}
        known.update(changed)
        quiet = 0 if changed else quiet + 1
        if changed or quiet % QUIET_ROUNDS == 0:
            yield "".join(_event(name, text) for name, text in changed.items()) or ": quiet\n\n"
        for _ in range(STOP_LOOKS):
            await asyncio.sleep(LOOK_SECONDS / STOP_LOOKS)
            if not await _goes_on(request, node):
                return


async def _goes_on(request: Request, node: Operations) -> bool:
    """Return whether the reader is there, still signed in, and the service does not stop.

    Who watches uses the session, so that it does not end for having rested.
    """
    secret, address = session_in(request.headers), address_of(request.scope)
    if await request.is_disconnected() or node.access.sessions.find(secret, address) is None:
        return False
    try:
        node.refuse_when_stopping()
    except CachetierError:
        return False
    return True


def _event(name: str, text: str) -> str:
    lines = "".join(f"data: {line}\n" for line in text.splitlines())
    return f"event: {name}\n{lines}\n"
