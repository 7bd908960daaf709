"""The small examples run as they are, against `cachetier dev`, as their first lines say."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from cachetier_client import Client

from tests.forked_drains import in_line
from tests.integration.needs import needs_weed

ROOT = Path(__file__).parents[2]
STOP_SECONDS = 60.0


@pytest.fixture
def dev_url() -> Iterator[str]:
    """The socket of a `cachetier dev` that runs beside the test."""
    anywhere = ["--http", "127.0.0.1:0", "--s3", "127.0.0.1:0"]
    command = [sys.executable, "-m", "cachetier", "dev", *anywhere, "--json"]
    environment = {**os.environ, **in_line()}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield json.loads(process.stdout.readline())["url"]
        finally:
            process.terminate()
            process.wait(STOP_SECONDS)


def test_the_first_put_becomes_durable_as_often_as_it_is_run(dev_url: str) -> None:
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, ROOT / "examples" / "first_put.py"],
            env={**os.environ, "CACHETIER_URL": dev_url},
            capture_output=True,
            text=True,
            check=False,
        )

        assert done.returncode == 0, done.stderr
        assert "1048576 bytes are safe on this node" in done.stdout
        assert "step 1 is durable" in done.stdout


def test_files_are_saved_all_at_once_and_come_back(dev_url: str, tmp_path: Path) -> None:
    for number in range(20):
        (tmp_path / f"file-{number}").write_bytes(bytes([number]) * 500_000 * number)
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / "async_copy.py", tmp_path],
        env={**os.environ, "CACHETIER_URL": dev_url},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert "20 files, 95000000 bytes, are safe on this node" in done.stdout
    assert "every file came back as it was" in done.stdout


def test_a_job_that_only_writes_files_has_all_its_steps_stored(dev_url: str) -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / "watched.py"],
        env={**os.environ, "CACHETIER_URL": dev_url},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert "steps [10, 20, 30] are safe on this node; the last has 8388608 bytes" in done.stdout


def test_a_script_that_knows_boto3_alone_saves_through_the_node_by_one_line_of_shell(
    dev_url: str,
) -> None:
    python, script = shlex.quote(sys.executable), ROOT / "examples" / "any_s3_client.py"
    saves = f"{python} {script} s3://checkpoints/objects/train"
    done = subprocess.run(
        ["sh", "-c", f'eval "$({python} -m cachetier s3 env)" && {saves}'],
        env={**os.environ, "CACHETIER_URL": dev_url},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert "step 100, 25165824 bytes, is saved" in done.stdout
    assert "step-100 reads back as it was" in done.stdout


def test_the_steady_job_goes_on_while_s3_is_away(tmp_path: Path) -> None:
    """Chapter 6 of the tutorial: S3 is stopped, and the job started again."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        nobody = f"http://127.0.0.1:{free.getsockname()[1]}"
    environment = {
        **os.environ,
        "AWS_ACCESS_KEY_ID": "a",
        "AWS_SECRET_ACCESS_KEY": "s",
        "CACHETIER_URL": f"unix://{tmp_path}/s",
    }
    serve = [sys.executable, "-m", "cachetier", "serve", "--json", "--http", ""]
    serve += ["--cache-dir", str(tmp_path / "cache"), "--socket", str(tmp_path / "s")]
    serve += ["--capacity", "1GB", "--remote", "s3://bucket/p", "--remote-endpoint", nobody]
    with subprocess.Popen(serve, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            assert process.stdout is not None
            assert json.loads(process.stdout.readline())["state"] == "ready"
            with Client(environment["CACHETIER_URL"]) as client:
                with client.checkpoint("tutorial", 1) as checkpoint:
                    checkpoint.put(b"saved while S3 was there", "weights")
            job = [sys.executable, str(ROOT / "examples" / "steady.py"), "--steps", "2"]
            done = subprocess.run(
                [*job, "--megabytes", "1", "--every-seconds", "0"],
                env=environment,
                capture_output=True,
                text=True,
                check=False,
            )
        finally:
            process.terminate()
            process.wait(STOP_SECONDS)

    assert done.returncode == 0, done.stderr
    assert [line.split(":")[0] for line in done.stdout.splitlines()] == ["step 2", "step 3"]


@pytest.mark.soak
@pytest.mark.slow
@pytest.mark.torch
def test_fsdp_training_goes_on_from_its_last_save_as_if_it_had_never_ended(dev_url: str) -> None:
    def trained(run: str, steps: int) -> list[str]:
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        command += ["--nproc-per-node", "2", str(ROOT / "examples" / "fsdp.py"), run, str(steps)]
        done = subprocess.run(
            command,
            env={**os.environ, "CACHETIER_URL": dev_url, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    before, after = trained("interrupted", 7), trained("interrupted", 12)
    whole = trained("whole", 12)
    assert before[0] == whole[0] == "starting anew"
    assert after[0] == "going on after step 7"
    assert after[-1] == whole[-1] == "step 12 is durable"
    assert after[-2] == whole[-2]  # the same loss, to the last figure
    assert after[-2].startswith("step 12: loss")


def _told(story: str, work_dir: Path) -> subprocess.CompletedProcess[str]:
    """Have a story told in ``work_dir``, where its report lies then."""
    command = [sys.executable, "-m", story, "--work-dir", str(work_dir)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.soak
@pytest.mark.slow
@needs_weed
def test_peers_show_who_read_what_from_where(tmp_path: Path) -> None:
    done = _told("examples.peers", tmp_path / "peers")

    report = json.loads((tmp_path / "peers" / "report.json").read_text())
    # On a busy machine peers skip each other, which costs the bucket bytes and nothing else.
    held = [each["held"] for each in report["comparisons"] if "bit for bit" in each["what"]]
    assert held == [True] * 4, done.stdout + done.stderr
    assert any(each["peer_bytes"] for each in report["reads"])
    shutil.rmtree(tmp_path)


@pytest.mark.soak
@pytest.mark.slow
@needs_weed
def test_a_node_that_is_lost_for_good_costs_no_step_that_its_neighbours_have(
    tmp_path: Path,
) -> None:
    done = _told("examples.peers.losing", tmp_path / "peers")

    report = json.loads((tmp_path / "peers" / "report.json").read_text())
    assert report["held"], done.stdout + done.stderr
    assert len(report["comparisons"]) == 4
    shutil.rmtree(tmp_path)


@pytest.mark.soak
@pytest.mark.slow
@needs_weed
def test_the_near_tier_gives_back_what_it_shows(tmp_path: Path) -> None:
    done = _told("examples.near_tier", tmp_path / "near")

    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((tmp_path / "near" / "report.json").read_text())
    assert report["held"]
    assert len(report["comparisons"]) == 10
    shutil.rmtree(tmp_path)
