"""The verbs against a real service, by exit code, text and JSON."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from cachetier.cli.app import app
from tests.fakes.bodies import noise
from tests.integration.serving import OWNER, Served, serving, shard_path
from tests.integration.test_http_shards import LARGE

STEP = ["r", "1"]


@pytest.fixture
def served() -> Iterator[Served]:
    with serving() as served:
        yield served


class Outcome:
    """What a verb did."""

    def __init__(self, result: Any) -> None:
        assert result.exception is None or isinstance(result.exception, SystemExit), result
        self.code: int = result.exit_code
        self.out: str = result.stdout
        self.err: str = result.stderr
        self.bytes: bytes = result.stdout_bytes

    @property
    def json(self) -> Any:
        return json.loads(self.out)


def run(served: Served | None, *arguments: str, stdin: bytes = b"") -> Outcome:
    environment = {"CACHETIER_URL": served.unix_url if served is not None else ""}
    return Outcome(CliRunner().invoke(app, list(arguments), input=stdin, env=environment))


def test_a_file_goes_in_and_comes_out(served: Served, tmp_path: Path) -> None:
    source, target = tmp_path / "in", tmp_path / "out"
    source.write_bytes(noise(LARGE))
    put = run(served, "put", str(source), *STEP, "--name", "a/b", "--seal", "--json")
    assert put.code == 0
    assert (put.json["size_bytes"], put.json["sealed_ranks"]) == (LARGE, [0])
    got = run(served, "get", *STEP, "--name", "a/b", str(target), "--json")
    assert (got.code, got.json["digest"]) == (0, put.json["digest"])
    assert target.read_bytes() == source.read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "out"]


def test_a_shard_goes_in_and_comes_out_by_its_path(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "model.pt"
    source.write_bytes(b"weights")
    assert run(served, "put", str(source), "r/7", "--seal").out.startswith("r/7/model.pt: 7 B")
    assert run(served, "get", "r/7/model.pt").bytes == b"weights"
    assert run(served, "get", "cachetier://r/7/model.pt").bytes == b"weights"
    monkeypatch.setenv("CACHETIER_RUN", "r")
    assert run(served, "get", "7", "--name", "model.pt").bytes == b"weights"
    assert "No shard other in step 7" in run(served, "get", "r/7/other").err

    whole = tmp_path / "out"
    assert run(served, "get", "r/7").code == 2
    assert run(served, "get", "r/7", str(whole)).out == f"{whole}: 7 B, 1 file, verified\n"
    assert (whole / "model.pt").read_bytes() == b"weights"


def test_what_was_saved_by_its_path_is_called_by_it(served: Served, tmp_path: Path) -> None:
    source = tmp_path / "last.ckpt"
    source.write_bytes(b"weights")
    where = "r/checkpoints/last.ckpt"
    assert run(served, "put", str(source), where, "--seal").out.startswith(f"{where}: 7 B")
    assert run(served, "get", where).bytes == b"weights"
    assert run(served, "ls", where).out.startswith(f"{where}: ")
    assert run(served, "status", where).code == 0
    assert run(served, "wait", where, "--level", "local").code == 0
    assert run(served, "pin", where).out.startswith(f"{where}: pinned")
    assert run(served, "pin", "--remove", where).code == 0
    assert run(served, "put", str(source), "r/7").code == 0
    assert run(served, "ls", "r/7/last.ckpt").code == 0
    assert run(served, "delete", "r/7/last.ckpt", "--yes").code == 1, "it is no step"
    assert run(served, "delete", where, "--yes").code == 0
    gone = run(served, "delete", where, "--yes")
    assert (gone.code, f"Nothing is saved under {where}" in gone.err) == (1, True)


def test_a_step_that_was_saved_file_by_file_leads_to_its_files(served: Served) -> None:
    file = ["ts-run~1000~model.pt", "1000", "--name", "model.pt", "--seal"]
    assert run(served, "put", "-", *file, stdin=b"weights").code == 0
    path = "ts-run/1000/model.pt"
    assert run(served, "get", path).bytes == b"weights"
    for verb in ("ls", "status"):
        looked = run(served, verb, "ts-run", "1000")
        assert (looked.code, f"cachetier {verb} {path}" in looked.out + looked.err) == (1, True)
        assert run(served, verb, path).code == 0


def test_standard_input_and_output_will_do(served: Served) -> None:
    put = run(served, "put", "-", *STEP, "--name", "x", stdin=b"from a pipe")
    assert put.code == 0
    assert "safe on this node" in put.out
    assert run(served, "get", *STEP, "--name", "x").bytes == b"from a pipe"


def test_a_pipe_that_is_named_is_read_to_its_end(served: Served, tmp_path: Path) -> None:
    fifo, body = tmp_path / "fifo", noise(LARGE)
    os.mkfifo(fifo)
    for name, as_json in (("x", []), ("y", ["--json"])):
        writer = threading.Thread(target=fifo.write_bytes, args=(body,))
        writer.start()
        assert run(served, "put", str(fifo), *STEP, "--name", name, *as_json).code == 0
        writer.join()
        assert run(served, "get", *STEP, "--name", name).bytes == body


def test_a_standard_input_that_is_closed_is_a_mistake_in_the_call(served: Served) -> None:
    command = [sys.executable, "-m", "cachetier", "put", "-", *STEP, "--name", "x"]
    environment = {**os.environ, "CACHETIER_URL": served.unix_url}
    closed = ["sh", "-c", f"{shlex.join(command)} <&-"]
    ended = subprocess.run(closed, check=False, env=environment, capture_output=True, text=True)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "Standard input is closed" in ended.stderr


def test_what_is_no_file_is_written_and_not_replaced(served: Served, tmp_path: Path) -> None:
    run(served, "put", "-", *STEP, "--name", "x", stdin=b"weights")
    (tmp_path / "kept").write_bytes(b"old")
    (tmp_path / "link").symlink_to("kept")

    for target in ("/dev/null", str(tmp_path / "link")):
        assert run(served, "get", *STEP, "--name", "x", target).code == 0

    assert Path("/dev/null").is_char_device()
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "kept").read_bytes() == b"weights"


def test_puts_one_by_one_belong_to_one_save(served: Served) -> None:
    for name in "ab":
        run(served, "put", "-", *STEP, "--name", name, stdin=name.encode())
    assert run(served, "seal", "r", "1", "--json").json == {"sealed_ranks": [0]}
    step = run(served, "ls", "r", "1", "--json").json["step"]
    assert [shard["name"] for shard in step["shards"]] == ["a", "b"]
    assert step["state"] == "sealed"


def test_ls_lists_runs_steps_and_shards(served: Served) -> None:
    assert run(served, "ls", "--json").json == {"runs": [], "mounts": []}
    assert run(served, "ls").code == 0
    run(served, "put", "-", *STEP, "--name", "model/rank-0", "--seal", stdin=b"x" * 2000)
    assert run(served, "ls").out == "r\n"
    steps = run(served, "ls", "r").out
    assert "sealed" in steps
    assert "2.0 kB" in steps
    assert run(served, "ls", "r", "--json", "--level", "durable").json == {"steps": []}
    shards = run(served, "ls", "r", "1").out
    assert "model/rank-0" in shards
    assert "dirty" in shards


def test_latest_prints_the_step_or_fails(served: Served) -> None:
    assert run(served, "ls", "r", "--latest", "--level", "local").code == 1
    run(served, "put", "-", *STEP, "--name", "x", "--seal", stdin=b"x")
    assert run(served, "ls", "r", "--latest", "--level", "local").out == "1\n"
    assert (
        run(served, "ls", "r", "--latest", "--level", "local", "--json").json["step"]["step"] == 1
    )
    assert run(served, "ls", "r", "--latest", "--json").json == {"step": None, "newer_local": 1}
    assert "This node can restore step 1, which is newer." in run(served, "ls", "r", "--latest").err


def test_wait_and_flush_end_with_3_while_bytes_are_dirty(served: Served) -> None:
    run(served, "put", "-", *STEP, "--name", "x", "--seal", stdin=b"x")
    assert run(served, "wait", "r", "1", "--level", "local").code == 0
    waited = run(served, "wait", "r", "1", "--timeout", "0.1s", "--json")
    assert (waited.code, waited.json["error"]["code"]) == (3, "not_durable")
    flushed = run(served, "flush", "--timeout", "0.1s")
    assert flushed.code == 3
    assert flushed.err.startswith("Error: ")
    assert "Error: 1 shard (1 B) is not durable in time, of step r/1." in flushed.err
    assert "\nNext: " in flushed.err
    served.drained("x", b"x")
    assert run(served, "wait", "r", "1", "--name", "x", "--json").json["level"] == "durable"


def test_explain_says_where_a_step_stands(served: Served) -> None:
    unknown = run(served, "status", "r", "1")
    assert unknown.code == 1
    assert "Neither this node nor S3 has step 1 of r." in unknown.out
    run(served, "put", "-", *STEP, "--name", "x", "--rank", "0", "--world-size", "1", stdin=b"x")
    assert "for rank 0 to seal" in run(served, "status", "r", "1").out
    run(served, "put", "-", *STEP, "--name", "x", "--seal", stdin=b"x")
    sealed = run(served, "status", "r", "1", "--json").json
    assert (sealed["state"], sealed["waits_for"]) == ("sealed", "drain")
    assert "1 B of 1 B are left to send" in sealed["sentences"][1]


def test_flush_of_an_empty_node_is_done(served: Served) -> None:
    assert run(served, "flush", "--json").json == {
        "pending_shards": 0,
        "pending_bytes": 0,
        "pending_steps": [],
    }


def test_delete_needs_a_yes(served: Served) -> None:
    run(served, "put", "-", *STEP, "--name", "x", "--seal", stdin=b"x")
    assert run(served, "delete", "r", "1").code == 2
    assert run(served, "delete", "r", "1", "--yes", "--json").json == {"deleted_shards": 1}
    assert served.holds_nothing()


def test_status_is_for_people_and_for_programs(served: Served) -> None:
    run(served, "put", "-", *STEP, "--name", "x", stdin=b"x" * 2000)
    assert run(served, "status", "--json").json["dirty_bytes"] == 2000
    text = run(served, "status").out
    for words in ("ready", "2.0 kB in 1 shard", "s3://bucket/p", "pending run"):
        assert words in text


def test_verbs_work_over_http_too(served: Served) -> None:
    assert served.service.url is not None
    url = ["--url", served.service.url]
    assert run(None, "put", "-", *STEP, "--name", "x", *url, stdin=b"x").code == 0
    assert run(None, "get", *STEP, "--name", "x", *url).bytes == b"x"
    assert run(None, "status", *url, "--json").json["state"] == "ready"


# --- exit codes ----------------------------------------------------------------------------------


def test_what_is_not_there_is_1(served: Served, tmp_path: Path) -> None:
    missing = run(served, "get", *STEP, "--name", "x", str(tmp_path / "out"))
    assert missing.code == 1
    assert "Traceback" not in missing.err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "arguments",
    [
        ["put", "-", *STEP, "--name", ".."],
        ["put", "-", "a b", "1", "--name", "x"],
        ["put", "-", *STEP],
        ["put", "/nowhere/at/all", *STEP, "--name", "x"],
        ["put", "-", *STEP, "--name", "x", "--level", "never"],
        ["wait", "r", "one"],
        ["wait", "r", "1", "--level", "best"],
        ["flush", "r", "1", "2"],
        ["get", *STEP, "--name", "x", "--json"],
        ["nonsense"],
        ["status", "--url", "ftp://x"],
        ["serve", "--cache-dir", "/c", "--remote", "nowhere"],
        ["serve"],
    ],
)
def test_usage_is_2(served: Served, arguments: list[str]) -> None:
    assert run(served, *arguments).code == 2


def test_nobody_there_is_4(tmp_path: Path) -> None:
    url = ["--url", f"unix://{tmp_path}/none"]
    outcome = run(None, "status", *url)
    assert outcome.code == 4
    assert "cachetier serve" in outcome.err


def test_damage_is_5(served: Served, tmp_path: Path) -> None:
    run(served, "put", "-", *STEP, "--name", "x", stdin=noise(LARGE))
    with served.data_files()[0].open("r+b") as file:
        file.write(b"damage")
    outcome = run(served, "get", *STEP, "--name", "x", str(tmp_path / "out"))
    assert outcome.code == 5
    assert not list(tmp_path.iterdir())


def test_full_is_6(tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(noise(LARGE))
    with serving(capacity="1 MB", when_full="reject") as served:
        assert run(served, "put", str(tmp_path / "in"), *STEP, "--name", "x").code == 6


# --- the real process ----------------------------------------------------------------------------


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    ours = {
        "CACHETIER_CACHE_DIR": str(tmp_path / "cache"),
        "CACHETIER_SOCKET": str(tmp_path / "s"),
        "CACHETIER_HTTP": "127.0.0.1:0",
        "CACHETIER_REMOTE": "s3://bucket/p",
        "CACHETIER_REMOTE_ENDPOINT": "http://127.0.0.1:1",
        "CACHETIER_GRACE": "3s",
    }
    return {**os.environ, **ours}


def start(environment: dict[str, str], log: Path) -> tuple[subprocess.Popen[str], dict[str, Any]]:
    """Start ``python -m cachetier serve --json`` and return it with what it says when ready."""
    with log.open("ab") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "cachetier", "serve", "--json"],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, log.read_text()
    return process, json.loads(line)


def end(process: subprocess.Popen[str]) -> int:
    assert process.stdout is not None
    try:
        return process.wait(30)
    finally:
        process.stdout.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_serve_ends_well_when_it_is_told_to(
    environment: dict[str, str], tmp_path: Path, number: signal.Signals
) -> None:
    process, ready = start(environment, tmp_path / "log")
    assert ready["state"] == "ready"
    url = ["--url", f"unix://{ready['socket']}"]
    assert run(None, "put", "-", *STEP, "--name", "x", *url, stdin=noise(LARGE)).code == 0
    drain = run(None, "status", *url, "--json").json["drain"]["pid"]
    process.send_signal(number)
    assert end(process) == 0
    assert not Path(f"/proc/{drain}").exists() or _is_zombie(drain)
    assert run(None, "status", *url).code == 4
    log = (tmp_path / "log").read_text()
    assert "Traceback" not in log
    process, ready = start(environment, tmp_path / "log")
    assert run(None, "get", *STEP, "--name", "x", *url).bytes == noise(LARGE)
    process.terminate()
    end(process)


def _is_zombie(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"


def test_a_second_signal_ends_it_at_once(environment: dict[str, str], tmp_path: Path) -> None:
    import socket

    process, ready = start({**environment, "CACHETIER_GRACE": "60s"}, tmp_path / "log")
    port = int(ready["http"].rsplit(":", 1)[1])
    head = f"PUT {shard_path('x')} HTTP/1.1\r\n{OWNER}Expect: 100-continue\r\n"
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(f"{head}Content-Length: 500000\r\n\r\n".encode())
        assert connection.recv(4096).startswith(b"HTTP/1.1 100")  # in flight, and never finished
        process.terminate()
        while "stopping: in flight requests" not in (tmp_path / "log").read_text():
            assert process.poll() is None
        process.terminate()
        assert end(process) == 128 + signal.SIGTERM, "it did not wait for the grace time"


def test_serve_says_what_is_wrong_without_a_traceback(
    environment: dict[str, str], tmp_path: Path
) -> None:
    process, _ready = start(environment, tmp_path / "log")
    try:
        second = subprocess.run(
            [sys.executable, "-m", "cachetier", "serve"],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert second.returncode == 2
        assert "nother cachetier serves" in second.stderr
        assert "Traceback" not in second.stderr
    finally:
        process.terminate()
        end(process)


def test_dev_needs_nothing_and_goes_past_the_proxies_of_the_environment(tmp_path: Path) -> None:
    proxied = {name: text for name, text in os.environ.items() if name.lower() != "no_proxy"}
    proxied |= {"HTTP_PROXY": "http://127.0.0.1:1", "HTTPS_PROXY": "http://127.0.0.1:1"}
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "cachetier",
            "dev",
            "--http",
            "127.0.0.1:0",
            "--s3",
            "127.0.0.1:0",
            "--json",
        ],
        env={**proxied, "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert process.stdout is not None
        ready = json.loads(process.stdout.readline())
        url = ["--url", ready["url"]]
        assert ready["s3_door"] in run(None, "s3", "env", *url).out
        put = ["put", "-", *STEP, "--name", "x", "--seal", "--level", "durable", *url]
        assert run(None, *put, stdin=b"x").code == 0
        assert run(None, "wait", "r", "1", *url, "--timeout", "60s").code == 0
        assert run(None, "ls", "r", "--latest", *url).out == "1\n"
    finally:
        process.terminate()
        end(process)
    assert not list(tmp_path.glob("cachetier-*"))


def test_link_prints_where_a_browser_signs_in(served: Served) -> None:
    made = run(served, "console")
    assert made.code == 0
    assert made.out.startswith(f"{served.service.url}/session?link=")
    assert len(made.out.splitlines()) == 1
    assert "within 60 seconds" in made.err
    assert run(served, "console", "--json").json["expires_seconds"] == 60
    by_name = run(served, "console", "--url", f"http://localhost:{served.call.port}")
    assert by_name.out.startswith(f"http://localhost:{served.call.port}/session?link=")
