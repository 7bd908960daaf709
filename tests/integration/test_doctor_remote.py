"""Doctor against S3 servers, sound and troubled: each check is right, and fails when it should."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from itertools import count, islice
from pathlib import Path
from typing import Any

import pytest
from cachetier_client.bucket_format.at_rest import AtRest

from cachetier.doctor.checks import examine
from cachetier.doctor.findings import State
from cachetier.remote.s3.boto_client import connect
from cachetier.remote.settings import RemoteSettings
from cachetier.testing.http_wire import WireHead
from cachetier.testing.s3_endpoint import S3Endpoint
from cachetier.testing.s3proxy import S3Proxy
from cachetier.testing.troubles import ALWAYS, Fault, Trouble, Troubles, When
from cachetier.testing.weed import READER
from tests.integration.doctoring import (
    OF_REMOTE,
    everything_in,
    found,
    patient,
    remote_on,
    signed_in,
)
from tests.integration.old_store import old_store

_buckets = count(1)


@pytest.fixture
def sound(seaweed_s3: S3Endpoint, monkeypatch: pytest.MonkeyPatch) -> S3Endpoint:
    """A server that judges everything; its keys are in the environment."""
    signed_in(monkeypatch, seaweed_s3.credentials)
    return seaweed_s3


@pytest.fixture
def bucket(sound: S3Endpoint) -> str:
    """A bucket of the test's own."""
    name = f"doctor-{next(_buckets)}"
    sound.create_bucket(name)
    return name


@pytest.fixture
def proxy(sound: S3Endpoint) -> Iterator[S3Proxy]:
    with S3Proxy(sound.url) as proxy:
        yield proxy


def test_a_sound_remote_passes_every_check_and_is_left_empty(
    sound: S3Endpoint, bucket: str
) -> None:
    findings = found(remote_on(sound, bucket=bucket))
    assert list(findings) == OF_REMOTE
    states = {name: finding.state for name, finding in findings.items()}
    assert states.pop("lifecycle") is State.WARN  # a new bucket has no rules
    assert set(states.values()) == {State.OK}
    assert everything_in(sound, bucket) == []


def test_a_remote_at_the_root_of_its_bucket_is_probed_below_our_own_name(
    sound: S3Endpoint, bucket: str
) -> None:
    findings = found(remote_on(sound, bucket=bucket, prefix=""))
    assert findings["put"].state is State.OK
    assert everything_in(sound, bucket) == []


