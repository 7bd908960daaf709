"""A node that was replaced: a step comes back by the verbs, and then S3 may go."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from cachetier_client import Client
from cachetier_client.errors import IntegrityError
from click.testing import CliRunner

from cachetier.cli.app import app
from cachetier.testing.moto_server import moto_server
from cachetier.testing.s3_endpoint import S3Endpoint
from cachetier.testing.troubles import ALWAYS, Fault, Trouble
from tests.fakes.bodies import noise
from tests.integration.two_remotes import RUN, SECONDS, Node, Site, running, site, until

LARGE, SMALL = noise(9_000_000), b"a few bytes"
AWAY = Fault(Trouble.CLOSED, None, ALWAYS)


@pytest.fixture(scope="module")
def endpoint() -> Iterator[S3Endpoint]:
    with moto_server() as endpoint:
        yield endpoint


@pytest.fixture
def place(endpoint: S3Endpoint, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    for name, value in endpoint.environment().items():
        monkeypatch.setenv(name, value)
    with site(endpoint) as made:
        yield made


@pytest.fixture
def replaced(place: Site) -> Iterator[Node]:
    """A node that knows nothing, after one that saved steps 1 to 3 of two ranks and was lost."""
    settings = place.settings(replicas={})
    with running(settings) as lost:
        for step in (1, 2, 3):
            for rank in (0, 1):
                part: dict[str, Any] = {"rank": rank, "world_size": 2, "save_id": "s"}
                with lost.client.checkpoint(RUN, step, **part) as checkpoint:
                    checkpoint.put(LARGE, f"large-{rank}")
                    checkpoint.put(SMALL, f"small-{rank}")
            lost.client.wait(RUN, step, "durable", SECONDS)
    place.forget_node()
    with running(settings) as node:
        yield node


def remove(place: Site, step: int, name: str) -> None:
    """Remove a shard's object from the bucket, as nobody should."""
    manifest = place.manifest(place.far_bucket, step)
    assert manifest is not None
    keys = [
        key
        for key in place.keys(place.far_bucket)
        if key.startswith(f"p/{RUN}/{manifest.location}/")
    ]
    (key,) = [key for key in keys if key.endswith(name)]
    place.store(place.far_bucket).delete(key)


class Outcome:
    """What a verb did."""

    def __init__(self, node: Node, *arguments: str, http: bool = False) -> None:
        url = node.service.url if http else f"unix://{node.service.socket}"
        result = CliRunner().invoke(app, list(arguments), env={"CACHETIER_URL": url})
        assert result.exception is None or isinstance(result.exception, SystemExit), result
        self.code, self.out, self.err = result.exit_code, result.stdout, result.stderr

    @property
    def json(self) -> Any:
        return json.loads(self.out)


def test_ls_counts_what_only_the_bucket_has(place: Site, replaced: Node) -> None:
    listed = Outcome(replaced, "ls", RUN)
    assert listed.code == 0
    assert f"3 more steps of {RUN} in S3: `cachetier ls {RUN} --level durable`" in listed.err
    assert Outcome(replaced, "ls", RUN, "--json").json == {"steps": [], "elsewhere": 3}

    replaced.client.get_shard(RUN, 3, "small-0")
    replaced.client.delete_step(RUN, 1)
    until(lambda: Outcome(replaced, "ls", RUN, "--json").json["elsewhere"] == 1)
    assert f"1 more step of {RUN} in S3" in Outcome(replaced, "ls", RUN).err

    place.far.troubles.add(AWAY)
    until(lambda: Outcome(replaced, "ls", RUN, "--json").json["elsewhere"] is None)
    assert "does not answer" in Outcome(replaced, "ls", RUN).err
    assert place.far.troubles.fired[Trouble.CLOSED] > 0


@pytest.mark.parametrize("http", [False, True], ids=["socket", "http"])
def test_a_restored_step_is_local_with_its_ranks_whoever_is_asked(
    place: Site, replaced: Node, http: bool
) -> None:
    brought = Outcome(replaced, "restore", RUN, "--json", http=http)
    size_bytes = 2 * (len(LARGE) + len(SMALL))
    assert brought.code == 0, brought.err
    what = {"run": RUN, "step": 3, "brought_shards": 4, "brought_bytes": size_bytes}
    assert brought.json == what
    assert "all was here already" in Outcome(replaced, "restore", RUN, "3", http=http).out

    (shown,) = replaced.client.steps(RUN)
    assert (shown.step, shown.ranks, shown.levels) == (
        3,
        (0, 1),
        ("local", "replicated", "durable"),
    )
    assert "local, durable" in Outcome(replaced, "ls", RUN).out
    assert "All of it is here as well" in Outcome(replaced, "status", RUN, "3").out

    place.far.troubles.add(AWAY)
    newest = replaced.client.latest(RUN, "local")
    assert newest is not None
    assert newest.step == 3
    for rank in (0, 1):
        assert bytes(replaced.client.get_shard(RUN, 3, f"large-{rank}")) == LARGE


