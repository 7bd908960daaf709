"""Two tenants on one node: neither touches, or learns of, what is the other's, at either door."""

from __future__ import annotations

import json
import os
import socket
import stat
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from cachetier_client import Client, ForbiddenError
from cachetier_client.io.digests import digest_of, to_hex
from cachetier_client.transport.wire import PROTOCOL, receive_frame, send_frame

from cachetier.access.principals import Caller
from cachetier.access.roles import OPERATIONS, Scope
from tests.integration.serving import Served, serving, shard_path

RUNS = {"a": "a-run", "b": "b-run"}


class Tenants:
    """A node with two tenants, each by a socket of its own and by a token."""

    def __init__(self, served: Served, folder: Path) -> None:
        self.served = served
        self.folder = folder
        made = served.service.operations.access.create_token
        self.tokens = {name: made(name, None)["token"] for name in RUNS}

    def socket(self, tenant: str) -> str:
        return f"{self.folder}/{tenant}.sock"

    def by_http(self, tenant: str, method: str, path: str, body: Any = None) -> Any:
        headers = {"Authorization": f"Bearer {self.tokens[tenant]}"}
        if body is None or isinstance(body, bytes):
            return self.served.call(method, path, body, headers)
        headers["Content-Type"] = "application/json"
        return self.served.call(method, path, json.dumps(body).encode(), headers)

    def audited(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.folder / "audit").read_text().splitlines()]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tenants]:
    folder = tmp_path_factory.mktemp("t")
    principals = [
        {"name": name, "runs": [f"{name}-*"], "socket": f"{folder}/{name}.sock"} for name in RUNS
    ]
    with serving(principal=principals, audit=str(folder / "audit")) as served:
        tenants = Tenants(served, folder)
        for name, run in RUNS.items():
            with Client(f"unix://{tenants.socket(name)}", run=run) as client:
                client.put_shard(name.encode() * 10, step=1, name="kept")
                client.seal(run, 1)
        yield tenants


def asked(node: Tenants, tenant: str, **fields: Any) -> dict[str, Any]:
    """Return what a request at a tenant's socket is answered."""
    body = fields.pop("body", b"")
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(node.socket(tenant))
        send_frame(connection, {"op": "hello", "protocol": PROTOCOL})
        receive_frame(connection)
        send_frame(connection, fields, body)
        return dict(receive_frame(connection).header)


ABOUT_A_RUN = sorted(name for name, need in OPERATIONS.items() if need.extent is Scope.RUN)
BY_HTTP = {"delete_shard", "restore_step"}
AT_THE_SOCKET = [name for name in ABOUT_A_RUN if name not in BY_HTTP and not name.startswith("s3_")]


@pytest.mark.parametrize("operation", AT_THE_SOCKET)
@pytest.mark.parametrize("run", ["b-run", "b-none", "a", "A-run"])
def test_no_operation_of_the_socket_touches_another_run(
    node: Tenants, operation: str, run: str
) -> None:
    whole = {"size_bytes": 1, "digest": to_hex(digest_of(b"x"))}
    ids = {"step": 1, "save_id": "s", "rank": 0, "world_size": 1, "name": "kept"}
    answer = asked(node, "a", op=operation, run=run, **ids, **whole, body=b"x")
    assert answer["error"]["code"] == "forbidden"
    assert answer["error"]["message"] == f"a may not touch run {run}"


BY_BROWSERS_AND_SCRAPERS = {"metrics", "drain_retry", "drain_rate"}
ABOUT_THE_NODE = sorted(name for name, need in OPERATIONS.items() if need.extent is Scope.NODE)


