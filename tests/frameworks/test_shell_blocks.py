"""Blocks of shell on a page run on a node, and print what the page shows; others say why not."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
from cachetier_client import Client

from tests.frameworks.conftest import Node
from tests.frameworks.test_page_blocks import PAGES, ROOT
from tests.integration.serving import as_file, running

pytestmark = pytest.mark.torch
BLOCK = re.compile(r"^ *```(\w*)\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
SECONDS = 120.0  # patience, not what anything takes
# Figures, digests and units differ from run to run; so do the widths of columns.
FIGURE = re.compile(
    r"(?<![\w.])(?:[0-9a-f]{16}|\d[\d.,]*(?:e\+\d+)?(?:[ ](?:[kMG]?B|m?s|min|h))?)(?![\w.])"
)
Prepare = Callable[[Node, Client, dict[str, str]], None]


def nothing(node: Node, client: Client, environment: dict[str, str]) -> None:
    """Prepare nothing more than a node."""


def durable_step(node: Node, client: Client, environment: dict[str, str]) -> None:
    """Save the newest step of the run, and wait for S3."""
    client.put_shard(b"weights" * 1000, run="my-run", step=1000, name="w", world_size=1, rank=0)
    client.seal("my-run", 1000, world_size=1, rank=0)
    client.wait("my-run", 1000, level="durable", timeout_seconds=SECONDS)


def two_shards(node: Node, client: Client, environment: dict[str, str]) -> None:
    """Save a step of two shards that fill 80 MB."""
    with client.checkpoint("my-run", 1000, world_size=1, rank=0) as checkpoint:
        for name in ("a", "b"):
            checkpoint.put(bytes(40_000_000), name)


def of_a_lost_node(node: Node, client: Client, environment: dict[str, str]) -> None:
    """Save two steps on a node that is gone then; its bucket is this one's."""
    with tempfile.TemporaryDirectory(prefix="ct-") as lost:
        gone = {"cache_dir": Path(lost) / "cache", "socket": Path(lost) / "s"}
        with running({**node.settings, **gone}) as other, Client(f"unix://{other.socket}") as there:
            for step in (1000, 2000):
                with there.checkpoint("my-run", step, world_size=1, rank=0) as checkpoint:
                    checkpoint.put(bytes(40_000_000), "w")
                there.wait("my-run", step, level="durable", timeout_seconds=SECONDS)


def half_a_save(node: Node, client: Client, environment: dict[str, str]) -> None:
    """Save a step that lacks its end, and then a newer one."""
    client.put_shard(
        bytes(1_000_000), run="my-run", step=1500, name="w", world_size=1, rank=0, save_id="s1500"
    )
    with client.checkpoint("my-run", 2000, world_size=1, rank=0) as checkpoint:
        checkpoint.put(b"newer", "w")
    client.wait("my-run", 2000, level="durable", timeout_seconds=SECONDS)


def settings_of_the_node(node: Node, client: Client, environment: dict[str, str]) -> None:
    """Write the settings of the node, as the service that runs has them."""
    Path("cachetier.toml").write_text(as_file(node.settings), encoding="utf-8")


def other_settings(node: Node, client: Client, environment: dict[str, str]) -> None:
    """Name another cache directory, and a bucket, in the environment."""
    environment["CACHETIER_CACHE_DIR"] = "/nvme/cachetier"
    environment["CACHETIER_REMOTE"] = "s3://bucket/prefix"


def examples_and_socket(node: Node, client: Client, environment: dict[str, str]) -> None:
    """Lay the examples here, and the socket where the tutorial has it."""
    Path("examples").symlink_to(ROOT / "examples")
    cache = Path(environment["HOME"]) / "cachetier-tutorial" / "cache"
    cache.mkdir(parents=True)
    (cache / "cachetier.sock").symlink_to(node.service.socket)


def log_of_a_step(node: Node, client: Client, environment: dict[str, str]) -> None:
    """Write a line of a log in JSON."""
    line = {"ts": "now", "level": "info", "event": "save.published", "message": "published"}
    of_step = {"run": "llama", "step": 1000, "age_seconds": 2.5}
    Path("log").write_text(json.dumps({**line, **of_step}), encoding="utf-8")


