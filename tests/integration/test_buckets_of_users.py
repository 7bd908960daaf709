"""Buckets as users have them: with versions, with object lock, in another region."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from awscrt.checksums import crc64nvme
from cachetier_client.identity.names import SaveIds

from cachetier.model.lifecycle import SaveState
from cachetier.remote.s3.boto_client import Credentials, connect
from cachetier.remote.s3.reconnecting import Renewed
from cachetier.remote.s3.store import S3ObjectStore
from cachetier.testing.s3_endpoint import S3Endpoint
from tests.integration.drain_node import Node, patterned

LARGE = 40 << 20  # goes in parts
MANIFEST = "ckpt/run/5/.cachetier/manifest.json"
VERSIONED = {"Status": "Enabled"}
LOCKED = {
    "ObjectLockEnabled": "Enabled",
    "Rule": {"DefaultRetention": {"Mode": "GOVERNANCE", "Days": 1}},
}
HOME, ELSEWHERE = "eu-west-1", "us-east-1"


def ids(save_id: str) -> SaveIds:
    return SaveIds("run", 5, save_id)


@pytest.fixture(params=["versioned", "locked"])
def bucket(request: pytest.FixtureRequest, seaweed_s3: S3Endpoint) -> str:
    """A bucket that keeps what is deleted or replaced in it."""
    client: Any = connect(endpoint=seaweed_s3.url, credentials=seaweed_s3.credentials)
    name = f"kept-{secrets.token_hex(4)}"
    locked = request.param == "locked"
    client.create_bucket(Bucket=name, ObjectLockEnabledForBucket=locked)
    if locked:
        client.put_object_lock_configuration(Bucket=name, ObjectLockConfiguration=LOCKED)
    else:
        client.put_bucket_versioning(Bucket=name, VersioningConfiguration=VERSIONED)
    return name


def test_a_bucket_that_keeps_every_version_is_used_like_any_other(
    tmp_path: Path, seaweed_s3: S3Endpoint, bucket: str
) -> None:
    node = Node(tmp_path / "cache", seaweed_s3.store(bucket=bucket))
    objects = node.bucket.objects
    try:
        with node.draining():
            node.put(ids("first"), "large", patterned(LARGE, 1))
            node.wait_clean(ids("first"), "large")
            _save(node, "first", 2)
            assert objects.get(node.key(ids("first"), "large")) == patterned(LARGE, 2)
            node.checkpoints.delete_step("run", 5)
            node.wait_until(lambda: objects.list("ckpt/run/").keys == (MANIFEST,))
            _save(node, "second", 3)
        location = node.save(ids("second")).location
        assert objects.get(node.key(ids("second"), "large", location)) == patterned(LARGE, 3)
        assert node.save(ids("second")).state is SaveState.PUBLISHED
        assert not node.told()
    finally:
        node.close()
    client: Any = connect(endpoint=seaweed_s3.url, credentials=seaweed_s3.credentials)
    kept = client.list_object_versions(Bucket=bucket, Prefix="ckpt/run/5/large")
    assert len(kept["Versions"]) == 2  # both of the deleted step: a rule of the bucket removes them


def _save(node: Node, save_id: str, seed: int) -> None:
    node.put(ids(save_id), "large", patterned(LARGE, seed))
    node.put(ids(save_id), "small", b"small " + save_id.encode())
    node.seal(ids(save_id))
    node.wait_durable(ids(save_id))


class _OtherRegion(BaseHTTPRequestHandler):
    """Answers as AWS does where a bucket is in another region than the request was signed for."""

    protocol_version = "HTTP/1.1"
    met: list[tuple[str, int]]

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        signed_for = re.findall(r"/[0-9]{8}/([^/]+)/s3/", self.headers["Authorization"])[0]
        self.met.append((signed_for, len(body)))
        found = signed_for == HOME
        error = b"" if found else b"<Error><Code>PermanentRedirect</Code></Error>"
        self.send_response(200 if found else 301)
        self.send_header("ETag" if found else "x-amz-bucket-region", '"x"' if found else HOME)
        self.send_header("Content-Length", str(len(error)))
        self.end_headers()
        self.wfile.write(error)

    def log_message(self, *_: object) -> None:
        """Say nothing on stderr."""


@pytest.fixture
def met(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[str, int]]]:
    """Let the AWS chain lead to such a server; each request's region and bytes are listed."""
    met: list[tuple[str, int]] = []
    handler = type("OtherRegion", (_OtherRegion,), {"met": met})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", f"http://127.0.0.1:{server.server_port}")
        thread = Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield met
        server.shutdown()
        thread.join()


def test_a_redirect_to_the_region_of_the_bucket_is_followed_once_and_remembered(
    met: list[tuple[str, int]],
) -> None:
    keys = Credentials("key", "secret")
    store = S3ObjectStore("bucket", Renewed(lambda: connect(region=ELSEWHERE, credentials=keys)))
    body = patterned(1 << 20)

    for key in ("a", "b"):
        store.put(key, body, digest=crc64nvme(body))

    assert met == [(ELSEWHERE, 1 << 20), (HOME, 1 << 20), (HOME, 1 << 20)]
