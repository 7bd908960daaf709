"""Every first mistake has its answer: an exit code, what is wrong by name, and the next move."""

from __future__ import annotations

import json
import os
import shlex
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from cachetier.cli.app import app
from tests.fakes.small_disk import small_disk
from tests.integration.mistakes import Mistake, of_a_node, of_commands, of_settings, of_starts
from tests.integration.serving import Served, serving
from tests.integration.test_first_start import Store


class Answer:
    """What a command said."""

    def __init__(self, words: list[str], variables: dict[str, str]) -> None:
        ended = CliRunner().invoke(app, words, input=b"", env=variables)
        assert ended.exception is None or isinstance(ended.exception, SystemExit), ended
        self.code, self.out, self.err = ended.exit_code, ended.stdout, ended.stderr


def filled(text: str, places: dict[str, str]) -> str:
    for name, place in places.items():
        text = text.replace(f"{{{name}}}", place)
    return text


def assert_answered(mistake: Mistake, places: dict[str, str], variables: dict[str, str]) -> None:
    """Make the mistake, as a person and as a program, and read both answers."""
    words = shlex.split(filled(mistake.words, places))
    variables |= {name: filled(value, places) for name, value in mistake.variables.items()}
    answer = Answer(words, variables)

    assert answer.code == mistake.code, answer.err
    lines = lines_of(answer.err)
    assert [line.partition(": ")[0] for line in lines[:2]] == ["Error", "Next"], answer.err
    for name in mistake.names.split("|"):
        assert name.lower() in lines[0].lower()
    for move in mistake.next_move.split("|"):
        assert move in lines[1]
    assert "Traceback" not in answer.err
    assert "Errno" not in answer.err

    at = len(words) - words[-1].startswith("--")  # an option at the end lacks its value
    document = json.loads(Answer([*words[:at], "--json", *words[at:]], variables).out)
    error = document["problems"][0] if "problems" in document else document["error"]
    assert all(move in error["hint"] for move in mistake.next_move.split("|"))


def lines_of(text: str) -> list[str]:
    """Return the lines of an error; a service that does not start tells its log instead."""
    if not text.startswith("{"):
        return text.splitlines()
    event = json.loads(text)
    assert event["event"] == "service.not_started"
    return [f"Error: {event['message']}", f"Next: {event['hint']}"]


