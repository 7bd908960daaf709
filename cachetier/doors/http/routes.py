"""The JSON routes: the same operations as the socket's, under the same names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import Any

from cachetier_client.identity import names
from cachetier_client.identity.names import SaveIds
from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from cachetier.doors.http import schemas
from cachetier.doors.http.admitted import admitted_router
from cachetier.doors.http.front import caller_of
from cachetier.doors.http.pools import Pools
from cachetier.doors.http.waiting import answered
from cachetier.doors.operations import Operations
from cachetier.errors import NotDurableError
from cachetier.model.levels import Level
from cachetier.steps.pending import Pending
from cachetier.steps.waits import Question
from cachetier.telemetry.metrics import CONTENT_TYPE

NotReady = Callable[[], str | None]


def looking_routes(node: Operations, pools: Pools) -> APIRouter:
    """Return the routes under ``/v1/runs`` that change nothing."""
    router = admitted_router(node.access, "checkpoints")
    checkpoints = node.checkpoints

    @router.get("/v1/runs")
    async def runs(request: Request) -> schemas.RunsModel:
        caller, found = caller_of(request.scope), await pools.quick(checkpoints.runs)
        seen = [run for run in found if caller.principal.sees(run)]
        return schemas.RunsModel(runs=seen, mounts=node.s3.seen_by(caller))

    @router.get(
        "/v1/runs/{run}/steps", response_model=schemas.Steps, response_model_exclude_unset=True
    )
    async def steps(
        run: str, level: schemas.LevelName | None = None, count_elsewhere: bool = False
    ) -> dict[str, Any]:
        what = partial(checkpoints.listed, run, _level(level), count_elsewhere=count_elsewhere)
        return await pools.patient(what)

    @router.get("/v1/runs/{run}/branches", response_model=schemas.Steps)
    async def branches(run: str, level: schemas.LevelName | None = None) -> dict[str, Any]:
        views = await pools.patient(checkpoints.branches, run, _level(level))
        return {"steps": [view.as_json() for view in views]}

    @router.get("/v1/runs/{run}/latest", response_model=schemas.Latest)
    async def latest(run: str, level: schemas.LevelName = "durable") -> dict[str, Any]:
        return (await pools.patient(checkpoints.newest, run, Level(level))).as_json()

    @router.get("/v1/runs/{run}/steps/{step}", response_model=schemas.OneStep)
    async def step(run: str, step: str) -> dict[str, Any]:
        view, shards = await pools.patient(checkpoints.step, run, names.parsed_step(step))
        return {"step": {**view.as_json(), "shards": [shard.as_json() for shard in shards]}}

    @router.get("/v1/runs/{run}/steps/{step}/wait")
    async def wait(
        request: Request,
        run: str,
        step: str,
        level: schemas.LevelName = "durable",
        name: str | None = None,
        timeout_seconds: schemas.Seconds = 60.0,
    ) -> schemas.Reached:
        wanted = Level(level)
        shard = None if name is None else names.checked_name(name)
        reached = checkpoints.level_reached(run, names.parsed_step(step), shard, wanted)
        age = await answered(node, request.scope, request.receive, reached, timeout_seconds)
        return schemas.Reached(level=level, age_seconds=age)

    return router


def changing_routes(node: Operations, pools: Pools) -> APIRouter:
    """Return the routes under ``/v1/runs`` that change a step."""
    router = admitted_router(node.access, "checkpoints")
    checkpoints = node.checkpoints

    @router.delete("/v1/runs/{run}/steps/{step}")
    async def delete_step(run: str, step: str) -> schemas.Deleted:
        node.refuse_when_stopping()
        deleted = await pools.patient(checkpoints.delete_step, run, names.parsed_step(step))
        return schemas.Deleted(deleted_shards=deleted)

    @router.post("/v1/runs/{run}/steps/{step}/restore")
    async def restore_step(
        request: Request, run: str, step: str, what: schemas.RestoreRequest
    ) -> schemas.ComingBack:
        node.refuse_when_stopping()
        wanted = run, names.parsed_step(step), what.ranks
        restored = await pools.patient(node.whole_steps.restored, *wanted)
        left = await answered(node, request.scope, request.receive, restored, what.timeout_seconds)
        return schemas.ComingBack(shards=left.shards, size_bytes=left.size_bytes)

    @router.post("/v1/runs/{run}/steps/{step}/seal")
    async def seal(run: str, step: str, who: schemas.SealRequest) -> schemas.Sealed:
        node.refuse_when_stopping()
        ids = _ids(run, step, who)
        sealed = await pools.quick(
            lambda: checkpoints.seal(ids, who.ranks_on_node, follows=who.follows)
        )
        return schemas.Sealed(sealed_ranks=sealed)

    @router.post("/v1/runs/{run}/steps/{step}/abort")
    async def abort_rank(run: str, step: str, who: schemas.SealRequest) -> dict[str, Any]:
        await pools.quick(checkpoints.abort_rank, _ids(run, step, who))
        return {}

    return router


def keeping_routes(node: Operations, pools: Pools) -> APIRouter:
    """Return the routes that say what stays on the node, and what goes."""
    router = admitted_router(node.access, "operations")

    @router.get("/v1/pins", response_model=schemas.PinsModel)
    async def pins(request: Request) -> dict[str, Any]:
        sees = caller_of(request.scope).principal.sees
        found = await pools.quick(node.checkpoints.pins)
        return {"pins": [asdict(pin) for pin in found if sees(pin.run)]}

    @router.put("/v1/runs/{run}/steps/{step}/pin", response_model=schemas.Pinned)
    async def pin(run: str, step: str) -> dict[str, Any]:
        node.refuse_when_stopping()
        pinned = await pools.quick(node.checkpoints.pin, run, names.parsed_step(step))
        return {"pin": asdict(pinned)}

    @router.delete("/v1/runs/{run}/steps/{step}/pin")
    async def unpin(run: str, step: str) -> schemas.Unpinned:
        node.refuse_when_stopping()
        was = await pools.quick(node.checkpoints.unpin, run, names.parsed_step(step))
        return schemas.Unpinned(was_pinned=was)

    @router.post("/v1/collect")
    async def collect(what: schemas.CollectRequest) -> schemas.Collected:
        node.refuse_when_stopping()
        found = await pools.patient(
            lambda: node.garbage.collect(what.older_than_seconds, dry_run=what.dry_run)
        )
        return schemas.Collected(collected=schemas.CollectionModel(**found.as_json()))

    @router.post("/v1/leave")
    async def leave(request: Request, what: schemas.LeaveRequest) -> schemas.Flushed:
        drained = await pools.patient(node.leave, what.stay)
        return await _durable(node, request, drained, what.timeout_seconds)

    return router


def client_routes(node: Operations, pools: Pools) -> APIRouter:
    """Return the routes by which a client says what it does, and hears what it should know."""
    router = admitted_router(node.access, "operations")

    @router.get("/v1/runs/{run}/unflushed")
    async def unflushed(run: str) -> dict[str, Any]:
        return await pools.patient(node.checkpoints.unflushed.listed, {"run": run})

    @router.post("/v1/phase")
    async def phase(request: Request, hint: schemas.PhaseRequest) -> dict[str, Any]:
        client_id = caller_of(request.scope).own(hint.client_id)
        node.phases.report(client_id, busy=hint.busy)
        return {}

    @router.post("/v1/fallback")
    async def fallback(past: schemas.FallbackRequest) -> dict[str, Any]:
        node.fell_back(past.shards, past.size_bytes)
        return {}

    @router.post("/v1/incidents", response_model=schemas.IncidentsModel)
    async def incidents(request: Request, who: schemas.IncidentsRequest) -> dict[str, Any]:
        client_id = caller_of(request.scope).own(who.client_id)
        found = await pools.quick(lambda: node.incidents.take(client_id, clear=who.clear))
        return {"incidents": [asdict(incident) for incident in found]}

    return router


def operation_routes(node: Operations, pools: Pools, exposition: Callable[[], bytes]) -> APIRouter:
    """Return the routes about the node as a whole."""
    router = admitted_router(node.access, "operations")

    @router.get("/v1/status")
    async def status() -> dict[str, Any]:
        return await pools.look(node.status)

    @router.get("/v1/whoami")
    async def whoami(request: Request) -> dict[str, Any]:
        caller = caller_of(request.scope)
        return {"caller": await pools.quick(node.access.described, caller)}

    @router.get("/metrics")
    async def metrics() -> Response:
        return Response(await pools.look(exposition), media_type=CONTENT_TYPE)

    return router


def token_routes(node: Operations, pools: Pools) -> APIRouter:
    """Return the routes of tokens, which only an admin may use, and of links, which all may."""
    router, tokens = admitted_router(node.access, "tokens"), node.access.tokens

    @router.post("/v1/links")
    async def link_create(request: Request) -> dict[str, Any]:
        base = f"{request.url.scheme}://{request.url.netloc}"  # where the caller reached this door
        return node.access.sessions.create_link(caller_of(request.scope), base)

    @router.get("/v1/tokens")
    async def token_list() -> dict[str, Any]:
        return {"tokens": [each.as_json() for each in await pools.quick(tokens.list)]}

    @router.post("/v1/tokens")
    async def token_create(wanted: schemas.TokenRequest) -> dict[str, Any]:
        return await pools.quick(node.access.create_token, wanted.principal, wanted.expires_seconds)

    @router.delete("/v1/tokens/{token_id}")
    async def token_revoke(token_id: str) -> dict[str, Any]:
        await pools.quick(tokens.revoke, token_id)
        return {}

    return router


def own_routes(node: Operations, pools: Pools, not_ready: NotReady) -> APIRouter:
    """Return the routes that judge for themselves: by the body, or nobody at all."""
    router = APIRouter(tags=["operations"])

    @router.post("/v1/flush")
    async def flush(request: Request, what: schemas.FlushRequest) -> schemas.Flushed:
        run = None if what.run is None else names.checked_run(what.run)
        with node.access.doing(caller_of(request.scope), "flush", run, step=what.step):
            return await flushed(request, what, run)

    async def flushed(
        request: Request, what: schemas.FlushRequest, run: str | None
    ) -> schemas.Flushed:
        drained = await pools.quick(node.checkpoints.drained, run, what.step)
        seconds = what.timeout_seconds
        return await _durable(node, request, drained, seconds, run=run, step=what.step)

    @router.post("/v1/forget")
    async def forget(request: Request, what: schemas.ForgetRequest) -> dict[str, Any]:
        node.refuse_when_stopping()
        with node.access.doing(caller_of(request.scope), "forget", what.run, node=what.node):
            return await pools.patient(node.checkpoints.unflushed.forgotten, what.model_dump())

    @router.get("/livez")
    async def lives() -> Response:
        return livez()

    @router.get("/readyz")
    async def ready() -> Response:
        return readyz(not_ready)

    return router


async def _durable(
    node: Operations, request: Request, drained: Question[Pending], seconds: float, **of: Any
) -> schemas.Flushed:
    """Answer once nothing is left.

    Raises:
        NotDurableError: Something is after ``seconds``; the message names it.
    """
    left = await answered(node, request.scope, request.receive, drained, seconds)
    if left:
        raise NotDurableError(
            f"after {seconds:g} s these are not durable: {left}",
            pending_shards=left.shards,
            pending_bytes=left.size_bytes,
            **of,
        )
    return schemas.Flushed(**left.as_json())


def livez() -> Response:
    return JSONResponse({"state": "live"})


def readyz(not_ready: NotReady) -> Response:
    reason = not_ready()
    if reason is None:
        return JSONResponse({"state": "ready"})
    return JSONResponse({"state": "not ready", "reason": reason}, status_code=503)


def _level(name: schemas.LevelName | None) -> Level | None:
    return None if name is None else Level(name)


def _ids(run: str, step: str, who: schemas.SealRequest) -> SaveIds:
    return SaveIds(
        run=run,
        step=names.parsed_step(step),
        save_id=who.save_id,
        rank=who.rank,
        world_size=who.world_size,
        overwrite=who.overwrite,
    )
