"""The routes of the console: whole pages, the parts of them that htmx asks for, static files."""

from __future__ import annotations

from typing import Any

from cachetier_client.identity import names
from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, RedirectResponse, Response

from cachetier.console.cluster import Cluster
from cachetier.console.rendering import run_url, runbooks, static_files
from cachetier.doors.http.browsers import CONSOLE_PATH, HOME_PATH
from cachetier.doors.http.console.actions import action_routes
from cachetier.doors.http.console.live import live_routes
from cachetier.doors.http.console.sections import FIRST_ROWS, PAGE_EVENTS, Live
from cachetier.doors.http.console.visit import missing_page, page, sees_node, visit_router
from cachetier.doors.http.front import caller_of
from cachetier.doors.http.problems import RouteError
from cachetier.doors.operations import Operations
from cachetier.errors import NotFoundError, RemoteError

OBJECTS_SHOWN = 200
RUN_HINT = "The page of the node lists the runs that it knows."
_RUN, _STEP = f"{CONSOLE_PATH}runs/{{run}}", f"{CONSOLE_PATH}runs/{{run}}/{{step}}"


def console_routes(node: Operations, live: Live, cluster: Cluster) -> list[APIRouter]:
    """Return all that is below ``/`` and ``/console/``."""
    return [
        _pages(node, live),
        _parts(live),
        _cluster_pages(node, live, cluster),
        live_routes(node, live),
        action_routes(node, live.pools),
        _static_routes(),
    ]


def _pages(node: Operations, live: Live) -> APIRouter:
    router = visit_router()

    @router.get(HOME_PATH)
    async def home(request: Request) -> Response:
        caller = caller_of(request.scope)
        sections, sees = await live.of_node(caller), sees_node(node.access, caller)
        return page(request, "node.html", sections=sections, sees_node=sees)

    @router.get(f"{CONSOLE_PATH}runs")
    async def look_up(run: str) -> Response:
        return RedirectResponse(run_url(names.checked_run(run)), 303)

    @router.get(_RUN)
    async def run_page(request: Request, run: str) -> Response:
        caller = caller_of(request.scope)
        sections = await live.of_run(caller, names.checked_run(run))
        if not await live.is_known(caller, run):
            raise NotFoundError(f"neither this node nor S3 has a run {run}", hint=RUN_HINT)
        return page(request, "run.html", sections=sections, run=run)

    @router.get(_STEP)
    async def step_page(request: Request, run: str, step: str) -> Response:
        caller, number = caller_of(request.scope), names.parsed_step(step)
        sections = await live.of_step(caller, names.checked_run(run), number)
        window, lines = await live.lines(caller, run, number, 0, FIRST_ROWS)
        what: dict[str, Any] = {"sections": sections, "run": run, "step": number}
        return page(request, "step.html", window=window, lines=lines, **what)

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

    return router


def _parts(live: Live) -> APIRouter:
    """Return what the scripts of the pages ask for."""
    router = visit_router()

    @router.get(f"{CONSOLE_PATH}history")
    async def history(request: Request) -> Response:
        live.node.access.check(caller_of(request.scope), "status", None)
        return JSONResponse(live.history.columns())

    @router.get(f"{CONSOLE_PATH}in-bucket/{{run}}")
    async def in_bucket(request: Request, run: str) -> Response:
        found, trouble = None, None
        try:
            found = await live.in_bucket(caller_of(request.scope), names.checked_run(run))
        except RemoteError as error:
            trouble = error.message
        return page(request, "in_bucket.html", steps=found, paths=(), trouble=trouble)

    @router.get(f"{_STEP}/lines")
    async def lines(
        request: Request, run: str, step: str, first: int = 0, rows: int = FIRST_ROWS
    ) -> Response:
        where = names.checked_run(run), names.parsed_step(step)
        window, found = await live.lines(caller_of(request.scope), *where, first, rows)
        return page(request, "lines.html", window=window, lines=found)

    @router.get(f"{_STEP}/shards/{{version}}")
    async def shard(request: Request, run: str, step: str, version: int) -> Response:
        where = names.checked_run(run), names.parsed_step(step)
        place = await live.shard(caller_of(request.scope), *where, version)
        return page(request, "shard.html", run=run, step=where[1], **place)

    return router


def _cluster_pages(node: Operations, live: Live, cluster: Cluster) -> APIRouter:
    router = visit_router()

    async def asked(request: Request, words: str) -> dict[str, Any]:
        node.access.check(caller_of(request.scope), "status", None)
        return {"words": words, **await live.pools.patient(cluster.shown, words)}

    @router.get(f"{CONSOLE_PATH}cluster")
    async def cluster_page(request: Request, words: str = "") -> Response:
        return page(request, "cluster.html", **await asked(request, words))

    @router.get(f"{CONSOLE_PATH}cluster/nodes")
    async def cluster_nodes(request: Request, words: str = "") -> Response:
        return page(request, "cluster_nodes.html", **await asked(request, words))

    return router


def _static_routes() -> APIRouter:
    router = APIRouter(include_in_schema=False)

    @router.get(f"{CONSOLE_PATH}static/{{name:path}}")
    async def static(request: Request, name: str) -> Response:
        found = static_files().get(name)
        if found is None:
            raise RouteError(f"the console has no file {name[:60]!r}")
        headers = {"ETag": found.etag, "Cache-Control": "no-cache"}
        if request.headers.get("if-none-match") == found.etag:
            return Response(status_code=304, headers=headers)
        return Response(found.body, headers=headers, media_type=found.media_type)

    return router
