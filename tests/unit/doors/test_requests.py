"""What the socket door reads from a request's header, and what it refuses."""

from __future__ import annotations

import pytest

from cachetier.doors.unix import requests
from cachetier.errors import InvalidRequestError


def test_a_flag_is_false_where_it_is_not_given() -> None:
    assert not requests.flag_of({}, "follows")
    assert requests.flag_of({"follows": True}, "follows")


@pytest.mark.parametrize("value", [None, 1, 0, "true", []])
def test_anything_but_true_and_false_is_no_flag(value: object) -> None:
    with pytest.raises(InvalidRequestError, match="follows"):
        requests.flag_of({"follows": value}, "follows")
