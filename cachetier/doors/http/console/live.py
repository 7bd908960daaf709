"""Live updates: server-sent events of the sections of a page that changed.

A stream asks once a second, sends what is not as it was, and ends with its session, with the
service, and with whoever reads it. It says nothing of its own: what it sends is rendered as the
page was.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping

from fastapi import APIRouter, Request
from starlette.responses import Response, StreamingResponse

from cachetier.console.history import LOOK_SECONDS
from cachetier.doors.http.browsers import CONSOLE_PATH, session_in
from cachetier.doors.http.console.sections import Live
from cachetier.doors.http.console.visit import Run, Step
from cachetier.doors.http.front import address_of, caller_of
from cachetier.doors.operations import Operations
from cachetier.errors import CachetierError

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
