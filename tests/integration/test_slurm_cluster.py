"""The scripts for Slurm in a real Slurm of one node, its service restarted, left and away."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from cachetier_client import Client

from cachetier.testing.moto_server import moto_server
from cachetier.testing.s3_endpoint import S3Endpoint
from tests.integration.fallbacks import Place, place, until
from tests.integration.slurm_cluster import SCRIPTS, Cluster, cluster, needs_slurm

pytestmark = [
    needs_slurm,
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.xdist_group("slurm"),  # a node's name is the machine's
]

TASKS = """#!/bin/sh
srun sh -c '
    echo "$SLURM_PROCID $CACHETIER_URL $CACHETIER_RUN $CACHETIER_SERVICE_UID"
    head -c 100000 /dev/zero | cachetier put - "$CACHETIER_RUN" 1 --name "rank-$SLURM_PROCID" \\
        --rank "$SLURM_PROCID" --world-size "$SLURM_NTASKS" --seal >/dev/null'
"""
# Each rank saves steps; in its first life the job is stuck in the middle of step 3.
TRAIN = """
import os, time
from pathlib import Path
from cachetier_client import Client

rank, client = os.environ["SLURM_PROCID"], Client()
found = client.latest(level="local")
for step in range(0 if found is None else found.step + 1, 5):
    with client.checkpoint(None, step) as save:
        save.put(bytes([step]) * 100_000, f"rank-{rank}/first")
        if step == 3 and "SLURM_RESTART_COUNT" not in os.environ:
            Path(f"stuck-{rank}").touch()
            time.sleep(600)
        save.put(bytes([step]) * 100_000, f"rank-{rank}/second")
    client.wait(None, step, "local")
"""


@pytest.fixture(scope="module")
def endpoint() -> Iterator[S3Endpoint]:
    with moto_server() as endpoint:
        yield endpoint


@pytest.fixture
def site(endpoint: S3Endpoint, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    with place(endpoint, monkeypatch) as made:
        yield made


def is_completed(slurm: Cluster, job: str) -> bool:
    return slurm.job(job)["JobState"] == "COMPLETED"


def test_a_node_takes_jobs_while_its_service_restarts_and_none_once_it_was_left(
    site: Place, tmp_path: Path
) -> None:
    service = site.node()
    url = f"unix://{service.socket}"
    (tmp_path / "tasks.sh").write_text(TASKS)

    with cluster(tmp_path, CACHETIER_URL=url, CACHETIER_READY_SECONDS="1") as slurm:
        # No service: the node is drained, and the job goes back into the queue.
        first = slurm.submit("--ntasks=2", "--job-name=llama", "tasks.sh")
        until(lambda: slurm.state() == "drained")
        until(lambda: slurm.job(first)["JobState"] == "PENDING")
        assert "cachetier is not ready" in log_of(tmp_path)

        # A service that is just starting is waited for.
        slurm.configure(CACHETIER_URL=url, CACHETIER_READY_SECONDS="60")
        slurm.resume()
        slurm.start_soon(first)
        until(lambda: slurm.job(first)["JobState"] in ("CONFIGURING", "RUNNING"))
        with service:
            until(lambda: is_completed(slurm, first))
            told = sorted((tmp_path / "job.log").read_text().splitlines()[-2:])
            assert told == [f"{rank} {url} llama-{first} 0" for rank in (0, 1)]
            with Client(url) as client:
                # The epilog waits for what is dirty; its node is idle, and not drained, after it.
                until(lambda: slurm.state() == "idle")
                assert client.latest(f"llama-{first}", level="durable") is not None

                # Who was told to leave takes no job, and is drained.
                client.leave(60.0)
            slurm.configure(CACHETIER_URL=url, CACHETIER_READY_SECONDS="1")
            second = slurm.submit("--ntasks=2", "tasks.sh")
            until(lambda: slurm.state() == "drained")
            until(lambda: slurm.job(second)["JobState"] == "PENDING")
    assert '"state": "leaving"' in log_of(tmp_path)


def log_of(folder: Path) -> str:
    return (folder / "slurmd.log").read_text()


def test_a_job_that_is_requeued_in_the_middle_of_a_save_goes_on_after_its_newest_step(
    site: Place, tmp_path: Path
) -> None:
    job_sh = str(SCRIPTS / "job.sh")
    (tmp_path / "train.py").write_text(TRAIN)

    with (
        site.node(CACHETIER_DURABLE_EVERY="100") as service,
        cluster(tmp_path, CACHETIER_URL=f"unix://{service.socket}") as slurm,
        Client(f"unix://{service.socket}", run="llama") as client,
    ):
        job = slurm.submit("--nodes=1", "--ntasks-per-node=2", job_sh)
        until(lambda: all((tmp_path / f"stuck-{rank}").exists() for rank in (0, 1)))
        newest = client.latest(level="durable")
        assert newest is None or newest.step < 2  # a policy keeps it on the node

        slurm.run("scancel", "--batch", "--signal=USR1", job)  # as Slurm does before the end
        until(lambda: slurm.job(job)["Restarts"] == "1")
        newest = client.latest(level="durable")
        assert newest is not None
        assert newest.step == 2

        slurm.start_soon(job)
        until(lambda: is_completed(slurm, job))
        steps = client.steps()
        assert [(each.step, len(each.ranks)) for each in steps if "local" in each.levels] == [
            (step, 2) for step in range(5)
        ]
