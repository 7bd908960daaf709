"""s3torchconnector: the writer and reader of distributed checkpoints, and its data sets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.integration.needs import needs_weed
from tests.integration.s3clients.files import below, write_files
from tests.integration.s3clients.outside import needs_package, run_program
from tests.integration.s3clients.place import PREFIX, Place

pytestmark = [
    needs_weed,
    needs_package("s3torchconnector", "s3torchconnector"),
    pytest.mark.torch,
    pytest.mark.slow,
]


def torch_states(place: Place, what: str, address: str) -> dict[str, Any]:
    return run_program(place, "torch_states.py", what, address, AWS_ENDPOINT_URL=place.url)


def test_a_state_is_saved_and_loaded_again(place: Place) -> None:
    told = torch_states(place, "dcp", place.address("dcp/step-1/"))

    assert told["loaded"] == told["saved"]
    names = place.names_in_listing("dcp/")
    assert names == ["dcp/step-1/.metadata", "dcp/step-1/__0_0.distcp"]
    place.assert_arrives({name: place.read(name) for name in names})


def test_a_stream_of_torch_save_is_saved_and_loaded_again(place: Place) -> None:
    told = torch_states(place, "stream", place.address("stream/one.pt"))

    assert told["loaded"] == told["saved"]
    place.assert_arrives({"stream/one.pt": place.read("stream/one.pt")})


def test_data_sets_list_and_read_what_was_put(place: Place, tmp_path: Path) -> None:
    contents = below("set", write_files(tmp_path))
    del contents["set/empty"]  # its reader asks for a range of it, which no S3 has
    for name, content in contents.items():
        place.boto().put_object(Bucket=place.bucket, Key=PREFIX + name, Body=content)

    told = torch_states(place, "sets", place.address("set/"))
    expected = {PREFIX + name: len(content) for name, content in contents.items()}
    assert told == {"mapped": expected, "iterated": expected}
