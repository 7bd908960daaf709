"""Group commit: together when they come together, apart when one of them fails."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import apsw
import pytest

from cachetier.errors import BackpressureError, FencedError, NotFoundError
from cachetier.local.catalog.committer import BATCH_LIMIT, Committer
from tests.fakes.strict_disk import StrictDisk


class Table:
    """A table under a committer, on a disk whose steps are counted."""

    def __init__(self, disk: StrictDisk, path: Path) -> None:
        self.disk = disk
        self.fences: list[str] = []
        self.errors = 0
        self.sql = apsw.Connection(str(path), vfs=disk.vfs)
        for statement in (
            "PRAGMA journal_mode = WAL",
            "PRAGMA synchronous = FULL",
            "CREATE TABLE t (x INTEGER PRIMARY KEY)",
        ):
            self.sql.execute(statement).fetchall()
        self.committer = Committer(self.sql, self.fences.append, self.failed)

    def failed(self) -> None:
        self.errors += 1

    def insert(self, number: int) -> Callable[[apsw.Connection], int]:
        def operation(sql: apsw.Connection) -> int:
            sql.execute("INSERT INTO t VALUES (?)", (number,))
            return number * 10

        return operation

    def refuse(self, number: int) -> Callable[[apsw.Connection], int]:
        """Write a row, and then think better of it."""

        def operation(sql: apsw.Connection) -> int:
            sql.execute("INSERT INTO t VALUES (?)", (number,))
            raise NotFoundError("no")

        return operation

    def rows(self) -> list[int]:
        return [row[0] for row in self.sql.execute("SELECT x FROM t ORDER BY x")]

    def syncs(self) -> int:
        return sum(step.startswith("sync") for step in self.disk.trace)


@pytest.fixture
def table(tmp_path: Path) -> Iterator[Table]:
    disk = StrictDisk(tmp_path)
    with disk.recording():
        table = Table(disk, tmp_path / "some.db")
        yield table
        table.sql.close()


def in_threads(calls: list[Callable[[], object]]) -> list[object]:
    """Make all calls at once; return what each returned or raised."""
    found: list[object] = [None] * len(calls)
    gate = threading.Barrier(len(calls))

    def run(number: int, call: Callable[[], object]) -> None:
        gate.wait(30)
        try:
            found[number] = call()
        except BaseException as error:
            found[number] = error

    threads = [
        threading.Thread(target=run, args=(number, call), daemon=True)
        for number, call in enumerate(calls)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads), "a caller hangs"
    return found


def test_an_operation_returns_its_result_once_it_is_synced(table: Table) -> None:
    before = table.syncs()

    assert table.committer.run(table.insert(4)) == 40

    assert table.rows() == [4]
    assert table.syncs() == before + 1


def test_an_operation_that_raises_leaves_no_trace(table: Table) -> None:
    with pytest.raises(NotFoundError):
        table.committer.run(table.refuse(4))

    assert table.rows() == []
    assert table.committer.fenced is None


def test_a_defect_in_an_operation_is_its_callers_alone(table: Table) -> None:
    with pytest.raises(ZeroDivisionError):
        table.committer.run(lambda _sql: 1 // 0)

    assert table.committer.run(table.insert(1)) == 10


def together(table: Table, calls: list[Callable[[apsw.Connection], int]]) -> list[object]:
    """Run ``calls`` in one transaction: they get in line while a first one is under way."""
    under_way, go_on = threading.Event(), threading.Event()

    def slow(sql: apsw.Connection) -> int:
        under_way.set()
        assert go_on.wait(30)
        return table.insert(1000)(sql)

    first = threading.Thread(target=table.committer.run, args=(slow,), daemon=True)
    first.start()
    assert under_way.wait(30)
    found: list[object] = [None] * len(calls)

    def run(number: int) -> None:
        try:
            found[number] = table.committer.run(calls[number])
        except BaseException as error:
            found[number] = error

    threads = [threading.Thread(target=run, args=(n,), daemon=True) for n in range(len(calls))]
    for thread in threads:
        thread.start()
    while len(table.committer._line) < len(calls):
        pass  # they get in line within microseconds
    go_on.set()
    for thread in [first, *threads]:
        thread.join(30)
    return found


def test_operations_that_arrive_together_share_one_sync(table: Table) -> None:
    before = table.syncs()

    found = together(table, [table.insert(n) for n in range(20)])

    assert found == [n * 10 for n in range(20)]
    assert table.rows() == [*range(20), 1000]
    assert table.syncs() == before + 2, "one for the first, one for the twenty"


def test_one_that_raises_does_not_hurt_the_others_of_its_transaction(table: Table) -> None:
    calls = [table.refuse(n) if n % 3 == 0 else table.insert(n) for n in range(12)]

    found = together(table, calls)

    for number, answer in enumerate(found):
        if number % 3 == 0:
            assert isinstance(answer, NotFoundError)
        else:
            assert answer == number * 10
    assert table.rows() == [n for n in range(12) if n % 3] + [1000]


def test_sixteen_threads_need_fewer_syncs_than_they_have_operations(table: Table) -> None:
    before = table.syncs()

    def many(thread: int) -> Callable[[], object]:
        return lambda: [table.committer.run(table.insert(thread * 100 + n)) for n in range(50)]

    found = in_threads([many(thread) for thread in range(16)])

    assert all(isinstance(answer, list) for answer in found), found
    assert len(table.rows()) == 800
    assert table.syncs() - before < 800


def test_operations_of_one_caller_share_the_sync_of_the_first_outcome(table: Table) -> None:
    before = table.syncs()
    pending = [table.committer.submit(table.insert(n)) for n in range(20)]
    assert table.rows() == []

    assert [table.committer.outcome(each) for each in pending] == [n * 10 for n in range(20)]

    assert table.syncs() == before + 1


def test_an_operation_whose_outcome_nobody_asks_goes_with_the_next(table: Table) -> None:
    table.committer.submit(table.insert(1))

    assert table.committer.run(table.insert(2)) == 20

    assert table.rows() == [1, 2]


def test_one_who_has_not_asked_yet_holds_up_nobody_who_waits(table: Table) -> None:
    before_them = [table.committer.submit(table.insert(1000 + n)) for n in range(BATCH_LIMIT + 1)]

    found = in_threads([lambda n=n: table.committer.run(table.insert(n)) for n in range(16)])  # type: ignore[misc]

    assert found == [n * 10 for n in range(16)]
    assert [table.committer.outcome(each) for each in before_them] == [
        (1000 + n) * 10 for n in range(BATCH_LIMIT + 1)
    ]


def test_callers_of_several_operations_each_share_syncs(table: Table) -> None:
    def many(thread: int) -> list[int]:
        answers = []
        for turn in range(20):
            at = thread * 1000 + turn * 10
            pending = [table.committer.submit(table.insert(at + n)) for n in range(10)]
            answers += [table.committer.outcome(each) for each in pending]
        return answers

    found = in_threads([lambda thread=thread: many(thread) for thread in range(8)])  # type: ignore[misc]

    assert all(isinstance(each, list) and len(each) == 200 for each in found), found
    assert len(table.rows()) == 1600


def test_a_batch_is_bounded(table: Table) -> None:
    found = together(table, [table.insert(n) for n in range(BATCH_LIMIT + 10)])

    assert found == [n * 10 for n in range(BATCH_LIMIT + 10)]


def test_a_failed_sync_fences_for_ever_and_tells_once(table: Table) -> None:
    table.disk.fail_sync_at = table.disk.steps + 3
    with pytest.raises(FencedError):
        table.committer.run(table.insert(1))
    assert table.disk.failed_syncs == 1

    with pytest.raises(FencedError):
        table.committer.run(table.insert(2))

    assert len(table.fences) == 1
    assert table.errors == 1
    assert table.committer.fenced == table.fences[0]


def test_all_of_a_failed_transaction_are_told(table: Table) -> None:
    table.disk.fail_sync_at = table.disk.steps + 6  # the sync of the second transaction

    found = together(table, [table.insert(n) for n in range(5)])

    assert table.disk.failed_syncs == 1
    assert all(isinstance(answer, FencedError) for answer in found)


def test_a_full_disk_refuses_and_does_not_fence(table: Table) -> None:
    table.disk.full_at = table.disk.steps + 1
    with pytest.raises(BackpressureError):
        table.committer.run(table.insert(1))
    assert table.disk.refused_for_room

    table.disk.full_at = None

    assert table.committer.run(table.insert(2)) == 20
    assert table.rows() == [2]
    assert table.errors == 1


def test_a_lock_held_by_another_process_refuses_and_does_not_fence(
    table: Table, tmp_path: Path
) -> None:
    other = apsw.Connection(str(tmp_path / "some.db"), vfs=table.disk.vfs)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(BackpressureError, match="another process holds the catalog's lock"):
        table.committer.run(table.insert(1))
    assert table.committer.fenced is None

    other.execute("ROLLBACK")
    other.close()

    assert table.committer.run(table.insert(2)) == 20
    assert table.rows() == [2]


@pytest.mark.parametrize(
    ("value", "error"),
    [
        (float("nan"), apsw.ConstraintError),
        (b"no text", apsw.ConstraintError),
        (2**70, OverflowError),
        ("\ud800", UnicodeEncodeError),
    ],
    ids=["nan", "bytes", "huge", "surrogate"],
)
def test_a_value_that_sqlite_refuses_fails_its_operation_alone(
    table: Table, value: object, error: type[Exception]
) -> None:
    def refused(sql: apsw.Connection) -> int:
        sql.execute("CREATE TABLE IF NOT EXISTS strict (x TEXT NOT NULL) STRICT")
        sql.execute("INSERT INTO strict VALUES (?)", (value,))
        return 0

    found = together(table, [refused, table.insert(1)])

    assert isinstance(found[0], error)
    assert found[1] == 10
    assert table.committer.fenced is None
    assert table.errors == 0


def test_nobody_waits_for_a_leader_that_came_to_grief(table: Table) -> None:
    """An interrupt in one caller's operation must not hang the others."""

    def interrupted(_sql: apsw.Connection) -> int:
        raise KeyboardInterrupt

    found = together(table, [interrupted, table.insert(1), table.insert(2)])

    assert sorted(type(answer).__name__ for answer in found) in (
        ["FencedError", "FencedError", "KeyboardInterrupt"],
        ["FencedError", "FencedError", "FencedError"],
    )
    with pytest.raises(FencedError):
        table.committer.run(table.insert(3))


def test_a_closed_committer_refuses(tmp_path: Path) -> None:
    disk = StrictDisk(tmp_path)
    with disk.recording():
        table = Table(disk, tmp_path / "some.db")
        table.committer.run(table.insert(1))

        table.committer.close()

        with pytest.raises(FencedError, match="closed"):
            table.committer.run(table.insert(2))
        assert table.fences == [], "a clean stop is no alarm"


def test_what_a_statement_wrote_before_the_disk_was_full_is_undone(table: Table) -> None:
    def full(sql: apsw.Connection) -> int:
        sql.execute("INSERT INTO t VALUES (1)")
        raise apsw.FullError("planned")

    with pytest.raises(BackpressureError, match="no room"):
        table.committer.run(full)

    assert table.rows() == []
    assert table.fences == []
    assert table.committer.run(table.insert(2)) == 20
    assert table.rows() == [2]


def test_the_first_reason_of_a_fence_stays_and_is_told_once(table: Table) -> None:
    table.committer.fence("the disk failed a sync")
    table.committer.fence("another one")

    assert (table.committer.fenced, table.fences) == (
        "the disk failed a sync",
        ["the disk failed a sync"],
    )
