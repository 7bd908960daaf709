"""What ranks say of the size of their values reaches the catalog, by every way in."""

from __future__ import annotations

import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cachetier_client import Client, InvalidRequestError

from cachetier.local.catalog import saves
from tests.integration.serving import Served, client_by, serving, shard_path
from tests.integration.test_cli import run

PUT: dict[str, Any] = {"run": "r", "step": 1, "save_id": "s"}
LARGE = array.array("f", bytes(400_000))


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serving() as service:
        yield service


@pytest.fixture(params=["unix", "http"])
def client(served: Served, request: pytest.FixtureRequest) -> Iterator[Client]:
    with client_by(request.param, served) as opened:
        yield opened


def known(served: Served, name: str) -> int:
    """Return what the catalog keeps."""
    shard = served.service.store.read(lambda sql: saves.visible_shard(sql, "r", 1, name))
    assert shard is not None
    return shard.facts.element_size


@pytest.mark.parametrize("count", [2, len(LARGE)])
def test_arrays_tell_it_by_themselves(served: Served, client: Client, count: int) -> None:
    client.put_shard(LARGE[:count], name="typed", **PUT)
    client.put_shard(LARGE[:count].tobytes(), name="untyped", **PUT)

    assert (known(served, "typed"), known(served, "untyped")) == (4, 0)


def test_streams_and_checkpoints_are_told(served: Served, client: Client) -> None:
    with client.open_shard("r", 1, "stream", save_id="s", element_size=8) as stream:
        stream.write(bytes(5 << 20))
    save = client.checkpoint("r", 1, save_id="s", rank=0, world_size=1)
    save.put(LARGE.tobytes(), "part", element_size=2)
    with save.open("part-stream", element_size=4) as stream:
        stream.write(LARGE)

    told = {name: known(served, name) for name in ("stream", "part", "part-stream")}
    assert told == {"stream": 8, "part": 2, "part-stream": 4}


def test_the_same_bytes_with_another_size_of_values_are_a_repeat(client: Client) -> None:
    first = client.put_shard(LARGE, name="repeated", **PUT)

    assert client.put_shard(LARGE, name="repeated", element_size=2, **PUT) == first


def test_a_stream_that_is_not_whole_values_leaves_nothing(served: Served, client: Client) -> None:
    before = served.service.store.space.used_bytes
    stream = client.open_shard("r", 1, "odd", save_id="s", element_size=8)
    stream.write(bytes((5 << 20) + 4))

    with pytest.raises(InvalidRequestError, match="whole elements"):
        stream.close()

    assert served.service.store.space.used_bytes == before


def test_the_command_line_and_the_header_tell_it(served: Served, tmp_path: Path) -> None:
    source = tmp_path / "weights"
    source.write_bytes(LARGE.tobytes())
    where = ["r", "1", "--save-id", "s"]
    put = run(served, "put", str(source), *where, "--name", "cli", "--element-size", "4")
    assert put.code == 0
    headers = {"Cachetier-Element-Size": "8"}
    path = f"{shard_path('http')}?save_id=s"
    assert served.call("PUT", path, LARGE.tobytes(), headers).status == 201

    assert (known(served, "cli"), known(served, "http")) == (4, 8)

    wrong = run(served, "put", str(source), *where, "--name", "x", "--element-size", "3")
    assert (wrong.code, "2, 4 and 8" in wrong.err) == (2, True)
