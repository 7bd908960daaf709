"""The example that knows boto3 alone runs as it is, straight to S3 and through the door."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.integration.needs import needs_weed
from tests.integration.s3clients.outside import run
from tests.integration.s3clients.place import Place

pytestmark = needs_weed
SCRIPT = Path(__file__).parents[3] / "examples" / "any_s3_client.py"


def test_a_script_saves_through_the_door_without_a_change(place: Place) -> None:
    straight = {**place.behind.environment(), "AWS_ENDPOINT_URL_S3": place.behind.url}
    for folder, environment in (("straight", straight), ("door", place.environment)):
        told = run(place, sys.executable, SCRIPT, place.address(folder), **environment)
        assert "step 100, 25165824 bytes, is saved" in told
        assert "step-100 reads back as it was" in told

    names = place.names_in_listing("door/")
    assert [name.removeprefix("door/") for name in names] == [
        "latest",
        "step-100/index.json",
        "step-100/rank-0.bin",
        "step-100/rank-1.bin",
    ]
    place.assert_arrives(
        {name: place.in_bucket(name.replace("door", "straight")) for name in names}
    )
