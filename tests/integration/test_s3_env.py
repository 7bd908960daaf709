"""``cachetier s3 env``: one line of shell, and what it says when there is no door to use."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
from botocore.config import Config
from botocore.exceptions import ClientError
from botocore.session import Session
from click.testing import CliRunner, Result

from cachetier.cli.app import app
from tests.integration.serving import Served, serving

MOUNTS = [{"name": "t-data", "bucket": "data"}, {"name": "logs", "bucket": "logs/a"}]
TEAM = {"name": "team", "runs": ["t-*"]}


@pytest.fixture(scope="module")
def node() -> Iterator[Served]:
    with serving(s3="127.0.0.1:0", s3_mount=MOUNTS, principal=[TEAM]) as served:
        yield served


def run(node: Served, *words: str) -> Result:
    return CliRunner().invoke(app, [*words, "--url", node.unix_url])


def test_a_shell_takes_all_that_is_printed(node: Served) -> None:
    made = run(node, "s3", "env", "--expires", "12h")
    assert made.exit_code == 0, made.stderr
    script = 'eval "$MADE"; env | grep ^AWS_'
    variables = {"MADE": made.stdout, "PATH": "/usr/bin:/bin", "AWS_SESSION_TOKEN": "of another"}
    shell = subprocess.run(
        ["sh", "-c", script], capture_output=True, text=True, check=True, env=variables
    )
    found = dict(line.split("=", 1) for line in shell.stdout.splitlines())
    assert found.pop("AWS_ENDPOINT_URL_S3") == node.service.s3_url
    assert found.pop("AWS_REGION") == found.pop("AWS_DEFAULT_REGION") == "us-east-1"
    key_id, secret = found.pop("AWS_ACCESS_KEY_ID"), found.pop("AWS_SECRET_ACCESS_KEY")
    assert found == {}
    assert f"Key {key_id} of owner ends in 12 h; it opens s3://data/, s3://logs/a/" in made.stderr
    assert secret not in made.stderr

    caller = node.service.operations.access.signed(key_id, lambda real: real == secret, "127.0.0.1")
    assert caller.principal.name == "owner"


def test_a_shell_that_gets_no_key_does_not_go_on_past_the_node(node: Served) -> None:
    failed = run(node, "s3", "env", "--mount", "none-of-ours")
    assert failed.exit_code != 0

    script = 'eval "$MADE" && echo went on'
    shell = subprocess.run(
        ["sh", "-c", script],
        check=False,
        capture_output=True,
        text=True,
        env={"MADE": failed.stdout},
    )
    assert (shell.returncode, shell.stdout) == (1, "")


def buckets(environment: dict[str, str]) -> list[str]:
    """Return the buckets that a client of S3 sees, of which its environment is all it knows."""
    client: Any = Session().create_client(
        "s3",
        endpoint_url=environment["AWS_ENDPOINT_URL_S3"],
        region_name=environment["AWS_REGION"],
        aws_access_key_id=environment["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=environment["AWS_SECRET_ACCESS_KEY"],
        config=Config(retries={"total_max_attempts": 1}),
    )
    return [each["Name"] for each in client.list_buckets()["Buckets"]]


def test_a_key_opens_the_mounts_of_its_principal_until_it_is_revoked_or_ends(node: Served) -> None:
    made = json.loads(run(node, "s3", "env", "--json").stdout)
    assert buckets(made["environment"]) == ["data", "logs"]
    of_team = json.loads(run(node, "s3", "env", "--principal", "team", "--json").stdout)
    assert buckets(of_team["environment"]) == ["data"]
    ended = json.loads(run(node, "s3", "env", "--expires", "0s", "--json").stdout)
    run(node, "token", "revoke", made["id"])
    wrong = {**of_team["environment"], "AWS_SECRET_ACCESS_KEY": "of another"}
    for environment, code in (
        (made["environment"], "InvalidAccessKeyId"),
        (ended["environment"], "ExpiredToken"),
        (wrong, "SignatureDoesNotMatch"),
    ):
        with pytest.raises(ClientError) as refused:
            buckets(environment)
        assert refused.value.response["Error"]["Code"] == code


def test_keys_are_listed_and_revoked_as_tokens_are(node: Served) -> None:
    made = json.loads(run(node, "s3", "env", "--principal", "team", "--json").stdout)
    assert made["principal"] == "team"
    assert made["mounts"] == [{"name": "t-data", "bucket": "data", "prefix": ""}]
    listed = json.loads(run(node, "token", "list", "--json").stdout)["tokens"]
    assert {"id": made["id"], "kind": "s3"}.items() <= next(
        each.items() for each in listed if each["id"] == made["id"]
    )
    assert made["id"] in run(node, "token", "list").stdout
    secret = made["environment"]["AWS_SECRET_ACCESS_KEY"]
    assert secret not in run(node, "token", "list", "--json").stdout

    assert run(node, "token", "revoke", made["id"]).exit_code == 0
    assert node.service.operations.access.tokens.key(made["id"]) is None


def test_requests_to_the_node_go_past_the_proxies_of_the_environment(
    node: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.example:3128")
    monkeypatch.setenv("NO_PROXY", "10.0.0.1")
    for name in ("no_proxy", "http_proxy", "https_proxy"):
        monkeypatch.delenv(name, raising=False)
    made = json.loads(run(node, "s3", "env", "--json").stdout)["environment"]
    assert made["NO_PROXY"] == made["no_proxy"] == "10.0.0.1,127.0.0.1"
    assert "export NO_PROXY=10.0.0.1,127.0.0.1\n" in run(node, "s3", "env").stdout

    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    assert "NO_PROXY" not in json.loads(run(node, "s3", "env", "--json").stdout)["environment"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--mount", "lgos"), "It has: t-data, logs"),
        (("--mount", "logs", "--principal", "team"), "has no mount 'logs'"),
        (("--principal", "nobody"), "Known principals: scraper, team, owner"),
        (("--expires", "soon"), "Write 12h, 30d or never"),
    ],
)
def test_what_is_wrong_is_said_with_what_is_right(
    node: Served, words: tuple[str, ...], says: str
) -> None:
    before = node.service.operations.access.tokens.list()
    refused = run(node, "s3", "env", *words)
    assert refused.exit_code == 2
    assert says in refused.stderr
    assert refused.stdout == "false\n"
    assert node.service.operations.access.tokens.list() == before


def test_a_service_without_the_door_says_how_to_have_one() -> None:
    with serving() as served:
        refused = run(served, "s3", "env")
    assert refused.exit_code == 2
    assert "no S3 door" in refused.stderr
    assert "Set `s3` to an address such as 127.0.0.1:7071" in refused.stderr
