"""The console's actions, for admins: each is confirmed first and written to the audit log."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from cachetier_client.identity import names
from cachetier_client.units import counted, shown_size
from fastapi import APIRouter, Request
from starlette.responses import Response

from cachetier.doors.http.browsers import CONSOLE_PATH
from cachetier.doors.http.console.visit import is_admin, page
from cachetier.doors.http.front import caller_of
from cachetier.doors.http.pools import Pools
from cachetier.doors.http.problems import RouteError
from cachetier.doors.http.queries import Query
from cachetier.doors.operations import Operations
from cachetier.errors import ForbiddenError, InvalidRequestError
from cachetier.model.bandwidth import parsed_rate
from cachetier.number_lists import parsed_numbers, shown_numbers
from cachetier.steps.pending import Pending


@dataclass(frozen=True, slots=True)
class Action:
    """One action: the operation that it is to roles and audit log, and how a person is asked.

    ``about``: ``step``, ``node``, or ``either``. ``typed``: the step's number has to be typed to go
    on. ``field``: what else may be typed, and how that looks.
    """

    operation: str
    title: str
    text: str
    button: str
    about: str = "step"
    typed: bool = False
    grave: bool = False
    field: tuple[str, str] | None = None


ACTIONS: Mapping[str, Action] = {
    "flush": Action(
        "flush",
        "Flush now?",
        "The drain brings it to S3 before everything else, also where a policy keeps it here or a "
        "window pauses. Training is not held up.",
        "Flush",
        about="either",
    ),
    "restore": Action(
        "restore_step",
        "Restore this step?",
        "Shards that are not on this node are fetched from the nearest copy, each block "
        "verified, and stay here: jobs that start on this node read them from its disk.",
        "Restore",
        field=("Ranks (none named: all)", "0-7"),
    ),
    "pin": Action(
        "pin", "Pin this step?", "Its bytes stay on this node, and no call deletes it.", "Pin"
    ),
    "unpin": Action("unpin", "Unpin this step?", "It may be evicted again.", "Unpin"),
    "delete": Action(
        "delete_step",
        "Delete this step?",
        "It goes from this node at once, and from S3 and every replica as soon as the drain gets "
        "to it. Nobody can bring it back.",
        "Delete",
        typed=True,
        grave=True,
    ),
    "retry": Action(
        "drain_retry",
        "Try again now?",
        "Tries again at once after a failure. While S3 is away or refuses this node, a "
        "probe goes out every thirty seconds as before.",
        "Retry",
        about="node",
    ),
    "rate": Action(
        "drain_rate",
        "Limit the drain?",
        "It sends no more than this to S3 until the service starts again. Empty: what the settings "
        "say.",
        "Limit the drain",
        about="node",
        field=("At most", "200 MB/s"),
    ),
}


@dataclass(frozen=True, slots=True)
class Wish:
    """An action that a person asked for, checked: its step and its value."""

    run: str | None = None
    step: int | None = None
    value: str = ""

    @property
    def where(self) -> tuple[str, int]:
        return self.run or "", self.step or 0


def add_actions(router: APIRouter, node: Operations, pools: Pools) -> None:
    """Add the question and the answer of each action."""
    does = _actions(node)

    @router.get(f"{CONSOLE_PATH}actions/{{name}}")
    async def ask(request: Request, name: str) -> Response:
        action, wish = _asked(request, name, request.scope["query_string"])
        current = await pools.quick(_current, node, name, wish)
        return page(request, "confirm.html", name=name, action=action, wish=wish, current=current)

    @router.post(f"{CONSOLE_PATH}actions/{{name}}")
    async def act(request: Request, name: str) -> Response:
        action, wish = _asked(request, name, await request.body())
        if action.typed and wish.value != str(wish.step):
            raise InvalidRequestError(
                f"the number of the step was not typed to confirm: {wish.step}",
                hint="Nothing was done. Type the step's number to confirm that you mean this step.",
            )
        node.refuse_when_stopping()
        what = {} if wish.step is None else {"step": wish.step}
        with node.access.doing(caller_of(request.scope), action.operation, wish.run, **what):
            answer = await pools.patient(does[name], wish)
        return page(request, "done.html", action=action, answer=answer)


def _current(node: Operations, name: str, wish: Wish) -> str:
    """Return what stands in the field of an action before a person types."""
    if name == "rate":
        limit = node.steer.rate_limit()
        return f"{shown_size(limit)}/s" if limit else ""
    if name == "restore":  # the ranks of this node, where it has been the step's before
        here = node.checkpoints.progress(*wish.where)
        return shown_numbers([each.rank for each in here.ranks]) if here is not None else ""
    return ""


def _asked(request: Request, name: str, fields: bytes) -> tuple[Action, Wish]:
    action = ACTIONS.get(name)
    if action is None:
        raise RouteError(f"there is no action {name[:60]!r}")
    caller = caller_of(request.scope)
    principal = caller.principal
    if not is_admin(caller):
        raise ForbiddenError(
            f"{principal.name} has the role {principal.role}; only admins may act in the console",
            hint="Run `cachetier console` with an admin's token, or do it with the command line.",
        )
    query = Query(fields, ("run", "step", "value"))
    run, step = query.optional("run") or None, query.optional("step") or None
    wish = Wish(
        run=names.checked_run(run) if run is not None else None,
        step=names.parsed_step(step) if step is not None else None,
        value=query.text("value", "").strip(),
    )
    if action.about == "step" and (wish.run is None or wish.step is None):
        raise InvalidRequestError("the action names no step")
    return action, wish


def _actions(node: Operations) -> Mapping[str, Callable[[Wish], str]]:
    steps = node.checkpoints

    def retry(_wish: Wish) -> str:
        node.steer.retry()
        return "The drain tries again now."

    return {
        "flush": lambda wish: _left(steps.flush(wish.run, wish.step, 0.0)),
        "restore": lambda wish: _restore(node, wish),
        "pin": lambda wish: f"Pinned: {shown_size(steps.pin(*wish.where).local_bytes)} stay here.",
        "unpin": lambda wish: (
            f"It {'is not pinned any more' if steps.unpin(*wish.where) else 'was not pinned'}."
        ),
        "delete": lambda wish: (
            f"Deleted: {counted(steps.delete_step(*wish.where), 'shard')} here; what S3 has of it "
            "goes next."
        ),
        "retry": retry,
        "rate": lambda wish: _limit_rate(node, wish),
    }


def _restore(node: Operations, wish: Wish) -> str:
    try:
        ranks = parsed_numbers(wish.value, "ranks")
    except ValueError as error:
        raise InvalidRequestError(str(error), hint="Nothing was done.") from None
    coming = node.whole_steps.begin(*wish.where, ranks)
    if not coming.shards:
        return "All of it is here already."
    shards, size = counted(coming.shards, "shard"), shown_size(coming.size_bytes)
    return f"It comes back now: {shards}, {size}. The step's page shows how far it is."


def _limit_rate(node: Operations, wish: Wish) -> str:
    try:
        limit = parsed_rate(wish.value) if wish.value else None
    except ValueError as error:
        raise InvalidRequestError(str(error), hint="Nothing was changed.") from None
    if limit == 0:
        raise InvalidRequestError(
            "a limit of 0 would never drain anything",
            hint="Nothing was changed. For a pause at a time of day give `max_rate` a window.",
        )
    node.steer.limit_rate(limit)
    return f"At most {shown_size(limit)}/s." if limit else "No limit but the settings'."


def _left(pending: Pending) -> str:
    if not pending:
        return "Everything is durable already."
    shards, size = counted(pending.shards, "shard"), shown_size(pending.size_bytes)
    return f"It goes first now: {shards}, {size} left."