@pytest.mark.parametrize("operation", sorted({*ABOUT_THE_NODE} - BY_BROWSERS_AND_SCRAPERS))
def test_a_run_of_ones_own_makes_no_operation_of_the_node_ones_own(
    node: Tenants, operation: str
) -> None:
    answer = asked(node, "a", op=operation, run="a-run", principal="owner", id="00000000")
    assert answer["error"]["code"] == "forbidden"
    with serving(principal=[{"name": "a", "role": "admin", "runs": ["a-*"]}]) as served:
        access = served.service.operations.access
        caller = Caller(access._named["a"], uid=1)
        with pytest.raises(ForbiddenError, match="may touch only some"):
            access.check(caller, operation, "a-run")


@pytest.mark.parametrize("operation", AT_THE_SOCKET)
def test_a_put_of_ones_own_lends_its_run_to_no_other_operation(
    node: Tenants, operation: str
) -> None:
    ids = {"step": 2, "save_id": "s", "rank": 0, "world_size": 1, "name": "mine"}
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(node.socket("a"))
        send_frame(connection, {"op": "hello", "protocol": PROTOCOL})
        receive_frame(connection)
        send_frame(connection, {"op": "begin", "run": "a-run", "size_bytes": 900, **ids})
        begun = receive_frame(connection)
        assert begun.header["ok"]
        assert begun.descriptor is not None
        os.close(begun.descriptor)
        named = {"staging": begun.header["staging"], "run": "b-run", "step": 1, "name": "kept"}
        whole = {"size_bytes": 0, "digest": to_hex(0)}
        send_frame(connection, {"op": operation, **ids, **whole, **named})
        answer = receive_frame(connection).header
    assert answer["error"]["message"] == "a may not touch run b-run"


def test_what_is_refused_is_let_in_on_its_own_run(node: Tenants) -> None:
    """Or the refusals above would prove nothing."""
    answer = asked(node, "a", op="step", run="a-run", step=1)
    assert answer["ok"]


OTHERS = "/v1/runs/b-run/steps/1"
ROUTES = [
    ("GET", "/v1/runs/b-run/steps", None),
    ("GET", "/v1/runs/b-run/latest", None),
    ("GET", OTHERS, None),
    ("DELETE", OTHERS, None),
    ("GET", f"{OTHERS}/wait?timeout_seconds=0", None),
    ("POST", f"{OTHERS}/seal", {}),
    ("POST", f"{OTHERS}/abort", {}),
    ("PUT", f"{OTHERS}/pin", b""),
    ("DELETE", f"{OTHERS}/pin", None),
    ("PUT", f"{OTHERS}/shards/kept", b"mine now"),
    ("PUT", f"{OTHERS}/shards/new?overwrite=true&save_id=other", b"mine now"),
    ("GET", f"{OTHERS}/shards/kept", None),
    ("HEAD", f"{OTHERS}/shards/kept", None),
    ("DELETE", f"{OTHERS}/shards/kept", None),
    ("POST", "/v1/flush", {"run": "b-run", "timeout_seconds": 0}),
    ("POST", "/v1/flush", {"timeout_seconds": 0}),
    ("POST", "/v1/collect", {}),
    ("GET", "/v1/status", None),
    ("GET", "/metrics", None),
    ("GET", "/v1/tokens", None),
    ("POST", "/v1/tokens", {"principal": "b"}),
    ("DELETE", "/v1/tokens/00000000", None),
]


@pytest.mark.parametrize(("method", "path", "body"), ROUTES)
def test_no_route_touches_another_run_and_says_the_same_of_one_that_is_not(
    node: Tenants, method: str, path: str, body: Any
) -> None:
    answer = node.by_http("a", method, path, body)
    nowhere = path.replace("b-run", "b-none").replace("kept", "none")
    about_none = {**body, "run": "b-none"} if isinstance(body, dict) and "run" in body else body
    of_none = node.by_http("a", method, nowhere, about_none)
    assert answer.status == of_none.status == 403
    assert answer.body.replace(b"b-run", b"b-none").replace(b"kept", b"none") == of_none.body


