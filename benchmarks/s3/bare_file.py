"""The least that an ASGI app does to send a file; its path is in the environment."""

from __future__ import annotations

import os

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse
from starlette.routing import Route

VARIABLE = "BARE_FILE"


async def send(_: Request) -> FileResponse:
    return FileResponse(os.environ[VARIABLE])


app = Starlette(routes=[Route("/", send)])
