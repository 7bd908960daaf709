"""What a task failed of, as the drain reports it: a code, and the text of it alone."""

from __future__ import annotations

import pytest

from cachetier.drain.upload.target import ConflictError
from cachetier.drain.worker import _described
from cachetier.errors import IntegrityError, TransientError


@pytest.mark.parametrize(
    ("error", "described"),
    [
        (ConflictError("k is a foreign object"), ("conflict", "k is a foreign object")),
        (IntegrityError("k is damaged", run="r"), ("conflict", "k is damaged")),
        (TransientError("reset", run="r"), (TransientError.code, "reset")),
        (OSError(5, "Input/output error"), ("disk", "[Errno 5] Input/output error")),
        (ValueError("a defect"), ("internal", "ValueError('a defect')")),
    ],
)
def test_a_failure_is_reported_without_the_ids_and_hints_of_its_error(
    error: Exception, described: tuple[str, str]
) -> None:
    assert _described(error) == described