def test_after_all_that_nothing_of_the_other_has_changed(node: Tenants) -> None:
    with Client(f"unix://{node.socket('b')}", run="b-run") as client:
        assert bytes(client.get_shard("b-run", 1, "kept")) == b"b" * 10
        assert client.latest("b-run", "local") is not None
    shards = node.by_http("b", "GET", OTHERS).json["step"]["shards"]
    assert [each["name"] for each in shards] == ["kept"]


@pytest.mark.parametrize("tenant", RUNS)
def test_lists_name_what_is_their_own(node: Tenants, tenant: str) -> None:
    run = RUNS[tenant]
    assert node.by_http(tenant, "PUT", f"/v1/runs/{run}/steps/1/pin", b"").status == 200
    assert node.by_http(tenant, "GET", "/v1/runs").json == {"runs": [run], "mounts": []}
    pins = node.by_http(tenant, "GET", "/v1/pins").json["pins"]
    assert [pin["run"] for pin in pins] == [run]
    assert asked(node, tenant, op="runs")["runs"] == [run]
    assert [pin["run"] for pin in asked(node, tenant, op="pins")["pins"]] == [run]


def test_a_guessed_client_id_takes_nobody_elses_incidents(node: Tenants) -> None:
    put = f"{OTHERS.replace('/1', '/2')}/shards/x?client_id=guessed"
    assert node.by_http("b", "PUT", put, b"x").status == 201
    incidents = node.served.service.operations.incidents
    assert incidents._listener("b/guessed") is not None
    assert node.by_http("a", "POST", "/v1/incidents", {"client_id": "guessed"}).json == {
        "incidents": []
    }
    assert incidents._listener("a/guessed") is None


def test_each_is_told_who_they_are(node: Tenants) -> None:
    by_token = node.by_http("a", "GET", "/v1/whoami").json["caller"]
    assert by_token["principal"] == "a"
    assert by_token["role"] == "write"
    assert by_token["runs"] == ["a-*"]
    assert by_token["address"] == "127.0.0.1"
    at_socket = asked(node, "a", op="whoami")["caller"]
    assert at_socket["principal"] == "a"
    assert at_socket["pid"] > 0


def test_the_owner_sees_both(node: Tenants) -> None:
    with Client(node.served.unix_url) as owner:
        assert set(owner.runs()) == set(RUNS.values())


def test_a_client_at_another_tenants_socket_hears_why(node: Tenants) -> None:
    with Client(f"unix://{node.socket('a')}", run="b-run", fallback="fail") as client:
        with pytest.raises(ForbiddenError, match="a may not touch run b-run"):
            client.put_shard(b"x", step=3, name="x")
        with pytest.raises(ForbiddenError):
            client.get_shard("b-run", 1, "kept")


def test_the_audit_log_has_who_did_what_and_who_was_refused(node: Tenants) -> None:
    node.by_http("b", "PUT", f"{OTHERS.replace('/1', '/4')}/shards/audited", b"x")
    node.by_http("a", "DELETE", f"{OTHERS.replace('/1', '/4')}/shards/audited")
    node.by_http("a", "PUT", f"{OTHERS}/shards/kept", b"mine now")
    node.by_http("a", "GET", "/v1/status")
    written = node.audited()
    done = next(each for each in written if each.get("name") == "audited")
    assert done["operation"] == "put"
    assert done["outcome"] == "ok"
    assert (done["principal"], done["run"], done["step"]) == ("b", "b-run", 4)
    assert done["address"] == "127.0.0.1"
    refused = [each for each in written if each.get("refused") and each["principal"] == "a"]
    assert {"delete_shard", "put", "status"} <= {each["operation"] for each in refused}
    assert not any(token in json.dumps(written) for token in node.tokens.values())


def test_a_large_put_is_audited_with_its_run(node: Tenants) -> None:
    with Client(f"unix://{node.socket('a')}", run="a-run") as client:
        client.put_shard(bytes(200_000), step=9, name="large")
        client.seal("a-run", 9)
    commits = [each for each in node.audited() if each["operation"] == "commit"]
    assert (commits[-1]["run"], commits[-1]["step"], commits[-1]["name"]) == ("a-run", 9, "large")


