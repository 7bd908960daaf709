"""How verbs report: exit codes, errors with a next move, a status that fits a terminal."""

from __future__ import annotations

import json
from typing import Any

import click
import pytest
from cachetier_client import (
    BackpressureError,
    CachetierClientError,
    DeadlineError,
    DigestMismatchError,
    FencedError,
    IntegrityError,
    InvalidNameError,
    InvalidRequestError,
    NotDurableError,
    NotFoundError,
    ServiceUnavailableError,
    StagedIOError,
    StepPublishedError,
)
from rich.console import Console
from rich.text import Text

from cachetier.cli.output import console, reported, table
from cachetier.cli.screen import rendered
from cachetier.errors import ConfigError, DirectoryInUseError, TransientError

CODES = [
    (NotFoundError("x"), 1),
    (FencedError("x"), 1),
    (CachetierClientError("x"), 1),
    (InvalidNameError("x"), 2),
    (ConfigError("x"), 2),
    (ValueError("x"), 2),
    (NotDurableError("x"), 3),
    (ServiceUnavailableError("x"), 4),
    (DeadlineError("x"), 4),
    (IntegrityError("x"), 5),
    (DigestMismatchError("x"), 5),
    (BackpressureError("x"), 6),
    (DirectoryInUseError("x"), 2),
    (FileNotFoundError(2, "No such file", "/a"), 1),
    (KeyboardInterrupt(), 130),
]


@pytest.mark.parametrize(("error", "code"), CODES)
def test_each_kind_of_error_has_its_exit_code(error: BaseException, code: int) -> None:
    with pytest.raises(click.exceptions.Exit) as caught, reported(as_json=False):
        raise error
    assert caught.value.exit_code == code


def test_an_error_is_a_sentence_and_a_next_move(capsys: pytest.CaptureFixture[str]) -> None:
    error = NotFoundError("no such shard", hint="Look elsewhere.")
    error.locate("get_shard", run="r", step=3, name="a/b")
    with pytest.raises(click.exceptions.Exit), reported(as_json=False):
        raise error
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err == "Error: No such shard (run=r step=3 name=a/b).\nNext: Look elsewhere.\n"


