"""The OpenAPI description of the one route that FastAPI does not serve."""

from __future__ import annotations

from typing import Any

from cachetier_client.bucket_format.stored import FACT_HEADERS, FACT_SCHEMAS
from fastapi import FastAPI
from pydantic import BaseModel

from cachetier.doors.http import schemas

PATH = "/v1/runs/{run}/steps/{step}/shards/{name}"
_BINARY = {"schema": {"type": "string", "format": "binary"}}


def describe_shards(app: FastAPI) -> None:
    """Add the shard route to ``app``'s OpenAPI description."""
    described = app.openapi

    def openapi() -> dict[str, Any]:
        schema = described()
        if PATH not in schema["paths"]:
            schema["paths"][PATH] = _path()
            parts = schema.setdefault("components", {}).setdefault("schemas", {})
            for model in (schemas.ReceiptModel, schemas.Problem):
                parts[model.__name__] = model.model_json_schema()
        return schema

    app.openapi = openapi  # type: ignore[method-assign]  # FastAPI documents this very way


def _path() -> dict[str, Any]:
    ids = [
        _parameter("run", "path", "string"),
        _parameter("step", "path", "integer"),
        {**_parameter("name", "path", "string"), "description": "May contain `/`."},
    ]
    return {
        "parameters": ids,
        "put": _put(),
        "get": {
            **_operation("get_shard", "The bytes of a shard, each block verified before it leaves"),
            "parameters": [
                _parameter("timeout_seconds", "query", "number"),
                {
                    **_parameter("restore", "query", "boolean"),
                    "description": "Bring a remote shard back whole, although a range is asked.",
                },
                _parameter("Range", "header", "string"),
                _parameter("If-None-Match", "header", "string"),
            ],
            "responses": {
                "200": {"description": "The shard", "content": _content(_BINARY)},
                "206": {"description": "A range of it", "content": _content(_BINARY)},
                "304": {"description": "The caller has it"},
                "416": _problem("No byte in the range"),
                "default": _problem("An error"),
            },
        },
        "head": {
            **_operation("head_shard", "Size, digest and source of a shard; nothing is fetched"),
            "responses": {
                "200": {"description": "It is there"},
                "default": {"description": "It is not"},
            },
        },
        "delete": {
            **_operation("delete_shard", "Remove a shard whose rank has not sealed"),
            "responses": {
                "204": {"description": "It is gone"},
                "default": _problem("An error"),
            },
        },
    }


def _put() -> dict[str, Any]:
    reference = _reference(schemas.ReceiptModel)
    return {
        **_operation("put_shard", "Put a shard; the answer is the promise that it is safe"),
        "parameters": [
            _parameter("rank", "query", "integer"),
            _parameter("world_size", "query", "integer"),
            _parameter("save_id", "query", "string"),
            _parameter("overwrite", "query", "boolean"),
            {
                **_parameter("ack", "query", "string"),
                "schema": {"type": "string", "enum": ["memory", "local", "replicated", "durable"]},
            },
            _parameter("timeout_seconds", "query", "number"),
            _parameter("client_id", "query", "string"),
            _parameter("Cachetier-Digest", "header", "string"),
            *(
                {**_parameter(FACT_HEADERS[name], "header", ""), "schema": schema}
                for name, schema in FACT_SCHEMAS.items()
            ),
        ],
        "requestBody": {"required": True, "content": _content(_BINARY)},
        "responses": {
            "201": {
                "description": "The receipt",
                "content": {"application/json": {"schema": reference}},
            },
            "default": _problem("An error; nothing was kept"),
        },
    }


def _operation(name: str, summary: str) -> dict[str, Any]:
    return {"operationId": name, "summary": summary, "tags": ["shards"]}


def _parameter(name: str, place: str, kind: str) -> dict[str, Any]:
    return {"name": name, "in": place, "required": place == "path", "schema": {"type": kind}}


def _content(described: dict[str, Any]) -> dict[str, Any]:
    return {"application/octet-stream": described}


def _reference(model: type[BaseModel]) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{model.__name__}"}


def _problem(description: str) -> dict[str, Any]:
    reference = _reference(schemas.Problem)
    return {
        "description": description,
        "content": {"application/problem+json": {"schema": reference}},
    }
