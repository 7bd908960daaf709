"""The process's own client, and the functions that call it."""

from __future__ import annotations

import inspect
import subprocess
import sys
from collections.abc import Iterator

import cachetier_client
import pytest
from cachetier_client import default

from tests.client.fake_service import FakeService


@pytest.fixture(autouse=True)
def no_default(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(default, "_default", None)
    yield
    if default._default is not None:
        default._default.close()


def test_the_environment_says_where_and_which_run(
    service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CACHETIER_URL", service.url)
    monkeypatch.setenv("CACHETIER_RUN", "a-run")

    receipt = cachetier_client.put_shard(b"weights", step=7, name="model")

    assert receipt.run == "a-run"
    assert bytes(cachetier_client.get_shard("a-run", 7, "model")) == b"weights"
    assert bytes(cachetier_client.get_shard(None, 7, "model")) == b"weights"
    assert service.connections == 1


def test_one_client_is_made_and_a_closed_one_replaced() -> None:
    first = cachetier_client.default_client()

    assert cachetier_client.default_client() is first
    assert first.url == "unix:///run/cachetier/cachetier.sock"
    first.close()
    assert cachetier_client.default_client() is not first


@pytest.mark.parametrize(
    "name", ["put_shard", "checkpoint", "seal", "wait", "flush", "steps", "latest", "get_shard"]
)
def test_a_function_takes_what_the_clients_method_takes_and_says_the_same(name: str) -> None:
    function, method = getattr(cachetier_client, name), getattr(cachetier_client.Client, name)
    taken = list(inspect.signature(method).parameters.values())

    assert list(inspect.signature(function).parameters.values()) == taken[1:]
    assert function.__doc__ == method.__doc__


def test_importing_the_client_imports_nothing_heavy() -> None:
    program = (
        "import sys, cachetier_client; "
        "print(sorted({name.partition('.')[0] for name in sys.modules} "
        "& {'torch', 'numpy', 'boto3', 'pydantic', 'cachetier', 'asyncio', 'awscrt'}))"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )

    assert ended.stdout == "[]\n"


def test_each_public_name_is_found_at_first_use_and_no_other_is() -> None:
    program = (
        "import sys, cachetier_client\n"
        "before = 'cachetier_client.client' in sys.modules\n"
        "from cachetier_client import *\n"
        "named = {name: globals()[name].__name__ for name in cachetier_client.__all__}\n"
        "print(before, named == {name: name for name in named}, len(named))\n"
        "cachetier_client.Clint"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60
    )

    assert ended.stdout == f"False True {len(cachetier_client.__all__)}\n"
    assert "module 'cachetier_client' has no attribute 'Clint'" in ended.stderr
