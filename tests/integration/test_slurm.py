"""The scripts for Slurm, run as Slurm runs them, against a service; root's tools have stand-ins."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cachetier_client import Client

from tests.integration.serving import Served, serving

SCRIPTS = Path(__file__).parents[2] / "deploy" / "slurm"
# What they call as root: another user's process, the journal, the units.
STAND_INS = {
    "runuser": 'shift 3; exec "$@"',
    "logger": 'echo "$*" >> "$TOLD"',
    "systemctl": 'echo "$*" >> "$ASKED"; [ "$1" = start ]',
}

Ran = subprocess.CompletedProcess[str]
Run = Callable[..., Ran]


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serving() as running:
        yield running


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Return what runs a script on this node, with settings of the node's and of the job's."""
    tools = tmp_path / "bin"
    tools.mkdir()
    for name, body in STAND_INS.items():
        (tools / name).write_text(f"#!/bin/sh\n{body}\n")
        (tools / name).chmod(0o755)
    program = Path(sys.executable).with_name("cachetier")

    def ran(script: str, *, job: dict[str, str] | None = None, **settings: str) -> Ran:
        lines = {"CACHETIER_BIN": str(program), "CACHETIER_USER": "root", **settings}
        (tmp_path / "slurm.conf").write_text("".join(f"{k}={v}\n" for k, v in lines.items()))
        environment = {
            "PATH": f"{tools}:{os.environ['PATH']}",
            "CACHETIER_SLURM_CONF": str(tmp_path / "slurm.conf"),
            "SLURM_JOB_ID": "7",
            "TOLD": str(tmp_path / "told"),
            "ASKED": str(tmp_path / "asked"),
        }
        return subprocess.run(
            (SCRIPTS / script,),
            env=environment | (job or {}),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    return ran


def told(tmp_path: Path) -> str:
    return (tmp_path / "told").read_text()


def test_a_job_begins_on_a_node_whose_service_is_ready(
    served: Served, run: Run, tmp_path: Path
) -> None:
    done = run("prolog.sh", CACHETIER_URL=served.unix_url)

    assert (done.returncode, done.stdout) == (0, "")
    asked = (tmp_path / "asked").read_text().splitlines()
    assert asked == ["is-active --quiet cachetier.service", "start cachetier.service"]


def test_no_job_begins_on_a_node_without_one(run: Run, tmp_path: Path) -> None:
    done = run(
        "prolog.sh",
        CACHETIER_URL=f"unix://{tmp_path}/none",
        CACHETIER_UNIT="",
        CACHETIER_READY_SECONDS="0",
    )

    assert done.returncode == 1
    assert done.stdout.startswith('cachetier is not ready on this node: "message": "cannot connect')
    assert "job 7: cachetier is not ready after 0 s" in told(tmp_path)


def test_no_job_begins_while_the_service_is_fenced_or_leaving(
    served: Served, run: Run, tmp_path: Path
) -> None:
    served.service._course.leaving = True
    try:
        done = run("prolog.sh", CACHETIER_URL=served.unix_url, CACHETIER_READY_SECONDS="0")
    finally:
        served.service._course.leaving = False

    assert done.returncode == 1
    assert "leaving" in told(tmp_path)


def test_tasks_are_told_the_socket_their_run_and_who_must_serve_it(run: Run) -> None:
    url = "unix:///run/x/s"
    job = {"SLURM_JOB_NAME": "llama", "CACHETIER_URL": "http://elsewhere"}

    told_all = run("task-prolog.sh", CACHETIER_URL=url, job={"SLURM_JOB_NAME": "llama"})
    told_some = run("task-prolog.sh", CACHETIER_URL=url, job=job | {"CACHETIER_RUN": "mine"})

    assert told_all.stdout.splitlines() == [
        f"export CACHETIER_URL={url}",
        "export CACHETIER_RUN=llama-7",
        "export CACHETIER_SERVICE_UID=0",
    ]
    assert told_some.stdout.splitlines() == ["export CACHETIER_SERVICE_UID=0"]


def test_the_end_of_a_job_waits_a_while_for_its_last_checkpoint(
    served: Served, run: Run, tmp_path: Path
) -> None:
    ready = run("epilog.sh", CACHETIER_URL=served.unix_url)
    assert ready.returncode == 0
    assert "all is durable" in told(tmp_path)

    with Client(served.unix_url) as client:
        client.put_shard(b"x" * 100, run="r", step=1, name="w", rank=0, world_size=1)
        client.seal("r", 1, rank=0, world_size=1)
    late = run("epilog.sh", CACHETIER_URL=served.unix_url, CACHETIER_FLUSH_SECONDS="0.1")

    assert late.returncode == 0  # or Slurm would drain the node
    assert served.drain.hurried[-1] == (None, None)
    assert "not all is durable after 0.1 s, and drains on" in told(tmp_path)


def test_the_end_of_a_job_waits_for_no_service_that_is_gone(run: Run, tmp_path: Path) -> None:
    done = run("epilog.sh", CACHETIER_URL=f"unix://{tmp_path}/none", CACHETIER_FLUSH_SECONDS="50")

    assert done.returncode == 0
    assert "cannot be asked" in told(tmp_path)


def test_each_time_is_above_those_within_it() -> None:
    page = (SCRIPTS.parents[1] / "docs" / "install.md").read_text()
    unit = (SCRIPTS.parent / "systemd" / "cachetier.service").read_text()
    common, job = ((SCRIPTS / name).read_text() for name in ("common.sh", "job.sh"))
    stop, ready, flush, signal, deadline, timeout = (
        int(re.findall(pattern, text)[0])
        for pattern, text in (
            (r"TimeoutStopSec=(\d+)", unit),
            (r"READY_SECONDS=(\d+)", common),
            (r"FLUSH_SECONDS=(\d+)", common),
            (r"--signal=B:USR1@(\d+)", job),
            (r"--timeout (\d+)s", job),
            (r"PrologEpilogTimeout=(\d+)", page),
        )
    )

    assert "NOTICE" not in unit  # which a restart would take as well
    assert ready >= stop + 10
    assert timeout > max(ready, flush)
    assert signal >= deadline + 60
    assert re.search(r"^#SBATCH --(requeue|time=\S+)", job, re.MULTILINE)
    told = dict(re.findall(r"^\| `(CACHETIER_\w+)` \| (\d+) \|", page, re.MULTILINE))
    assert told == {"CACHETIER_READY_SECONDS": str(ready), "CACHETIER_FLUSH_SECONDS": str(flush)}


@pytest.mark.parametrize("script", sorted(path.name for path in SCRIPTS.iterdir()))
def test_bash_understands_each_of_them(script: str) -> None:
    subprocess.run(("bash", "-n", SCRIPTS / script), check=True)
