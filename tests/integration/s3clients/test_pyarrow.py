"""pyarrow writes a data set of parquet and reads it in part; DuckDB asks it questions."""

from __future__ import annotations

from tests.integration.needs import needs_weed
from tests.integration.s3clients.outside import needs_package, run_program
from tests.integration.s3clients.place import PREFIX, Place

pytestmark = [needs_weed, needs_package("pyarrow", "pyarrow")]


def test_a_data_set_is_written_and_questioned(place: Place) -> None:
    told = run_program(place, "arrow_tables.py", f"{place.bucket}/{PREFIX}table")

    assert told["rows"] == 1_000_000
    assert told["some"] == told["expected"] == told["by_duckdb"]
    names = place.names_in_listing("table/")
    assert len([name for name in names if name.endswith(".parquet")]) == 4
    place.assert_arrives({name: place.read(name) for name in names})