@pytest.mark.parametrize("mistake", [*of_settings()], ids=str)
def test_a_setting_that_cannot_be_is_named_with_its_place(
    mistake: Mistake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CACHETIER_TOKEN", raising=False)
    (tmp_path / "c.toml").write_text(mistake.file or "")
    (tmp_path / "c.toml").chmod(0o600)
    assert_answered(mistake, {"file": "c.toml"}, {})


@pytest.mark.parametrize("mistake", [*of_commands()], ids=str)
def test_a_command_line_that_cannot_be_is_answered_by_what_was_meant(
    mistake: Mistake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert_answered(mistake, {}, {"CACHETIER_URL": "unix:///nobody"})


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serving() as served:
        put = ["put", "-", "train", "7", "--name", "weights", "--seal"]
        ended = CliRunner().invoke(
            app, put, input=b"x" * 2000, env={"CACHETIER_URL": served.unix_url}
        )
        assert ended.exit_code == 0, ended
        yield served


@pytest.fixture(scope="module")
def bucketless() -> Iterator[Store]:
    with Store() as server:
        server.status, server.code = 404, "NoSuchBucket"
        thread = threading.Thread(target=server.serve_forever, name="bucketless")
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("mistake", [*of_a_node()], ids=str)
def test_a_node_answers_about_what_was_asked(
    mistake: Mistake,
    served: Served,
    bucketless: Store,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    silent = tmp_path / "f"
    silent.touch()
    places = {
        "s3": bucketless.url,
        "http": str(served.service.url),
        "silent_file": f"unix://{silent}",
        "out": str(tmp_path / "out"),
    }
    assert_answered(mistake, places, {"CACHETIER_URL": served.unix_url})
    assert list(tmp_path.iterdir()) == [silent], "nothing was made by mistake"


# --- a start, by the real process ----------------------------------------------------------------


def ended_start(flags: str, directory: Path, endpoint: str) -> tuple[int, dict[str, str]]:
    """Return how a start ended, and the event that says why."""
    command = [sys.executable, "-m", "cachetier", "serve", "--remote", "s3://bucket/p"]
    command += ["--remote-endpoint", endpoint, "--http", "127.0.0.1:0"]
    command += ["--cache-dir", str(directory / "new"), *shlex.split(flags)]
    keys = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"}
    ended = subprocess.run(
        command,
        env={**os.environ, **keys},
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    told = [json.loads(line) for line in ended.stderr.splitlines()]
    (why,) = [event for event in told if event["event"] == "service.not_started"]
    return ended.returncode, why


def assert_not_started(mistake: Mistake, places: dict[str, str], ended: tuple[int, Any]) -> None:
    code, why = ended
    assert code == mistake.code, why
    assert filled(mistake.names, places) in why["message"]
    for move in filled(mistake.next_move, places).split("|"):
        assert move in why["hint"]
    assert "reason" not in why, "its text stands in the message already"


@pytest.mark.parametrize("mistake", [*of_starts(away=False)], ids=str)
def test_what_is_taken_is_told_before_the_bucket_is_asked(
    mistake: Mistake, served: Served, bucketless: Store, tmp_path: Path
) -> None:
    flags = mistake.words.removeprefix("serve ")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        places = {
            "port": str(taken.getsockname()[1]),
            "mount": '[{"name": "o", "bucket": "objects"}]',
            "busy": str(served.service._settings.cache_dir),
        }
        asked_before = len(bucketless.asked)
        ended = ended_start(filled(flags, places), tmp_path, bucketless.url)
    assert_not_started(mistake, places, ended)
    assert (len(bucketless.asked) == asked_before) == bool(flags)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("mistake", [*of_starts(away=True)], ids=str)
def test_what_a_start_cannot_use_is_named_with_its_path(mistake: Mistake, tmp_path: Path) -> None:
    file, opened = tmp_path / "file", tmp_path / "open"
    file.touch()
    opened.mkdir()
    opened.chmod(0o777)
    places = {"file": str(file), "open": str(opened), "name": tmp_path.name}
    flags = filled(mistake.words.removeprefix("serve "), places)
    assert_not_started(mistake, places, ended_start(flags, tmp_path, "http://127.0.0.1:1"))


def test_a_disk_without_room_at_the_first_start_is_told_with_what_is_free_and_needed(
    tmp_path: Path,
) -> None:
    with small_disk(tmp_path) as disk:
        cache_dir = disk.path / "cache"
        cache_dir.mkdir(mode=0o700)
        disk.fill()
        code, why = ended_start(f"--cache-dir {cache_dir}", tmp_path, "http://127.0.0.1:1")
        assert disk.free_bytes < 4096, "the disk was full"
    assert (code, why["code"]) == (6, "backpressure")
    assert f"the disk of cache_dir {cache_dir} has no room to start: 0 B and" in why["message"]
    assert "a start needs 2.1 MB" in why["message"]
    assert "Free space" in why["hint"]


def test_dev_takes_variables_but_for_what_is_its_own(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        variables = {
            "CACHETIER_HTTP": address,
            "CACHETIER_CACHE_DIR": str(tmp_path / "of-a-node"),
            "CACHETIER_REMOTE": "s3://of-a-node/p",
        }
        ended = subprocess.run(
            [sys.executable, "-m", "cachetier", "dev", "--s3", "127.0.0.1:0"],
            env={**os.environ, **variables},
            capture_output=True,
            text=True,
            check=False,
            timeout=100,
            cwd=tmp_path,
        )
    assert ended.returncode == 2
    ignored, error, _ = ended.stderr.splitlines()
    assert ignored.endswith("a cache of its own: cache_dir, remote.")
    assert error == f"Error: Cannot listen on http {address}: Address already in use."
    assert not list(tmp_path.iterdir())
