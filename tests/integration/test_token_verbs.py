"""Tokens from the command line, as the person who runs a node makes them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator

import pytest
from click.testing import CliRunner, Result

from cachetier.cli.app import app
from tests.integration.serving import Served, serving


@pytest.fixture(scope="module")
def node() -> Iterator[Served]:
    with serving(principal=[{"name": "team", "runs": ["t-*"], "role": "read"}]) as served:
        yield served


def run(node: Served, *words: str) -> Result:
    return CliRunner().invoke(app, [*words, "--url", node.unix_url])


def test_a_token_is_printed_alone_so_that_a_script_takes_it(node: Served) -> None:
    made = run(node, "token", "create", "team", "--expires", "1h")
    assert made.exit_code == 0
    assert made.stdout.startswith("ct_")
    assert "ends in 1.0 h" in made.stderr
    token = made.stdout.strip()

    headers = {"Authorization": f"Bearer {token}"}
    assert node.call("GET", "/v1/whoami", headers=headers).json["caller"]["principal"] == "team"
    listed = run(node, "token", "list")
    assert token.split("_")[1] in listed.stdout
    assert token not in listed.stdout


def test_a_token_is_listed_and_revoked(node: Served) -> None:
    made = json.loads(run(node, "token", "create", "team", "--expires", "never", "--json").stdout)
    assert made["expires_at"] is None
    listed = json.loads(run(node, "token", "list", "--json").stdout)["tokens"]
    assert made["id"] in [each["id"] for each in listed]

    assert "is revoked" in run(node, "token", "revoke", made["id"]).stdout

    headers = {"Authorization": f"Bearer {made['token']}"}
    assert node.call("GET", "/v1/whoami", headers=headers).status == 401


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("token", "create", "nobody"), "Known principals: scraper, team, owner"),
        (("token", "create", "team", "--expires", "soon"), "Write 12h, 30d or never"),
        (("token", "revoke", "00000000"), "`cachetier token list` shows their ids"),
    ],
)
def test_what_is_wrong_is_said_with_what_is_right(
    node: Served, words: tuple[str, ...], says: str
) -> None:
    refused = run(node, *words)
    assert refused.exit_code == 2
    assert says in refused.stderr


def test_whoami_says_who_one_is(node: Served) -> None:
    shown = run(node, "whoami")
    assert "principal  owner" in shown.stdout


def test_whoami_shows_what_is_used_of_a_share() -> None:
    tenant = {"name": "a", "uid": os.getuid(), "bytes": "1 MB", "shards": 4}
    with serving(principal=[tenant]) as served:
        served.put("x", b"x" * 100_000)
        shown = run(served, "whoami").stdout
    assert "size bytes  100 kB of 1.0 MB" in shown
    assert "shards      1 of 4" in shown


def test_whoami_is_a_document_too(node: Served) -> None:
    assert json.loads(run(node, "whoami", "--json").stdout)["caller"]["role"] == "admin"
