"""Patients for doctor's tests."""

from __future__ import annotations

import tempfile
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cachetier.doctor.checks import REMOTE_CHECKS, examine
from cachetier.doctor.findings import CheckResult
from cachetier.doctor.subject import Subject
from cachetier.remote.s3.boto_client import Credentials, connect
from cachetier.remote.settings import RemoteSettings
from cachetier.testing.s3_endpoint import S3Endpoint

OF_REMOTE = [check.name for check in REMOTE_CHECKS]


def patient(cache_dir: Path, *remotes: RemoteSettings, **change: Any) -> Subject:
    """Return a node with quick measurements."""
    usual = Subject(
        cache_dir=cache_dir,
        capacity_bytes=lambda filesystem_bytes: filesystem_bytes // 1000,
        socket=cache_dir / "s",
        socket_mode=0o600,
        allowed_uids=(),
        allow_volatile=False,
        remotes=remotes,
        drain_threads=1,
        sync_seconds=0.1,
        pause_seconds=0.1,
        write_bytes=8 << 20,
    )
    return replace(usual, **change)


def signed_in(monkeypatch: pytest.MonkeyPatch, credentials: Credentials) -> None:
    """Have the AWS chain find these."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", credentials.access_key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", credentials.secret_key)


def remote_on(server: S3Endpoint, **change: Any) -> RemoteSettings:
    """Return a remote on a server, as a person would set it for that server."""
    usual = RemoteSettings(
        "durable", server.bucket, "train", endpoint=server.url, verify=server.verify
    )
    return replace(usual, **change)


def found(remote: RemoteSettings, names: Collection[str] = OF_REMOTE) -> dict[str, CheckResult]:
    """Examine one remote; return the findings by name."""
    looked_at = patient(Path(tempfile.gettempdir()) / "cachetier-none", remote)
    return {finding.name: finding for _, finding in examine(looked_at, names)}


def everything_in(endpoint: S3Endpoint, bucket: str) -> list[str]:
    """Return what lies in a bucket: keys, and uploads that were not ended."""
    client: Any = connect(endpoint=endpoint.url, credentials=endpoint.credentials)
    keys = [entry["Key"] for entry in client.list_objects_v2(Bucket=bucket).get("Contents", ())]
    uploads = client.list_multipart_uploads(Bucket=bucket).get("Uploads", ())
    return keys + [f"{entry['Key']}?{entry['UploadId']}" for entry in uploads]
