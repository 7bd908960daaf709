"""Map operations to HTTP requests and their answers to results; no sockets here.

Source: docs/http.md.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from email.message import Message
from typing import Any
from urllib.parse import quote, urlencode

from cachetier_client.errors import (
    BusyError,
    CachetierClientError,
    ForbiddenError,
    InvalidRequestError,
    NotFoundError,
    error_from,
)
from cachetier_client.transport.base import ConnectionLostError, PutRequest, Reply

DIGEST_HEADER = "Cachetier-Digest"
INCIDENTS_HEADER = "Cachetier-Incidents"
_PROBLEM = "application/problem+json"
_SHOWN_CHARACTERS = 200
_TIMEOUT = "timeout_seconds"
_PART = ("rank", "world_size", "save_id", "overwrite")


@dataclass(frozen=True, slots=True)
class Request:
    """A request but for its body: the JSON document is one, a shard's bytes are sent apart."""

    method: str
    target: str
    document: bytes | None = None


def request_for(op: str, fields: Mapping[str, Any]) -> Request:
    """Return the request for an operation of the protocol.

    Raises:
        InvalidRequestError: The HTTP door does not have it.
    """
    run = f"/v1/runs/{_quoted(fields.get('run'))}"
    step = f"{run}/steps/{fields.get('step')}"
    simple = {
        "runs": Request("GET", "/v1/runs"),
        "steps": Request("GET", _with_query(f"{run}/steps", fields, "level", "count_elsewhere")),
        "branches": Request("GET", _with_query(f"{run}/branches", fields, "level")),
        "latest": Request("GET", _with_query(f"{run}/latest", fields, "level")),
        "unflushed": Request("GET", f"{run}/unflushed"),
        "step": Request("GET", step),
        "restore_step": Request("POST", f"{step}/restore", _document(fields, "ranks", _TIMEOUT)),
        "delete_step": Request("DELETE", step),
        "pins": Request("GET", "/v1/pins"),
        "pin": Request("PUT", f"{step}/pin"),
        "unpin": Request("DELETE", f"{step}/pin"),
        "collect": Request(
            "POST", "/v1/collect", _document(fields, "dry_run", "older_than_seconds")
        ),
        "forget": Request("POST", "/v1/forget", _document(fields, "node", "run")),
        "wait": Request("GET", _with_query(f"{step}/wait", fields, "level", "name", _TIMEOUT)),
        "status": Request("GET", "/v1/status"),
        "incidents": Request("POST", "/v1/incidents", _document(fields, "client_id", "clear")),
        "whoami": Request("GET", "/v1/whoami"),
        "link_create": Request("POST", "/v1/links", b"{}"),
        "token_create": Request(
            "POST", "/v1/tokens", _document(fields, "principal", "expires_seconds")
        ),
        "token_list": Request("GET", "/v1/tokens"),
        "token_revoke": Request("DELETE", f"/v1/tokens/{_quoted(fields.get('id'))}"),
        "flush": Request("POST", "/v1/flush", _document(fields, "run", "step", _TIMEOUT)),
        "leave": Request("POST", "/v1/leave", _document(fields, "stay", _TIMEOUT)),
        "phase": Request("POST", "/v1/phase", _document(fields, "client_id", "busy")),
        "fallback": Request("POST", "/v1/fallback", _document(fields, "shards", "size_bytes")),
        "seal": Request(
            "POST", f"{step}/seal", _document(fields, *_PART, "ranks_on_node", "follows")
        ),
        "abort_rank": Request("POST", f"{step}/abort", _document(fields, *_PART)),
    }
    if op not in simple:
        raise InvalidRequestError(
            f"the HTTP door has no {op!r}", hint="Use the service's socket: unix:///..."
        )
    return simple[op]


def shard_target(run: str, step: int, name: str) -> str:
    """Return the path of a shard."""
    return f"/v1/runs/{_quoted(run)}/steps/{step}/shards/{'/'.join(map(_quoted, name.split('/')))}"


def put_target(request: PutRequest, client_id: str, timeout_seconds: float) -> str:
    """Return the path and query that store a shard."""
    fields = {**request.fields(), "client_id": client_id, _TIMEOUT: timeout_seconds}
    query = ("rank", "world_size", "save_id", "overwrite", "ack", _TIMEOUT, "client_id")
    target = shard_target(request.ids.run, request.ids.step, request.name)
    return _with_query(target, fields, *query)


def reply_of(op: str, body: bytes) -> Reply:
    """Read the answer to a request that went well, in the socket protocol's words.

    Raises:
        ValueError, TypeError: It is no JSON object.
    """
    if not body.strip():
        return {}
    document = dict(json.loads(body))
    return {"status": document} if op == "status" else document


def error_of(
    status: int, reason: str, headers: Message, body: bytes
) -> CachetierClientError | ConnectionLostError:
    """Return the error that an answer from 300 up means."""
    problem = _problem_of(body)
    if problem is not None:
        if status == 503 and problem["code"] == "backpressure":  # too many requests, not no room
            problem = {**problem, "code": BusyError.code}
        error = error_from(problem)
        retry_after = headers.get("Retry-After")
        if retry_after is not None and retry_after.isdigit():
            error.retry_after_seconds = float(retry_after)
        return error
    if b"<Error>" in body[:_SHOWN_CHARACTERS] or "x-amz-request-id" in headers:
        return InvalidRequestError(
            f"an S3 server answers there ({status}), and not a cachetier service",
            hint="Set CACHETIER_URL to the node's own door: unix:///path/to/cachetier.sock, or "
            "http://host:7070. Where the bucket is, the service alone knows: `remote.endpoint`.",
        )
    shown = body[:_SHOWN_CHARACTERS].decode("utf-8", "replace").strip()
    message = f"the service answered {status} {reason}: {shown!r}"
    if status == 404 and headers.get("Content-Type") == _PROBLEM:  # to HEAD, which has no body
        return NotFoundError("the service does not know this shard")
    if status in (401, 403):
        return ForbiddenError(message)
    if status in (502, 503, 504):  # something in between, which cannot reach the service
        return ConnectionLostError(message)
    if status < 400:
        return InvalidRequestError(
            f"{message}; redirects are not followed",
            hint="Set CACHETIER_URL to the service itself.",
        )
    return CachetierClientError(
        message, hint="Check that CACHETIER_URL is the address of a cachetier service."
    )


def _problem_of(body: bytes) -> dict[str, Any] | None:
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) and "code" in document else None


def _quoted(segment: object) -> str:
    return quote(str(segment), safe="")


def _document(fields: Mapping[str, Any], *names: str) -> bytes:
    return json.dumps({name: fields.get(name) for name in names}).encode()


def _with_query(path: str, fields: Mapping[str, Any], *names: str) -> str:
    given = {name: fields[name] for name in names if fields.get(name) is not None}
    plain = {k: str(v).lower() if isinstance(v, bool) else str(v) for k, v in given.items()}
    return f"{path}?{urlencode(plain)}" if plain else path
