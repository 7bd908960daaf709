"""The JSON routes, who may call them, and how errors look."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator

import pytest

from cachetier.doors.http.door import HttpDoor
from cachetier.errors import ConfigError
from cachetier.local.catalog import saves, shards
from cachetier.local.catalog.rows import IncidentRecord
from tests.integration.serving import Served, serving, shard_path

STEP = "/v1/runs/r/steps/1"
NO_STEP = {"step": None, "newer_local": None, "newer_remote": None, "unflushed": None}


@pytest.fixture
def served() -> Iterator[Served]:
    with serving() as served:
        yield served


@pytest.fixture(scope="module")
def shared() -> Iterator[Served]:
    with serving() as served:
        yield served


def test_a_step_goes_from_open_to_sealed(served: Served) -> None:
    served.put("a", b"a", rank=0, world_size=2, save_id="s")
    served.put("b", b"b", rank=1, world_size=2, save_id="s")
    assert served.call("GET", "/v1/runs").json == {"runs": ["r"], "mounts": []}
    step = served.call("GET", STEP).json["step"]
    assert (step["state"], step["levels"], step["world_size"]) == ("open", [], 2)
    assert [shard["name"] for shard in step["shards"]] == ["a", "b"]
    assert served.call("GET", "/v1/runs/r/latest?level=local").json == NO_STEP

    part = {"world_size": 2, "save_id": "s", "ranks_on_node": 2}
    assert served.call.post(f"{STEP}/seal", {**part, "rank": 0}).json == {"sealed_ranks": [0]}
    assert served.call("GET", "/v1/runs/r/latest?level=local").json == NO_STEP
    assert served.call.post(f"{STEP}/seal", {**part, "rank": 1}).json == {"sealed_ranks": [0, 1]}
    latest = served.call("GET", "/v1/runs/r/latest?level=local").json["step"]
    assert (latest["step"], latest["state"], latest["shards"]) == (1, "sealed", 2)
    assert served.call("GET", "/v1/runs/r/latest").json == {
        "step": None,
        "newer_local": 1,
        "newer_remote": None,
        "unflushed": [],
    }
    listed = served.call("GET", "/v1/runs/r/steps?level=local").json["steps"]
    assert [each["step"] for each in listed] == [1]


def test_tokens_are_read_again_while_others_are_answered(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = served.service.operations.access.tokens
    looks, goes_on, due = threading.Event(), threading.Event(), [True]

    def hang() -> None:
        looks.set()
        assert goes_on.wait(60)

    monkeypatch.setattr(tokens, "is_due", lambda: bool(due) and due.pop())
    monkeypatch.setattr(tokens, "look", hang)
    first: list[int] = []
    asking = threading.Thread(target=lambda: first.append(served.call("GET", "/v1/runs").status))
    asking.start()
    assert looks.wait(60)
    assert served.call("GET", "/v1/runs").status == 200
    assert first == []
    goes_on.set()
    asking.join(60)
    assert first == [200]


def test_abort_takes_back_what_a_rank_put(served: Served) -> None:
    served.put("a", b"a")
    assert served.call.post(f"{STEP}/abort", {}).json == {}
    assert served.call("GET", shard_path("a")).code == "not_found"
    assert served.holds_nothing()


def test_a_step_is_deleted_whole(served: Served) -> None:
    served.put("a", b"a" * 100_000)
    served.call.post(f"{STEP}/seal", {})
    assert served.call("DELETE", STEP).json == {"deleted_shards": 1}
    assert served.holds_nothing()
    assert served.call("GET", STEP).code == "not_found"
    assert served.call("DELETE", "/v1/runs/r/steps/2").code == "not_found"


def test_wait_answers_when_the_level_is_reached(served: Served) -> None:
    served.put("a", b"a")
    served.call.post(f"{STEP}/seal", {})
    local = served.call("GET", f"{STEP}/wait?level=local")
    assert local.json["level"] == "local"
    assert 0 <= local.json["age_seconds"] < 60
    late = served.call("GET", f"{STEP}/wait?timeout_seconds=0.1")
    assert (late.status, late.code) == (504, "not_durable")

    answers = []
    path = f"{STEP}/wait?name=a&timeout_seconds=20"
    waiting = threading.Thread(target=lambda: answers.append(served.call("GET", path)))
    waiting.start()
    time.sleep(0.1)
    assert not answers
    served.drained("a", b"a")
    waiting.join()
    assert answers[0].json["level"] == "durable"


def test_wait_for_nothing_known_is_not_found(shared: Served) -> None:
    assert shared.call("GET", "/v1/runs/r/steps/9/wait").code == "not_found"


def test_flush_tells_what_remains_at_its_deadline(served: Served) -> None:
    empty = served.call.post("/v1/flush", {})
    assert empty.json == {"pending_shards": 0, "pending_bytes": 0, "pending_steps": []}
    served.put("a", b"abc")
    late = served.call.post("/v1/flush", {"run": "r", "step": 1, "timeout_seconds": 0.1})
    assert (late.status, late.code) == (504, "not_durable")
    assert (late.json["pending_shards"], late.json["pending_bytes"]) == (1, 3)
    assert "1 shard, 3 B of steps r/1" in late.json["detail"]
    assert served.call.post("/v1/flush", {"step": 1}).code == "invalid_request"
    assert ("r", 1) in served.drain.hurried


def test_incidents_reach_the_client_they_concern(served: Served) -> None:
    quiet = served.put("a", b"a", client_id="mine")
    assert "cachetier-incidents" not in quiet.headers
    _damage(served, "a")
    told = served.put("b", b"b", client_id="mine")
    assert told.headers["cachetier-incidents"] == "1"
    mine, other = {"client_id": "mine"}, {"client_id": "other"}
    kept = served.call.post("/v1/incidents", {**mine, "clear": False}).json["incidents"]
    assert [(each["code"], each["name"]) for each in kept] == [("integrity", "a")]
    assert served.call.post("/v1/incidents", mine).json["incidents"] == kept
    assert served.call.post("/v1/incidents", mine).json["incidents"] == []
    assert served.call.post("/v1/incidents", other).json["incidents"] == []


def _damage(served: Served, name: str) -> None:

    store = served.service.store
    shard = store.read(lambda sql: saves.visible_shard(sql, "r", 1, name))
    assert shard is not None
    incident = IncidentRecord("integrity", "it is damaged", "Save it again.", "r", 1, name, 0)
    store.write(shards.record_damage, shard.version, incident, time.time())
    served.service.operations.incidents.refresh()


STATUS_KEYS = {
    *("shared_uid", "principals", "lent_bytes", "lent_most"),
    *("version", "store_id", "pid", "state", "reason", "started_at", "uptime_seconds"),
    *("memory_bytes", "kept_for_peers_bytes"),
    *("capacity_bytes", "used_bytes", "dirty_bytes", "clean_bytes", "waiting_bytes"),
    *("evictable_bytes", "lent_bytes", "lent_most"),
    *("dirty_shards", "oldest_dirty_seconds", "quarantined_shards", "fenced", "when_full", "disk"),
    *(
        "remotes",
        "drain",
        "pending",
        "pending_steps",
        "socket",
        "http",
        "connections",
        "sqlite_version",
    ),
    *("warnings", "local_only", "unwanted", "pinned"),
    *(
        "exposure",
        "mounts",
        "s3",
        "exposure_objective_seconds",
        "incomplete",
        "eta_seconds",
        "waiting_markers",
        "flow",
        "restore",
    ),
}


def test_status_is_a_stable_object(served: Served) -> None:
    served.put("a", b"a" * 100_000)
    status = served.call("GET", "/v1/status").json
    assert set(status) == STATUS_KEYS
    assert (status["state"], status["dirty_bytes"], status["dirty_shards"]) == ("ready", 100_000, 1)
    assert status["pending"][0]["step"] == 1
    assert status["pending"][0]["eta_seconds"] is None
    assert set(status["local_only"]) == {
        *("durable_every", "supersede", "keep_local", "local_every"),
        *("steps", "shards", "size_bytes", "declared_steps"),
    }
    assert status["remotes"][0]["url"] == "s3://bucket/p"
    assert set(status["disk"]) == {
        *("directory", "filesystem", "free_bytes", "direct_io", "leases", "attributes")
    }


PROBLEMS = [
    ("GET", "/nothing", 404, "not_found"),
    ("GET", "/v1/runs/r/nothing", 404, "not_found"),
    ("GET", "/v1/runs/r/steps/1/nothing", 404, "not_found"),
    ("GET", "/v1/runs/r/steps/", 400, "invalid_name"),
    ("GET", "/docs", 404, "not_found"),
    ("POST", "/v1/runs", 405, "invalid_request"),
    ("PATCH", shard_path("x"), 405, "invalid_request"),
    ("GET", "/v1/flush", 405, "invalid_request"),
    ("GET", "/v1/runs/r/latest?level=best", 422, "invalid_request"),
    ("GET", f"{STEP}/wait?timeout_seconds=nan", 422, "invalid_request"),
    ("GET", f"{STEP}/wait?timeout_seconds=soon", 422, "invalid_request"),
    ("GET", f"{STEP}/wait?name=..", 400, "invalid_name"),
    ("GET", "/v1/incidents", 405, "invalid_request"),
    ("DELETE", "/v1/runs/r/steps%2F1", 400, "invalid_name"),
    ("DELETE", "/v1/runs/r/steps/1%2Fpin", 400, "invalid_name"),
]


@pytest.mark.parametrize(("method", "path", "status", "code"), PROBLEMS)
def test_every_error_is_a_problem(
    shared: Served, method: str, path: str, status: int, code: str
) -> None:
    answer = shared.call(method, path)
    assert (answer.status, answer.code) == (status, code)


BAD_DOCUMENTS = [
    (b"", 422),
    (b"{", 422),
    (b"[]", 422),
    (b'{"rank": -1}', 422),
    (b'{"rank": "0"}', 422),
    (b'{"rank": 1}', 400),
    (b'{"save_id": ".."}', 400),
    (b'{"rnak": 0}', 422),
    (b"\xff\xfe", 422),
    (b"[" * 100_000, 422),
]


@pytest.mark.parametrize(("document", "status"), BAD_DOCUMENTS)
def test_a_bad_document_is_a_problem(shared: Served, document: bytes, status: int) -> None:
    kind = {"Content-Type": "application/json"}
    answer = shared.call("POST", f"{STEP}/seal", document, kind)
    assert answer.status == status
    assert answer.code in ("invalid_request", "invalid_name")


def test_a_form_is_not_taken_for_json(shared: Served) -> None:
    kind = {"Content-Type": "application/x-www-form-urlencoded"}
    answer = shared.call("POST", "/v1/flush", b"{}", kind)
    assert (answer.status, answer.code) == (415, "invalid_request")


def test_a_defect_tells_nothing_of_the_insides(
    served: Served, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_arguments: object) -> None:
        raise RuntimeError("secret of the insides")

    monkeypatch.setattr(served.service.operations.restore, "look", broken)
    monkeypatch.setattr(served.service.operations.checkpoints, "runs", broken)
    for path in (shard_path("x"), "/v1/runs"):
        answer = served.call("GET", path)
        assert (answer.status, answer.code) == (500, "internal")
        assert b"secret" not in answer.body
    assert "secret of the insides" in caplog.text


def test_the_description_names_every_route(shared: Served) -> None:
    described = shared.call("GET", "/openapi.json").json
    assert set(described["paths"]) == {
        "/v1/runs",
        "/v1/runs/{run}/steps",
        "/v1/runs/{run}/branches",
        "/v1/runs/{run}/latest",
        "/v1/runs/{run}/unflushed",
        "/v1/runs/{run}/steps/{step}",
        "/v1/runs/{run}/steps/{step}/restore",
        "/v1/runs/{run}/steps/{step}/seal",
        "/v1/runs/{run}/steps/{step}/abort",
        "/v1/runs/{run}/steps/{step}/wait",
        "/v1/runs/{run}/steps/{step}/shards/{name}",
        "/v1/runs/{run}/steps/{step}/pin",
        "/v1/pins",
        "/v1/collect",
        "/v1/status",
        "/v1/flush",
        "/v1/incidents",
        "/v1/whoami",
        "/v1/links",
        "/v1/tokens",
        "/v1/tokens/{token_id}",
        "/v1/phase",
        "/v1/fallback",
        "/v1/forget",
        "/v1/leave",
        "/livez",
        "/readyz",
        "/metrics",
    }
    text = json.dumps(described)
    for reference in set(_references(described)):
        name = reference.removeprefix("#/components/schemas/")
        assert name in described["components"]["schemas"], text[:100]


def _references(node: object) -> Iterator[str]:
    if isinstance(node, dict):
        for key, value in node.items():
            if key == "$ref":
                yield str(value)
            yield from _references(value)
    elif isinstance(node, list):
        for each in node:
            yield from _references(each)


# --- who may call --------------------------------------------------------------------------------

CANARY = "canary-token-of-a-door"


@pytest.fixture(scope="module")
def locked() -> Iterator[Served]:
    with serving(token=CANARY) as served:
        served.call.bearer = {}
        yield served


LOCKED = ["/v1/runs", "/v1/status", "/openapi.json", "/v1/whoami", shard_path("x"), "/nothing"]


@pytest.mark.parametrize("path", LOCKED)
@pytest.mark.parametrize(
    "given", [None, CANARY, "Bearer", "Bearer wrong", f"Bearer {CANARY}2", "Basic eA=="]
)
def test_without_the_token_nothing_is_revealed(
    locked: Served, path: str, given: str | None
) -> None:
    headers = {"Authorization": given} if given is not None else {}
    answer = locked.call("GET", path, headers=headers)
    assert (answer.status, answer.code) == (401, "forbidden")
    assert answer.headers["www-authenticate"] == "Bearer"
    assert b"canary" not in answer.body


def test_without_the_token_nothing_is_changed(locked: Served) -> None:
    assert locked.call("PUT", shard_path("x"), b"x" * 1000).status == 401
    assert locked.call("DELETE", STEP).status == 401
    assert locked.holds_nothing()


def test_with_the_token_everything_works(locked: Served) -> None:
    headers = {"Authorization": f"Bearer {CANARY}"}
    for path in LOCKED[:4]:
        assert locked.call("GET", path, headers=headers).status == 200
    assert locked.call("PUT", shard_path("x"), b"x", headers).status == 201
    assert locked.call("DELETE", shard_path("x"), headers=headers).status == 204


@pytest.mark.parametrize("path", ["/livez", "/readyz"])
def test_health_is_open(locked: Served, path: str) -> None:
    assert locked.call("GET", path).status == 200


def test_metrics_need_no_token_on_loopback_but_what_is_wrong_is_refused(locked: Served) -> None:
    assert locked.call("GET", "/metrics").status == 200
    assert locked.call("GET", "/metrics", headers={"Authorization": "Bearer wrong"}).status == 401


def test_an_address_in_use_is_a_clear_error(shared: Served) -> None:
    door = HttpDoor(("127.0.0.1", shared.call.port), shared.service.operations)
    with pytest.raises(ConfigError) as caught:
        door.start()
    assert "in use" in caught.value.message
