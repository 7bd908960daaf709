"""tensorstore, which Orbax and JAX save by: arrays as zarr, and as OCDBT with conditional puts."""

from __future__ import annotations

import pytest

from tests.integration.needs import needs_weed
from tests.integration.s3clients.outside import needs_package, run_program
from tests.integration.s3clients.place import PREFIX, Place

pytestmark = [needs_weed, needs_package("tensorstore", "tensorstore")]


@pytest.mark.parametrize("layout", ["zarr3", "ocdbt"])
def test_an_array_is_written_and_read_again(place: Place, layout: str) -> None:
    told = run_program(place, "tensorstore_arrays.py", layout, place.bucket, f"{PREFIX}{layout}/")

    assert told["read"] == told["written"]
    names = place.names_in_listing(f"{layout}/")
    assert f"{layout}/{told['index']}" in names and len(names) > 2
    place.assert_arrives({name: place.read(name) for name in names})
