"""Runs and steps on a command line: two words, or the path that people wrote."""

from __future__ import annotations

import pytest

from cachetier.cli.connection import path_of, spread, target

OPTIONS = {"--name": True, "--seal": False}


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ("r 7", "r 7"),
        ("r/7", "r /7"),
        ("cachetier://r/7/", "r /7"),
        ("r/7/a/b out", "r /7/a/b out"),
        ("--name x/y r/7", "--name x/y r /7"),
        ("--name=x/y --seal r/7", "--name=x/y --seal r /7"),
        ("-- r/7", "-- r /7"),
        ("s3:mount/prefix", "s3:mount/prefix"),
        ("--seal", "--seal"),
        ("", ""),
    ],
)
def test_a_path_is_run_and_step(words: str, wanted: str) -> None:
    assert spread(words.split(), OPTIONS, 0) == wanted.split()


def test_what_comes_before_the_run_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    assert spread(["a/b", "r/7"], OPTIONS, 1) == ["a/b", "r", "/7"]
    assert spread(["-", "r/7"], OPTIONS, 1) == ["-", "r", "/7"]
    monkeypatch.setenv("CACHETIER_RUN", "usual")
    assert spread(["a/b", "--seal"], OPTIONS, 1) == ["a/b", "usual", "--seal"]
    assert spread(["--seal"], OPTIONS, 1) == ["--seal"]


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ("7", "usual 7"),
        ("7 out", "usual 7 out"),
        ("7 --name x out", "usual 7 --name x out"),
        ("7 8", "7 8"),
        ("r 7", "r 7"),
        ("r/7", "r /7"),
    ],
)
def test_a_number_is_a_step_of_the_usual_run(
    words: str, wanted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert spread(words.split(), OPTIONS, 0) == words.replace("/", " /").split()
    monkeypatch.setenv("CACHETIER_RUN", "usual")
    assert spread(words.split(), OPTIONS, 0) == wanted.split()


@pytest.mark.parametrize(
    ("path", "name", "is_file", "wanted"),
    [
        ("7", None, True, ("r", 7, None)),
        ("7/a/b", None, True, ("r", 7, "a/b")),
        ("7/a", "b", True, ("r~!~a~", 7, "b")),
        ("last.ckpt", None, True, ("r~last.ckpt", 0, "last.ckpt")),
        ("checkpoints/step-10", None, False, ("r~checkpoints~step-!~", 10, None)),
        ("final", None, False, ("r~final~", 0, None)),
    ],
)
def test_a_put_goes_where_the_file_system_would_put_it(
    path: str, name: str | None, is_file: bool, wanted: tuple[str, int, str | None]
) -> None:
    assert target("r", tuple(path.split("/")), name, is_file=is_file) == wanted


def test_a_step_is_shown_as_people_write_it() -> None:
    assert path_of("r", 7) == "r/7"
    assert path_of("r~checkpoints~step-!~", 10) == "r/checkpoints/step-10"
