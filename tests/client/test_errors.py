"""Errors: one class for each code, one line that says everything."""

from __future__ import annotations

import pickle

import pytest
from cachetier_client import errors
from cachetier_client.errors import (
    CachetierClientError,
    InvalidNameError,
    error_for,
    error_from,
)
from cachetier_client.identity.names import checked_name, checked_run

PROTOCOL_CODES = {
    errors.WaitError: ("backpressure", "deadline", "not_durable", "stopping"),
    errors.FixCallError: (
        "invalid_name",
        "invalid_request",
        "size_mismatch",
        "digest_mismatch",
        "open_for_writing",
        "forbidden",
        "protocol_mismatch",
    ),
    errors.LookAtRunError: (
        "not_found",
        "sealed",
        "step_published",
        "save_superseded",
        "incomplete",
        "aborted",
        "local_only",
        "pinned",
    ),
    errors.GiveUpError: ("integrity", "fenced", "remote_refused"),
}


@pytest.mark.parametrize(
    ("group", "code"), [(group, code) for group, codes in PROTOCOL_CODES.items() for code in codes]
)
def test_each_code_of_the_protocol_has_a_class_in_the_group_of_its_next_move(
    group: type[CachetierClientError], code: str
) -> None:
    kind = error_for(code)

    assert issubclass(kind, group)
    assert kind.code == code
    assert kind.hint


def test_a_catalog_that_cannot_be_read_is_for_a_person() -> None:
    error = error_from({"code": "catalog_damaged", "hint": "Read docs/recovery.md."})
    assert isinstance(error, errors.GiveUpError)
    assert (error.code, error.hint) == ("catalog_damaged", "Read docs/recovery.md.")


@pytest.mark.parametrize("code", ["remote", "remote_throttled", "remote_transient"])
def test_a_remote_that_is_away_is_waited_for(code: str) -> None:
    assert type(error_from({"code": code})) is errors.RemoteUnavailableError
    assert error_from({"code": code}).code == code


def test_a_code_we_do_not_know_is_still_an_error_with_that_code() -> None:
    error = error_from({"code": "brand_new", "message": "what now", "hint": "Update."})

    assert type(error) is CachetierClientError
    assert error.code == "brand_new"
    assert str(error) == "what now. Next: Update."


def test_an_error_is_one_line_with_everything_in_it() -> None:
    error = error_from({"code": "sealed", "message": "other bytes", "rank": 1, "hint": "Stop."})
    error.locate("put_shard", run="a", step=7, rank=5, name="model")
    error.__cause__ = OSError(5, "Input/output error")

    assert str(error) == (
        "put_shard run=a step=7 rank=1 shard=model: other bytes "
        "(OSError: [Errno 5] Input/output error). Next: Stop."
    )
    assert error.cause is error.__cause__
    assert (error.operation, error.run, error.step, error.name) == ("put_shard", "a", 7, "model")


@pytest.mark.parametrize("described", [{}, {"code": None, "run": 5, "step": "x", "hint": 3}])
def test_a_description_that_is_none_is_survived(described: dict[str, object]) -> None:
    error = error_from(described)

    assert error.code == "internal"
    assert error.run is None
    assert error.step is None


def test_errors_go_through_a_pipe_between_processes() -> None:
    error = error_from({"code": "backpressure", "message": "no room", "retry_after_seconds": 5})
    error.locate("put_shard", run="a", step=7)

    back = pickle.loads(pickle.dumps(error))

    assert type(back) is errors.BackpressureError
    assert str(back) == str(error)
    assert back.retry_after_seconds == 5.0


def test_the_cause_goes_along_in_words() -> None:
    error = errors.StagedIOError("the staged file could not be written")
    error.__cause__ = OSError(5, "Input/output error")

    back = pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(error))))

    assert "Input/output error" in str(back)
    assert str(back) == str(error)


def test_all_public_errors_are_exported() -> None:
    import cachetier_client

    groups = (errors.WaitError, errors.FixCallError, errors.LookAtRunError, errors.GiveUpError)
    kinds = [kind for group in groups for kind in (group, *group.__subclasses__())]
    names = {kind.__name__ for kind in kinds if kind.__module__ == errors.__name__}  # not torch's
    assert names <= set(cachetier_client.__all__)
    assert set(cachetier_client.__all__) <= set(dir(cachetier_client))


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("my shard", "Call it my-shard, perhaps."),
        ("../a/./b", "Call it a/b, perhaps."),
        ("/model/rank 0/", "Call it model/rank-0, perhaps."),
        ("model\\rank-0", "Call it model-rank-0, perhaps."),
        ("..", InvalidNameError.hint),
        ("", InvalidNameError.hint),
    ],
)
def test_a_name_that_is_none_is_answered_with_the_nearest_that_is_one(name: str, near: str) -> None:
    with pytest.raises(InvalidNameError) as caught:
        checked_name(name)
    assert caught.value.hint == near


def test_a_run_that_is_none_is_answered_with_the_nearest_that_is_one() -> None:
    with pytest.raises(InvalidNameError) as caught:
        checked_run("llama/7b v2")
    assert caught.value.hint == "Call it llama-7b-v2, perhaps."
    assert checked_run("llama-7b-v2")