@pytest.mark.parametrize(
    ("error", "hint"),
    [
        (StepPublishedError("x"), "The step is published already. Pass --overwrite to replace it."),
        (
            InvalidRequestError("x", hint="Pass rank= and world_size= together, or set RANK."),
            "Pass --rank and --world-size together, or set RANK.",
        ),
        (
            DeadlineError("x"),
            (
                "Give it more time, or see what is slow: `cachetier status`, or if that hangs as "
                "well, the service's log."
            ),
        ),
        (
            NotFoundError("x", hint="Write a = 1, or CACHETIER_A=b."),
            "Write a = 1, or CACHETIER_A=b.",
        ),
    ],
)
def test_what_the_library_advises_its_callers_is_said_in_options(
    error: CachetierClientError, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(click.exceptions.Exit), reported(as_json=False):
        raise error
    assert capsys.readouterr().err.endswith(f"Next: {hint}\n")


def test_what_the_system_said_is_in_the_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(click.exceptions.Exit), reported(as_json=False):
        raise StagedIOError("cannot write") from OSError(28, "No space left on device")
    assert "Error: Cannot write: No space left on device.\n" in capsys.readouterr().err


def test_an_error_that_begins_with_a_name_keeps_the_name(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(click.exceptions.Exit), reported(as_json=False):
        raise TransientError("head_bucket: nobody answers")
    assert capsys.readouterr().err.startswith("Error: head_bucket: nobody answers.\nNext: ")


def test_with_json_an_error_is_a_document_too(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(click.exceptions.Exit), reported(as_json=True):
        raise NotDurableError("not yet")
    described = json.loads(capsys.readouterr().out)["error"]
    assert (described["code"], described["message"]) == ("not_durable", "not yet")
    assert described["hint"]


SAFE: dict[str, Any] = {
    "evictable_bytes": 60 * 10**9,
    "unwanted": {"shards": 0, "size_bytes": 0},
    "pinned": {"steps": 0, "size_bytes": 0},
    "exposure": [],
    "exposure_objective_seconds": 1800.0,
    "incomplete": {"steps": 0, "oldest_seconds": 0.0},
    "eta_seconds": 60.0,
}


def status(**changes: Any) -> dict[str, Any]:
    return {
        "version": "0.1.0",
        "store_id": "39ad78d1cbc90dbc",
        "pid": 4242,
        "state": "ready",
        "reason": None,
        "started_at": 1.0,
        "uptime_seconds": 4000.0,
        "capacity_bytes": 200 * 10**9,
        "used_bytes": 90 * 10**9,
        "dirty_bytes": 30 * 10**9,
        "clean_bytes": 60 * 10**9,
        "local_only": {"steps": 0, "shards": 0, "size_bytes": 0, "declared_steps": 0},
        "waiting_bytes": 0,
        "dirty_shards": 12,
        "oldest_dirty_seconds": 42.0,
        "quarantined_shards": 0,
        "fenced": None,
        "when_full": "wait",
        "disk": {
            "directory": "/nvme/cachetier",
            "filesystem": "ext4",
            "free_bytes": 10**12,
            "direct_io": True,
            "leases": True,
            "attributes": True,
        },
        "remotes": [
            {
                "name": "durable",
                "url": "s3://checkpoints/llama-70b",
                "endpoint": "https://objects.example.org",
                "verify": "checksum",
                "conditional_writes": True,
                "state": "ok",
                "reason": "",
            }
        ],
        "drain": {"pid": 4243, "in_flight": 3, "drained_bytes": 10**12, "failures": 1},
        "pending": [],
        "pending_steps": len(changes.get("pending", ())),
        "socket": "/nvme/cachetier/cachetier.sock",
        "http": "http://127.0.0.1:7070",
        "connections": 8,
        "sqlite_version": "3.54.1",
        "warnings": [],
        **SAFE,
        **changes,
    }


def shown(described: dict[str, Any], width: int = 80) -> str:
    console = Console(width=width, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(rendered(described, 100.0))
    console.file.close()
    return console.export_text()


def test_status_fits_eighty_columns() -> None:
    pending = [
        {
            "run": "a-run-with-a-name-that-is-as-long-as-a-name-may-be" * 2,
            "step": 123_456_789,
            "state": "superseded",
            "shards": 1000,
            "size_bytes": 999 * 10**9,
            "dirty_bytes": 999 * 10**9,
            "started_at": 0.0,
            "eta_seconds": 340.0,
        }
    ] * 20
    text = shown(status(pending=pending, warnings=["a warning that is long " * 8]))
    assert max(len(line.rstrip()) for line in text.splitlines()) <= 80
    for words in ("90.0 GB of 200 GB, 45 %", "30.0 GB in 12 shards", "999 GB", "and 10 more"):
        assert words in text
    assert "5.7 min" in text


def run(name: str = "run", **changes: Any) -> dict[str, Any]:
    return {
        "run": name,
        "durable_step": 1200,
        "durable_age_seconds": 240.0,
        "exposure_seconds": 0.0,
        "dirty_bytes": 0,
        **changes,
    }


def test_status_shows_the_most_exposed_runs_first_in_eighty_columns() -> None:
    long = "a-run-with-a-name-that-is-as-long-as-a-name-may-be" * 2
    late = run(long, exposure_seconds=3900.0, dirty_bytes=999 * 10**9, durable_step=123_456_789)
    new = run("new", durable_step=None, durable_age_seconds=None, exposure_seconds=60.0)
    text = shown(status(exposure=[late, new, *(run(f"safe-{n}") for n in range(6))]))

    assert max(len(line.rstrip()) for line in text.splitlines()) <= 80
    rows = [" ".join(line.split()) for line in text.splitlines()]
    assert "new 1.0 min none - -" in rows
    assert "safe-0 no 1200 4.0 min ago -" in rows
    assert "and 3 more" in rows
    assert "Losing this node now costs 1 hour of training." in rows


def test_status_shows_what_waits_in_mounts_in_plain_words() -> None:
    mounts = [
        *({"mount": "m" * 60, "objects": 3, "dirty_bytes": 10**9, **EXPOSED},),
        {"mount": "calm", "objects": 0, "dirty_bytes": 0, "exposure_seconds": 0.0, "conflicts": 0},
    ]
    text = shown(status(mounts=mounts))

    assert max(len(line.rstrip()) for line in text.splitlines()) <= 80
    assert "not in the bucket" in text
    assert "s3:calm no - - -" in [" ".join(line.split()) for line in text.splitlines()]


def test_status_names_what_was_not_written_lately_as_something_newer_is_there() -> None:
    lost = {"key": "train/latest", "reason": "its key was deleted since"}
    told = [{**lost, "superseded_at": 40.0}, {**lost, "superseded_at": -90_000.0}]
    mount = {"mount": "m", "objects": 0, "dirty_bytes": 0, "exposure_seconds": 0.0, "conflicts": 0}

    text = " ".join(shown(status(mounts=[{**mount, "superseded": told}])).split())

    said = "not written to s3:m: train/latest, its key was deleted since"
    assert text.count(said) == 1


EXPOSED = {"exposure_seconds": 3900.0, "conflicts": 2}


def test_status_claims_no_safety_where_no_step_is_durable() -> None:
    new = run("new", durable_step=None, durable_age_seconds=None)
    (row,) = (line for line in shown(status(exposure=[new])).splitlines() if "new" in line)

    assert row.split() == ["new", "-", "none", "-", "-"]


def test_status_says_what_can_go_where_that_is_not_all_that_is_clean() -> None:
    assert "can go" not in shown(status())
    assert "clean 60.0 GB, 1.0 GB can go for room" in shown(status(evictable_bytes=10**9))


def test_status_names_who_has_most_open() -> None:
    most = {"holder": "user 7, process 42", "size_bytes": 2 * 10**9}
    text = shown(status(lent_bytes=3 * 10**9, lent_most=most))
    assert "lent 3.0 GB to readers, most to user 7, process 42: 2.0 GB" in text


def test_status_names_what_is_stuck_pinned_and_wanted_by_nobody() -> None:
    text = shown(
        status(
            incomplete={"steps": 2, "oldest_seconds": 7200.0},
            pinned={"steps": 1, "size_bytes": 10**9},
            unwanted={"shards": 3, "size_bytes": 10**6},
        )
    )

    assert "2 steps incomplete, the oldest since 2.0 h" in " ".join(text.split())
    assert "pinned 1.0 GB in 1 step" in text
    assert "unwanted 1.0 MB in 3 shards" in text


@pytest.mark.parametrize(
    ("eta", "words"), [(60.0, "all sent in 1.0 min"), (None, "the time until all is sent")]
)
def test_status_says_how_long_the_drain_still_takes(eta: float | None, words: str) -> None:
    assert words in shown(status(eta_seconds=eta))
    assert words not in shown(status(eta_seconds=eta, dirty_bytes=0))


def test_status_shows_what_a_policy_keeps_here_and_what_nobody_can_tell() -> None:
    pending = {"run": "r", "step": 7, "state": "open", "size_bytes": 1, "dirty_bytes": 1}
    kept = {"steps": 2, "shards": 9, "size_bytes": 10**9, "declared_steps": 5}
    text = shown(
        status(local_only=kept, pending=[{**pending, "started_at": 0.0, "eta_seconds": None}])
    )

    assert "local only, by policy: 1.0 GB in 2 steps" in text
    assert text.splitlines()[-1].rstrip().endswith(" unknown")


def test_status_says_what_holds_the_drain_back() -> None:
    def remote(**pace: float | None) -> str:
        found = {"concurrency": 3, "writes_per_second": None, "bytes_per_second": None, **pace}
        return shown(status(remotes=[{**status()["remotes"][0], "pace": found}]))

    assert "12.5 writes/s, 3 at once" in remote(writes_per_second=12.5)
    assert "at most 2.0 GB/s" in remote(bytes_per_second=2e9)
    assert "paused by a window" in remote(bytes_per_second=0.0)
    assert "throttl" not in remote()


@pytest.mark.parametrize(
    ("busy_ranks", "words"),
    [(0, "holds back for training\n"), (1, "holds back for training (1 busy rank)\n")],
)
def test_status_counts_busy_ranks_only_where_there_are_any(busy_ranks: int, words: str) -> None:
    courtesy = {"restraint": "pause", "busy_ranks": busy_ranks}
    drain = {"pid": 7, "courtesy": courtesy}
    text = shown(status(drain=drain))
    assert words in "\n".join(line.rstrip() for line in text.splitlines()) + "\n"


def test_status_shows_each_replica_with_what_it_is_owed() -> None:
    replica = {
        **status()["remotes"][0],
        "name": "near",
        "role": "replica",
        "required": True,
        "url": "s3://near",
        "pending_shards": 2,
        "pending_bytes": 5_000_000,
        "given_up_steps": 1,
        "drain": {"pid": 77, "in_flight": 2},
    }
    text = shown(status(remotes=[*status()["remotes"], replica]), 120)
    assert "near  s3://near  ok" in text
    assert "5.0 MB in 2 shards to go, required, 1 step given up; pid 77, 2 in flight" in text

    done = {**replica, "pending_shards": 0, "required": False, "given_up_steps": 0}
    assert "has everything; pid 77" in shown(status(remotes=[done]), 120)


def test_status_says_what_is_wrong() -> None:
    remote = {**status()["remotes"][0], "state": "refused", "reason": "403: access denied"}
    drain = {"pid": None}
    text = shown(
        status(
            state="fenced",
            reason="syncing a data file failed: Input/output error",
            remotes=[remote],
            drain=drain,
            quarantined_shards=2,
            waiting_bytes=5_000_000,
        ),
        120,
    )
    for words in (
        *("fenced", "Input/output error", "refused", "403: access denied", "not running"),
        *("2 quarantined", "puts wait for 5.0 MB"),
        "docs/runbooks/remote-refused.md",
    ):
        assert words in text


def test_an_empty_node_is_calm() -> None:
    text = shown(
        status(used_bytes=0, dirty_bytes=0, clean_bytes=0, evictable_bytes=0, dirty_shards=0)
    )
    assert "nothing dirty" in text
    assert "!" not in text


def test_status_says_what_compression_makes_and_why() -> None:
    why = "1 GB takes 20 s raw on a link of 50.0 MB/s, 15.6 s compressed to 0.78 at 800 MB/s"
    codecs = {
        "raw": {"shards": 1, "size_bytes": 10**9, "stored_bytes": 10**9},
        "zstd": {"shards": 2, "size_bytes": 10**9, "stored_bytes": 78 * 10**7},
        "zstd-planes-1": {"shards": 2, "size_bytes": 2 * 10**9, "stored_bytes": 10**9},
    }
    compression = {"blocks": {}, "runs": {"old": {"why": "before"}, "llama": {"why": why}}}
    drain = {**status()["drain"], "codecs": codecs, "compression": compression}
    text = " ".join(shown(status(drain=drain), 120).split())

    assert "zstd made 780 MB of 1.0 GB" in text
    assert "zstd-planes-1 made 1.0 GB of 2.0 GB" in text
    assert "raw made" not in text
    assert f"llama: {why}" in text
    assert "before" not in text


def test_a_row_is_one_line_of_a_pipe_however_long_and_without_colour(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in {"COLUMNS": "40", "FORCE_COLOR": "1", "TERM": "xterm-256color"}.items():
        monkeypatch.setenv(name, value)
    long = ("some words " * 50).strip()
    rows = [(f"{number}", long, Text("lost", "bold red")) for number in range(3)]
    console().print(table("step", "~why", "<state", rows=rows, more=2))
    title, *lines, more = capsys.readouterr().out.splitlines()
    assert title.split() == ["step", "why", "state"]
    assert [" ".join(line.split()) for line in lines] == [f"{n} {long} lost" for n in range(3)]
    assert more.strip() == "and 2 more"