def test_a_server_that_believes_everything_needs_readback(
    moto_s3: S3Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    signed_in(monkeypatch, moto_s3.credentials)
    remote = remote_on(moto_s3, verify="checksum")
    found_wrong = found(remote, ["checksum"])["checksum"]
    assert found_wrong.state is State.FAIL
    assert "not kept, a wrong one is accepted" in found_wrong.measured
    assert 'assume = ["readback"]' in found_wrong.fix
    all_found = found(remote_on(moto_s3))
    assert {name for name, each in all_found.items() if each.state is State.FAIL} == set()
    assert all_found["checksum"].state is State.OK


def test_what_a_store_could_do_and_is_not_asked_for_is_noticed(
    sound: S3Endpoint, bucket: str
) -> None:
    remote = remote_on(sound, bucket=bucket, verify="readback", conditional_writes=False)
    findings = found(remote)
    assert findings["checksum"].fix.startswith("Take `readback` out of")
    assert findings["conditional"].fix.startswith("Take `unconditional` out of")


def test_wrong_keys_are_told_apart_from_missing_rights(
    sound: S3Endpoint, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    findings = found(remote_on(sound, bucket=bucket))
    assert findings["reach"].values["remote_code"] == "SignatureDoesNotMatch"
    assert findings["put"].state is State.SKIPPED
    signed_in(monkeypatch, READER)
    findings = found(remote_on(sound, bucket=bucket))
    assert findings["reach"].state is State.OK
    assert f"Allow s3:PutObject on arn:aws:s3:::{bucket}/train/*" in findings["put"].fix
    assert findings["read"].state is State.SKIPPED


def test_no_credentials_at_all_are_the_first_finding(
    sound: S3Endpoint, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    findings = found(remote_on(sound, bucket=bucket))
    assert findings["credentials"].state is State.FAIL
    assert "AWS_PROFILE" in findings["credentials"].fix
    assert findings["multipart"].state is State.SKIPPED


def test_a_bucket_that_is_not_there_is_named(sound: S3Endpoint) -> None:
    finding = found(remote_on(sound, bucket="nonesuch"))["reach"]
    assert (finding.state, finding.measured) == (
        State.FAIL,
        "there is no bucket nonesuch (NoSuchBucket)",
    )


def test_a_store_that_cannot_be_reached_skips_the_rest(sound: S3Endpoint) -> None:
    findings = found(remote_on(sound, endpoint="http://127.0.0.1:9"), ["put"])
    assert findings["reach"].state is State.FAIL
    assert "`endpoint`" in findings["reach"].fix
    assert findings["put"].state is State.SKIPPED


class KeyDenied(Troubles):
    """A store whose KMS key is not for us."""

    def strike(self, request: WireHead) -> Trouble | None:
        asked = request.fields.get("x-amz-server-side-encryption")
        return Trouble.ACCESS_DENIED if asked == "aws:kms" else super().strike(request)


def test_a_key_that_is_denied_is_told_from_a_bucket_that_is(sound: S3Endpoint, bucket: str) -> None:
    kept = AtRest("aws:kms", "alias/not-ours")
    with S3Proxy(sound.url, troubles=KeyDenied()) as proxy:
        findings = found(remote_on(sound, endpoint=proxy.url, bucket=bucket, at_rest=kept))
        assert findings["put"].measured == "access denied: the KMS key"
        assert "kms:GenerateDataKey" in findings["put"].fix
        assert findings["at-rest"].state is State.SKIPPED
        assert everything_in(sound, bucket) == []
        proxy.troubles = Troubles([Fault(Trouble.ACCESS_DENIED, "PutObject", ALWAYS)])
        put = found(remote_on(sound, endpoint=proxy.url, bucket=bucket, at_rest=kept), ["put"])
    assert put["put"].measured == "access denied: s3:PutObject"


DENIED = [
    ("PutObject", When(times=None), "put", "s3:PutObject"),
    ("GetObject", When(times=None), "read", "s3:GetObject"),
    ("ListObjectsV2", When(start=2, times=None), "list", "s3:ListBucket"),
    ("PutObject", When(start=2, times=None), "conditional", "s3:PutObject"),
    ("CreateMultipartUpload", ALWAYS, "multipart", "s3:PutObject"),
    ("CompleteMultipartUpload", ALWAYS, "multipart", "s3:PutObject"),
    ("AbortMultipartUpload", When(times=1), "abort", "s3:AbortMultipartUpload"),
    ("ListMultipartUploads", ALWAYS, "abort", "s3:AbortMultipartUpload"),
    ("DeleteObject", When(times=1), "delete", "s3:DeleteObject"),
]


@pytest.mark.parametrize(
    ("operation", "when", "check", "right"), DENIED, ids=[f"{row[2]}-{row[0]}" for row in DENIED]
)
def test_each_missing_right_fails_its_own_check(
    operation: str,
    when: When,
    check: str,
    right: str,
    proxy: S3Proxy,
    sound: S3Endpoint,
    bucket: str,
) -> None:
    proxy.troubles.add(Fault(Trouble.ACCESS_DENIED, operation, when))
    finding = found(remote_on(sound, endpoint=proxy.url, bucket=bucket), [check])[check]
    assert proxy.troubles.fired[Trouble.ACCESS_DENIED] >= 1
    assert finding.state is State.FAIL
    assert finding.values["remote_code"] == "AccessDenied"
    assert f"Allow {right} on arn:aws:s3:::{bucket}" in finding.fix


REFUSED = [
    (Trouble.EXPIRED_TOKEN, "ListObjectsV2", "reach", "Renew"),
    (Trouble.TIME_SKEWED, "ListObjectsV2", "reach", "chronyd"),
    (Trouble.NO_SUCH_BUCKET, "ListObjectsV2", "reach", "Create it"),
    (Trouble.SLOW_DOWN, "PutObject", "put", "bench --remote"),
    (Trouble.INTERNAL_ERROR, "PutObject", "put", "the store's log"),
    (Trouble.CLOSED, "PutObject", "put", "the store's log"),
    (Trouble.WRONG_CHECKSUM, "HeadObject", "checksum", 'assume = ["readback"]'),
    (Trouble.ACCESS_DENIED, "UploadPartCopy", "copy", "`nocopy` to `assume`"),
]


@pytest.mark.parametrize(
    ("trouble", "operation", "check", "fix"), REFUSED, ids=[f"{row[2]}-{row[0]}" for row in REFUSED]
)
def test_each_trouble_has_its_fix(
    trouble: Trouble,
    operation: str,
    check: str,
    fix: str,
    proxy: S3Proxy,
    sound: S3Endpoint,
    bucket: str,
) -> None:
    proxy.troubles.add(Fault(trouble, operation, ALWAYS))
    names = ["multipart", check]  # what is copied is an upload's object
    finding = found(remote_on(sound, endpoint=proxy.url, bucket=bucket), names)[check]
    assert proxy.troubles.fired[trouble] >= 1
    assert finding.state in (State.WARN, State.FAIL)
    assert fix in finding.fix


def test_a_store_of_long_ago_fails_what_it_cannot_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "anybody")
    with old_store() as (url, objects):
        findings = found(RemoteSettings("durable", "bucket", "p", endpoint=url))
        assert objects == {}
    assert findings["read"].state is State.OK
    assert findings["conditional"].measured.startswith("If-None-Match ignored, If-Match ignored")
    assert 'assume = ["unconditional"]' in findings["conditional"].fix
    assert 'assume = ["readback"]' in findings["checksum"].fix
    assert "does not know this call" in findings["multipart"].measured
    assert findings["copy"].state is State.SKIPPED
    assert findings["lifecycle"].state is State.SKIPPED


@pytest.mark.parametrize(
    ("ahead", "state"), [(0.0, State.OK), (120.0, State.WARN), (-3600.0, State.FAIL)]
)
def test_a_clock_that_is_off_is_measured(
    ahead: float, state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "anybody")
    with old_store(ahead) as (url, _):
        finding = found(RemoteSettings("durable", "bucket", endpoint=url), ["clock"])["clock"]
    assert finding.state is state
    assert finding.values["skew_seconds"] == pytest.approx(-ahead, abs=5)


def test_rules_and_versions_of_the_bucket_are_read(sound: S3Endpoint, bucket: str) -> None:
    client: Any = connect(endpoint=sound.url, credentials=sound.credentials)
    abort = {"AbortIncompleteMultipartUpload": {"DaysAfterInitiation": 3}}

    def rules(*given: dict[str, Any]) -> None:
        usual = {"Status": "Enabled", "Filter": {"Prefix": ""}}
        configured = [{"ID": f"r{at}", **usual, **each} for at, each in enumerate(given)]
        client.put_bucket_lifecycle_configuration(
            Bucket=bucket, LifecycleConfiguration={"Rules": configured}
        )

    remote, names = remote_on(sound, bucket=bucket), ["lifecycle", "versioning"]
    rules(abort)
    assert found(remote, names)["lifecycle"].values == {"abort_days": 3}
    rules({**abort, "Filter": {"Prefix": "train/"}, "Expiration": {"Days": 30}})
    assert "deletes objects under train" in found(remote, names)["lifecycle"].measured
    client.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    assert "NoncurrentVersionExpiration" in found(remote, names)["versioning"].fix


def test_what_cannot_be_removed_is_named(proxy: S3Proxy, sound: S3Endpoint, bucket: str) -> None:
    proxy.troubles.add(Fault(Trouble.ACCESS_DENIED, "DeleteObject", ALWAYS))
    findings = found(remote_on(sound, endpoint=proxy.url, bucket=bucket), ["put"])
    (left,) = everything_in(sound, bucket)
    assert left in findings["cleanup"].measured
    assert findings["cleanup"].state is State.WARN


def test_a_lost_answer_leaves_nothing_behind(
    proxy: S3Proxy, sound: S3Endpoint, bucket: str
) -> None:
    proxy.troubles.add(Fault(Trouble.LOST_REPLY, "PutObject", When(times=None)))
    found(remote_on(sound, endpoint=proxy.url, bucket=bucket), ["put"])
    assert proxy.troubles.fired[Trouble.LOST_REPLY] >= 1
    assert everything_in(sound, bucket) == []


def test_an_examination_that_is_cut_short_cleans_up(
    sound: S3Endpoint, bucket: str, tmp_path: Path
) -> None:
    looked_at = patient(tmp_path, remote_on(sound, bucket=bucket))
    with closing(examine(looked_at, OF_REMOTE)) as findings:
        upto_multipart = list(islice(findings, OF_REMOTE.index("multipart") + 1))
        assert upto_multipart[-1][1].state is State.OK
        assert everything_in(sound, bucket) != []
    assert everything_in(sound, bucket) == []


def test_every_remote_is_examined_under_its_own_name(
    sound: S3Endpoint, bucket: str, tmp_path: Path
) -> None:
    near = remote_on(sound, bucket=bucket, name="near", role="replica")
    looked_at = patient(tmp_path, remote_on(sound, bucket="nonesuch"), near)
    states = {
        (finding.remote, finding.name): finding.state for _, finding in examine(looked_at, ["put"])
    }
    assert states["durable", "put"] is State.SKIPPED
    assert states["near", "put"] is State.OK