# Of each block that runs, its first line: what lies on the node then.
RUN: dict[tuple[str, str], Prepare] = {
    ("docs/architecture.md", "export CACHETIER_SAVE_ID="): nothing,
    ("docs/cli.md", "$ cachetier get demo/7/model"): nothing,
    ("docs/cli.md", "cachetier top --once"): nothing,
    ("docs/cli.md", "$ cachetier config --origin"): other_settings,
    ("docs/http.md", "curl -H"): nothing,
    ("docs/logs.md", "jq -r"): log_of_a_step,
    ("docs/operations.md", "cachetier config --check"): settings_of_the_node,
    ("docs/operations.md", "$ cachetier leave --timeout"): nothing,
    ("docs/operations.md", "$ cachetier ls my-run"): of_a_lost_node,
    ("docs/operations.md", "$ cachetier prune --older-than 0s"): half_a_save,
    ("docs/operations.md", "$ cachetier pin my-run 1000"): two_shards,
    ("docs/operations.md", "cachetier console"): nothing,
    ("docs/planning.md", "$ cachetier plan costs --params"): nothing,
    ("docs/planning.md", "$ cachetier plan costs --size"): nothing,
    ("docs/runbooks/bypassed.md", "$ curl"): nothing,
    ("docs/runbooks/exposure-over-objective.md", "curl"): durable_step,
    ("docs/tutorial.md", "cat > cachetier.toml"): nothing,
    ("docs/tutorial.md", 'export CACHETIER_URL="unix:'): examples_and_socket,
}
# Of each page with other blocks, and of all runbooks, why those do not run here.
NOT_RUN = {
    "README.md": "installs and builds; `make targets` and test_examples.py try these",
    "docs/compose.md": "Docker: tests/acceptance",
    "docs/doctor.md": "figures of one machine; test_doctor_node.py, test_objbench.py",
    "docs/frameworks.md": "trainers, and torch six times: tests of adopt, get and put",
    "docs/install.md": "systemd and Slurm, as root: test_slurm.py, test_deploy_nodes.py",
    "docs/kubernetes.md": "a cluster: tests/acceptance",
    "docs/logs.md": "a collector and a service that goes on: test_traces.py",
    "docs/operations.md": "quotas as root, a save of yesterday: tests/operate",
    "docs/planning.md": "test_scenarios.py and test_advise.py compare these",
    "docs/recovery.md": "damage of every kind: tests/integration/test_fsck.py",
    "docs/remotes.md": "other servers and their own programs: `make stores`",
    "docs/runbooks": "trouble of every kind: tests/operate",
    "docs/s3.md": "a mount and a program of one's own: test_s3_env.py",
    "docs/security.md": "users of the machine, as root",
    "docs/torch.md": "three answers to one message, of Slurm",
    "docs/tutorial.md": "terminals that stay open, kill -9: test_examples.py, tests/operate",
}


def blocks() -> list[tuple[str, str]]:
    """Return every block of shell, and every one that shows a prompt, each with its page."""
    return [
        (str(page.relative_to(ROOT)), textwrap.dedent(body))
        for page in PAGES
        for kind, body in BLOCK.findall(page.read_text(encoding="utf-8"))
        if kind in ("sh", "bash") or (not kind and body.lstrip().startswith("$ "))
    ]


def test_every_block_of_shell_is_run_or_says_why_not() -> None:
    rest = [
        "docs/runbooks" if "/runbooks/" in page else page
        for page, body in blocks()
        if not any(page == name and body.startswith(first) for name, first in RUN)
    ]
    assert len(blocks()) - len(rest) == len(RUN)
    assert set(rest) == set(NOT_RUN)


def exchanges(body: str) -> list[tuple[str, str | None]]:
    """Return the commands of a block, each with its output; None where the page shows none."""
    if not body.startswith("$ "):
        return [(body, None)]
    parts = (part.partition("\n") for part in re.split(r"^\$ ", body, flags=re.MULTILINE)[1:])
    return [(command, shown) for command, _, shown in parts]


def alike(output: str) -> list[str]:
    """Return the lines of an output without what differs from run to run."""
    lines = (" ".join(FIGURE.sub("#", line).split()) for line in output.splitlines())
    return [line for line in lines if line]


@pytest.mark.parametrize(("page", "first"), RUN, ids=lambda text: text.strip()[:40])
def test_a_block_of_shell_runs_and_prints_what_the_page_shows(
    page: str,
    first: str,
    node: Node,
    client: Client,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (body,) = (text for name, text in blocks() if name == page and text.startswith(first))
    for program in ("curl", "jq"):
        if f"{program} " in body and not shutil.which(program):
            pytest.skip(f"needs {program}")
    home = Path(node.service.socket).parent
    environment = {
        **os.environ,
        "HOME": str(home),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "CACHETIER_URL": node.url,
        "COLUMNS": "100",
    }
    monkeypatch.chdir(tmp_path)
    RUN[page, first](node, client, environment)
    for there, here in {
        "http://127.0.0.1:7070": str(node.service.url),
        "/nvme/cachetier/token": f"{node.settings['cache_dir']}/token",
        "cachetier top  ": "cachetier top --once  ",  # nobody sits at this terminal
        "cachetier doctor  ": "cachetier doctor --only node  ",  # the rest takes seconds
    }.items():
        body = body.replace(there, here)
    for command, shown in exchanges(body):
        done = subprocess.run(
            ["bash", "-e", "-o", "pipefail", "-c", command],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        if shown is None:
            assert done.returncode == 0, done.stdout
        else:
            assert alike(done.stdout) == alike(shown)
