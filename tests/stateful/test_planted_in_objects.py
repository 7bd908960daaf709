"""The model of objects must report every bug that is planted here.

Without the bug these are lives of ``test_objects``.
"""

from __future__ import annotations

import apsw
import pytest
from hypothesis import Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from cachetier.drain.schedule import object_order
from cachetier.local.catalog import object_uploads, objects
from cachetier.model.objects import piece_name
from tests.stateful.test_objects import SLOW, TwoNodes

pytestmark = [pytest.mark.slow]

LIVES = settings(
    SLOW, phases=(Phase.generate,), print_blob=False, report_multiple_bugs=False
)  # the first is enough


def assert_caught(message: str | None = None) -> None:
    with pytest.raises(AssertionError, match=message):
        run_state_machine_as_test(seed(5)(type("TwoNodes", (TwoNodes,), {})), settings=LIVES)


def test_what_is_shown_without_what_was_acknowledged_before_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(object_order, "may_show", lambda _follows, _unshown: True)

    assert_caught("which was never next")


def test_a_version_that_goes_before_it_was_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    def older(sql: apsw.Connection, save: int, key: str, version: int) -> list[int]:
        query = "SELECT version FROM objects WHERE save = ? AND key = ? AND version < ?"
        return [int(row[0]) for row in sql.execute(query, (save, key, version))]

    monkeypatch.setattr(objects, "older_shown", older)

    assert_caught("which was never next")


def test_parts_that_are_left_out_and_stay_on_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    keep = object_uploads._keep_only

    def forget(*completed: object) -> list[object]:
        keep(*completed)  # type: ignore[arg-type]
        return []

    monkeypatch.setattr(object_uploads, "_keep_only", forget)

    assert_caught("bytes accounted|data files")


def test_pieces_in_another_order_than_the_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    def named(version: int, number: int) -> str:
        return piece_name(version, 3 - number if number < 3 else number)

    monkeypatch.setattr(object_uploads, "piece_name", named)

    assert_caught()