def test_a_revoked_token_opens_nothing_and_an_ended_one_neither(node: Tenants) -> None:
    access = node.served.service.operations.access
    made = access.create_token("a", None)
    headers = {"Authorization": f"Bearer {made['token']}"}
    assert node.served.call("GET", "/v1/runs", headers=headers).status == 200
    assert node.served.call("DELETE", f"/v1/tokens/{made['id']}").status == 200
    assert node.served.call("GET", "/v1/runs", headers=headers).status == 401


def test_roles_are_kept_apart() -> None:
    principals = [{"name": role, "role": role} for role in ("scrape", "read", "write", "admin")]
    expected = {
        ("GET", "/metrics"): {"scrape", "read", "write", "admin"},
        ("GET", "/v1/status"): {"read", "write", "admin"},
        ("PUT", shard_path("x")): {"write", "admin"},
        ("GET", "/v1/tokens"): {"admin"},
    }
    with serving(principal=principals) as served, ExitStack():
        create = served.service.operations.access.create_token
        tokens = {each["name"]: create(each["name"], None)["token"] for each in principals}
        for (method, path), roles in expected.items():
            body = b"x" if method == "PUT" else None
            allowed = {
                role
                for role, token in tokens.items()
                if served.call(method, path, body, {"Authorization": f"Bearer {token}"}).status
                in (200, 201)
            }
            assert allowed == roles, path
        served.call.bearer = {}
        assert served.call("GET", "/metrics").status == 401  # others are here: no open figures


def test_a_client_may_say_whose_service_it_must_be(
    node: Tenants, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CACHETIER_SERVICE_UID", str(os.getuid()))
    with Client(f"unix://{node.socket('a')}") as client:
        assert client.whoami()["principal"] == "a"
    monkeypatch.setenv("CACHETIER_SERVICE_UID", str(os.getuid() + 1))
    with Client(f"unix://{node.socket('a')}", run="a-run", fallback="s3") as client:
        with pytest.raises(ForbiddenError, match="is served by user"):
            client.put_shard(b"x", step=3, name="x")
    monkeypatch.setenv("CACHETIER_SERVICE_UID", "root")
    with pytest.raises(ValueError, match="is no user id"):
        Client(f"unix://{node.socket('a')}")


def test_what_only_an_admin_may_is_done_at_the_admin_socket_alone() -> None:
    folder = tempfile.mkdtemp(prefix="ct-")
    owner = {"name": "owner", "role": "admin", "socket": f"{folder}/admin"}
    with serving(principal=[owner]) as served:
        assert stat.S_IMODE(os.stat(f"{folder}/admin").st_mode) == 0o600
        with Client(served.unix_url) as rank:
            rank.put_shard(b"x", run="r", step=1, name="x")
            with pytest.raises(ForbiddenError, match="collect needs admin"):
                rank.collect()
        with Client(f"unix://{folder}/admin") as admin:
            assert admin.whoami()["role"] == "admin"
            assert admin.collect()["dry_run"]
    os.rmdir(folder)  # the socket went with the service


def test_the_first_start_makes_a_token_and_every_route_wants_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CACHETIER_TOKEN")
    cache_dir = tmp_path / "cache"
    for _start in range(2):
        with serving(cache_dir) as served:
            token = (cache_dir / "token").read_text().strip()
            assert stat.S_IMODE((cache_dir / "token").stat().st_mode) == 0o600
            served.call.bearer = {}
            assert served.call("GET", "/v1/runs").status == 401
            bearer = {"Authorization": f"Bearer {token}"}
            assert served.call("GET", "/v1/runs", headers=bearer).status == 200
            assert served.call("GET", "/livez").status == 200
