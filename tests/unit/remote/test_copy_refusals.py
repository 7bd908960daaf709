"""A refused copy says that the store does not copy, unless any other call had been refused too."""

from __future__ import annotations

import pytest
from botocore.stub import Stubber
from cachetier_client.s3_errors import GENERAL_REFUSALS, KIND_OF_CODE

from cachetier.errors import CopiesRefusedError, RemoteRefusedError
from cachetier.remote.base import CopyRange
from cachetier.remote.s3.boto_client import Credentials, connect
from cachetier.remote.s3.reconnecting import Renewed
from cachetier.remote.s3.store import S3ObjectStore


def refusal_of(code: str, status: int) -> type[RemoteRefusedError]:
    """Return as what a store's refusal to copy is raised."""
    client = connect(endpoint="http://127.0.0.1:1", credentials=Credentials("id", "key"))
    store = S3ObjectStore("b", Renewed(lambda: client))
    with Stubber(client) as answers, pytest.raises(RemoteRefusedError) as caught:
        answers.add_client_error("upload_part_copy", code, http_status_code=status)
        store.copy_part("key", "upload", 1, CopyRange("donor", "etag", 0, 8), digest=0)
    return type(caught.value)


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("AccessDenied", 403),
        ("403", 403),
        ("MethodNotAllowed", 405),
        ("NotImplemented", 501),
        ("SomethingNew", 400),
    ],
)
def test_a_store_that_does_not_copy_for_us_is_told_apart(code: str, status: int) -> None:
    assert refusal_of(code, status) is CopiesRefusedError


@pytest.mark.parametrize("code", ["ExpiredToken", "InvalidAccessKeyId", "QuotaExceeded"])
def test_what_would_refuse_any_call_says_nothing_of_copies(code: str) -> None:
    assert refusal_of(code, 403) is RemoteRefusedError


def test_what_refuses_any_call_is_a_refusal() -> None:
    assert {KIND_OF_CODE[code] for code in GENERAL_REFUSALS} == {RemoteRefusedError}
