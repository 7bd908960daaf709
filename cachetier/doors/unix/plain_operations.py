"""The operations that need nothing but a request's header: to look at steps, to keep house."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict

from cachetier_client.transport.wire import Header

from cachetier.doors.operations import Operations
from cachetier.doors.unix import headers
from cachetier.model import names
from cachetier.model.levels import checked_level


def _runs(node: Operations, _header: Header) -> Header:
    return {"runs": node.checkpoints.runs()}


def _steps(node: Operations, header: Header) -> Header:
    level = header.get("level")
    run = names.checked_run(header.get("run"))
    views = node.checkpoints.steps(run, None if level is None else checked_level(level))
    return {"steps": [view.as_json() for view in views]}


def _latest(node: Operations, header: Header) -> Header:
    run = names.checked_run(header.get("run"))
    view = node.checkpoints.latest(run, headers.level_of(header))
    return {"step": None if view is None else view.as_json()}


def _step(node: Operations, header: Header) -> Header:
    view, shards = node.checkpoints.step(*headers.step_of(header))
    return {"step": {**view.as_json(), "shards": [asdict(shard) for shard in shards]}}


def _delete_step(node: Operations, header: Header) -> Header:
    node.refuse_when_stopping()
    return {"deleted_shards": node.checkpoints.delete_step(*headers.step_of(header))}


def _status(node: Operations, _header: Header) -> Header:
    return {"status": node.status()}


def _pin(node: Operations, header: Header) -> Header:
    node.refuse_when_stopping()
    return {"pin": asdict(node.pins.pin(*headers.step_of(header)))}


def _unpin(node: Operations, header: Header) -> Header:
    node.refuse_when_stopping()
    return {"was_pinned": node.pins.unpin(*headers.step_of(header))}


def _pins(node: Operations, _header: Header) -> Header:
    return {"pins": [asdict(pin) for pin in node.pins.all()]}


def _collect(node: Operations, header: Header) -> Header:
    node.refuse_when_stopping()
    older_than_seconds = headers.seconds_of(header, "older_than_seconds")
    dry_run = headers.flag_of(header, "dry_run", otherwise=True)
    found = node.garbage.collect(older_than_seconds, dry_run=dry_run)
    return {"collected": found.as_json()}


BY_NAME: dict[str, Callable[[Operations, Header], Header]] = {
    "runs": _runs,
    "steps": _steps,
    "latest": _latest,
    "step": _step,
    "delete_step": _delete_step,
    "status": _status,
    "pin": _pin,
    "unpin": _unpin,
    "pins": _pins,
    "collect": _collect,
}
