"""What nginx with nothing set does to S3, and that each setting of ours is needed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from awscrt.checksums import crc64nvme

from cachetier.config import settings as config
from cachetier.doctor.findings import State
from cachetier.errors import ConfigError, RemoteRefusedError
from cachetier.service.first_start import refuse_wrong_remote
from cachetier.testing.s3_endpoint import S3Endpoint
from cachetier.testing.seaweed import seaweedfs
from tests.integration.doctoring import found, remote_on, signed_in
from tests.stores.servers import HOST_KEPT, nginx_before

MIB = bytes(1 << 20)


@pytest.fixture(scope="module")
def behind(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Endpoint]:
    with seaweedfs(tmp_path_factory.mktemp("behind")) as endpoint:
        yield endpoint


def test_another_host_than_was_signed_is_refused(behind: S3Endpoint, tmp_path: Path) -> None:
    with nginx_before(behind, tmp_path, settings="") as front:
        with pytest.raises(RemoteRefusedError, match="403"):
            front.store().check()


def test_a_body_above_its_limit_is_refused(behind: S3Endpoint, tmp_path: Path) -> None:
    with nginx_before(behind, tmp_path, settings=HOST_KEPT) as front:
        store = front.store()
        store.put("least", MIB, digest=crc64nvme(MIB))
        with pytest.raises(RemoteRefusedError, match="Request Entity Too Large"):
            store.put("more", MIB + b"x", digest=crc64nvme(MIB + b"x"))


WITH_A_PATH = "location /cachetier {{ proxy_pass {upstream}/cachetier; }}"


@pytest.mark.parametrize(
    ("settings", "state", "measured"),
    [
        ("", State.OK, "special characters in keys are kept"),
        (WITH_A_PATH, State.WARN, "keys are refused or changed with //:"),
    ],
    ids=["as it comes", "with a path"],
)
def test_keys_come_through_a_proxy_that_passes_paths_as_they_come(
    behind: S3Endpoint,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    settings: str,
    state: State,
    measured: str,
) -> None:
    signed_in(monkeypatch, behind.credentials)
    said = f"{HOST_KEPT} {settings.format(upstream=behind.url)}"
    with nginx_before(behind, tmp_path, said) as front:
        finding = found(remote_on(front), ["keys"])["keys"]
    assert finding.state is state
    assert finding.measured.startswith(measured)


def test_doctor_and_the_first_start_name_what_nginx_refuses(
    behind: S3Endpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    signed_in(monkeypatch, behind.credentials)
    with nginx_before(behind, tmp_path, HOST_KEPT) as front:
        findings = found(remote_on(front), ["body-limit", "buffering", "connections"])
        given = {"remote": f"s3://{front.bucket}/p", "remote_endpoint": front.url}
        with pytest.raises(ConfigError, match="MB are refused") as refusal:
            refuse_wrong_remote(config.load(given | {"cache_dir": str(tmp_path / "new")}))
    assert findings["body-limit"].state is State.FAIL
    assert "client_max_body_size 0" in findings["body-limit"].fix
    assert "whole bodies are taken" in findings["buffering"].measured
    assert findings["connections"].state is State.OK
    assert "client_max_body_size 0" in refusal.value.hint