def test_what_some_ranks_put_counts_as_local_with_these(replaced: Node) -> None:
    assert replaced.client.restore_step(RUN, 2, ranks=[1]).shards == 0
    (shown,) = replaced.client.steps(RUN)
    assert (shown.ranks, "local" in shown.levels) == ((1,), True)
    explained = Outcome(replaced, "status", RUN, "2").out
    assert "All of rank 1 of 2 is here as well, so their restore is local." in explained


def test_a_step_whose_bytes_made_room_is_local_no_longer_and_comes_back(
    replaced: Node, caplog: pytest.LogCaptureFixture
) -> None:
    assert replaced.client.restore_step(RUN, 3).shards == 0
    assert replaced.evict_all() == 4
    (shown,) = replaced.client.steps(RUN)
    assert shown.levels == ("replicated", "durable")
    with caplog.at_level("WARNING"):
        assert replaced.client.latest(RUN, "local") is None
    assert "step 3, which is newer, is at a remote alone" in caplog.text
    assert replaced.client.wait(RUN, 3, "local", 1.0).level == "local"
    assert replaced.client.restore_step(RUN, 3).shards == 0
    assert replaced.client.latest(RUN, "local") is not None


def test_a_restore_tells_what_is_still_to_come_and_what_kept_it_away(
    place: Site, replaced: Node
) -> None:
    assert replaced.client.restore_step(RUN, 3, timeout_seconds=0.0).shards == 4
    late = Outcome(replaced, "restore", RUN, "2", "--timeout", "0s")
    assert (late.code, "not restored after 0 s" in late.err) == (4, True)
    assert replaced.client.restore_step(RUN, 2).shards == 0

    remove(place, 1, "large-1")
    with pytest.raises(IntegrityError, match="large-1"):
        replaced.client.restore_step(RUN, 1)
    assert Outcome(replaced, "restore", RUN, "99").code == 1
    assert Outcome(replaced, "restore", "nobody").code == 1
    assert Outcome(replaced, "restore", RUN, "1", "--ranks", "x").code == 2
    assert Outcome(replaced, "restore", RUN, "1", "--ranks", "7").code == 2


def test_a_step_goes_into_a_folder(replaced: Node, place: Site) -> None:
    into = place.scratch / "out"
    assert Outcome(replaced, "restore", RUN, "2", "--to", str(into)).code == 0
    assert (into / "large-1").read_bytes() == LARGE
    assert Outcome(replaced, "restore", RUN, "2", "--to", str(into)).code == 2
    assert Outcome(replaced, "restore", RUN, "2", "--to", "x", "--ranks", "0").code == 2


@pytest.mark.parametrize("http", [False, True], ids=["socket", "http"])
def test_verify_reads_all_and_keeps_nothing(replaced: Node, http: bool) -> None:
    replaced.client.restore_step(RUN, 3, ranks=[0])
    used_bytes = replaced.service.store.space.used_bytes
    checked = Outcome(replaced, "verify", RUN, "3", "--json", http=http)
    assert checked.code == 0, checked.err
    assert (checked.json["shards"], checked.json["local_shards"], checked.json["bad"]) == (4, 2, [])
    assert replaced.service.store.space.used_bytes == used_bytes
    said = Outcome(replaced, "verify", RUN, "3").out
    assert "4 shards, 18.0 MB (2 on this node, 2 in S3): all are good" in said
    assert Outcome(replaced, "verify", RUN).out == said  # the newest, as `restore` takes it


def test_verify_names_each_shard_without_a_good_copy(place: Site, replaced: Node) -> None:
    remove(place, 2, "large-0")
    bad = Outcome(replaced, "verify", RUN, "2", "--json")
    assert (bad.code, [each["name"] for each in bad.json["bad"]]) == (5, ["large-0"])
    assert "large-0 (rank 0):" in Outcome(replaced, "verify", RUN, "2").err
    assert Outcome(replaced, "verify", RUN, "9").code == 1


def test_a_flush_says_so_where_a_step_waits_for_a_rank_that_is_lost(replaced: Node) -> None:
    part: dict[str, Any] = {"rank": 0, "world_size": 2, "save_id": "half"}
    with replaced.client.checkpoint(RUN, 4, **part) as checkpoint:
        checkpoint.put(SMALL, "small-0")

    half = Outcome(replaced, "flush", RUN, "4")

    assert half.code == 0  # this node has done its part
    assert f"All that this node has of {RUN}/4 is in S3. It is not durable" in half.out
    whole = Outcome(replaced, "flush", RUN, "3")
    assert whole.out == "Everything asked for is durable.\n"


def test_a_client_hears_how_much_is_elsewhere(replaced: Node) -> None:
    assert replaced.client.steps_elsewhere(RUN) == 3
    with Client(replaced.service.url) as client:
        assert client.steps_elsewhere(RUN) == 3
