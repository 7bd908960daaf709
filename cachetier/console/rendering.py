"""Renders the console's templates, and knows its static files by their digests."""

from __future__ import annotations

import hashlib
import json
import mimetypes
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any
from urllib.parse import quote

from cachetier_client.identity.names import MOUNT_MARK
from cachetier_client.units import counted, shown_size, shown_span
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from cachetier.status.view import shown_path
from cachetier.visible import on_one_line

_FILES = Path(str(resources.files("cachetier.console")))
STATIC, RUNBOOKS = _FILES / "static", _FILES / "runbooks"

# Scripts and styles come from this service alone, and none of them from within a page.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
# htmx's defaults would add a style of its own, evaluate expressions, and keep pages one left.
_HTMX = {"includeIndicatorStyles": False, "allowEval": False, "historyCacheSize": 0}
_RUNBOOK = re.compile(r"docs/runbooks/([a-z-]+)\.md")
_LINK_ELSEWHERE = re.compile(r"\[([^\]]+)\]\((?![\w-]+\.md)[^)]*\)")


@dataclass(frozen=True, slots=True)
class StaticFile:
    body: bytes
    media_type: str
    etag: str


@cache
def static_files() -> Mapping[str, StaticFile]:
    """Return what the pages load, by path below ``/console/static/``."""
    found = {}
    for path in sorted(STATIC.rglob("*")):
        if path.suffix in (".js", ".css", ".svg"):
            body = path.read_bytes()
            kind = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
            etag = f'"{hashlib.sha256(body).hexdigest()[:16]}"'
            found[path.relative_to(STATIC).as_posix()] = StaticFile(body, kind, etag)
    return found


def static_url(name: str) -> str:
    """Return where a static file is; its address changes with it."""
    return f"/console/static/{name}?{static_files()[name].etag[1:9]}"


@cache
def runbooks() -> Mapping[str, Markup]:
    """Return the runbooks by their file names; a link to anything else is its words alone."""
    from markdown_it import MarkdownIt  # is loaded by who reads one

    form = MarkdownIt("commonmark", {"html": False}).enable("table")
    return {
        path.name: Markup(form.render(_LINK_ELSEWHERE.sub(r"\1", path.read_text("utf-8"))))
        for path in RUNBOOKS.glob("*.md")
    }


def run_url(run: str, step: int | None = None) -> str:
    base = f"/console/runs/{quote(run, safe='')}"
    return base if step is None else f"{base}/{step}"


def place_url(first: str | int, *more: int) -> str:
    """Return the page of what a cell of the view names: a run, a step, a mount or a node."""
    name = str(first)
    if "://" in name:
        return f"{name}/"
    if name.startswith(MOUNT_MARK):
        return f"/console/mounts/{quote(name.removeprefix(MOUNT_MARK), safe='')}"
    return run_url(name, *more)


def rendered(template: str, **values: Any) -> Markup:
    """Return a template with ``values``, every one of them escaped."""
    return Markup(_environment().get_template(template).render(**values))


def _sentence(text: str) -> Markup:
    """Return a sentence for people: its commands stand out, and its runbook is a link."""
    linked = _RUNBOOK.sub(r'<a href="/console/runbooks/\1.md">runbook</a>', str(escape(text)))
    return Markup(re.sub("`([^`]+)`", r"<code>\1</code>", linked))


def _clock(at: float) -> str:
    """Return an instant by the node's clock; of another day with its date."""
    then, today = time.localtime(at), time.localtime()
    form = "%H:%M:%S" if then[:3] == today[:3] else "%Y-%m-%d %H:%M:%S"
    return time.strftime(form, then)


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("cachetier.console"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    environment.filters |= {
        "size": shown_size,
        "span": shown_span,
        "clock": _clock,
        "on_one_line": on_one_line,
        "sentence": _sentence,
        "moment": lambda seconds: "-" if seconds is None else f"+{shown_span(seconds)}",
    }
    environment.globals |= {
        "static": static_url,
        "run_url": run_url,
        "place_url": place_url,
        "shown_path": shown_path,
        "counted": counted,
        "htmx_config": json.dumps(_HTMX),
    }
    return environment
