"""When a client goes straight to S3, when it comes back, and what it asks of S3 on the way."""

from __future__ import annotations

import json
import logging
import os
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from awscrt import auth
from cachetier_client import Client
from cachetier_client.bucket_format.at_rest import AtRest
from cachetier_client.bucket_format.documents import UnflushedNote, UnflushedSave, encode
from cachetier_client.calls import unflushed
from cachetier_client.deadline import Deadline
from cachetier_client.errors import (
    IntegrityError,
    RemoteRefusedError,
    ServiceUnavailableError,
)
from cachetier_client.fallback.direct import parts
from cachetier_client.fallback.direct.remote import (
    first_of,
    from_environment,
    from_hello,
)
from cachetier_client.fallback.direct.s3.address import S3Address
from cachetier_client.fallback.direct.s3.credentials import Signer, SlowCredentialsError
from cachetier_client.fallback.direct.s3.requests import Requests
from cachetier_client.fallback.transport import FallbackTransport
from cachetier_client.identity.names import SaveIds

from tests.client.fake_bucket import FakeBucket, Stored, error
from tests.client.fake_service import FakeService, Refusal
from tests.client.fakes import FakeClock

IDS: dict[str, Any] = {"run": "r", "step": 1, "rank": 0, "world_size": 1, "save_id": "s"}
MIB = 1 << 20


# --- when ----------------------------------------------------------------------------------------


def test_a_put_waits_ten_seconds_for_the_service_and_later_ones_do_not(
    alone: Client, bucket: FakeBucket, clock: FakeClock
) -> None:
    began = clock.time
    assert alone.put_shard(b"one", name="a", **IDS).level == "durable"
    waited = clock.time - began
    assert 5 < waited <= 10

    clock.naps.clear()
    alone.put_shard(b"two", name="b", **IDS)
    alone.put_shard(b"x", name="a", **{**IDS, "step": 2})
    assert clock.naps == []
    assert bucket.objects["p/r/1/a"].body == b"one"
    assert (alone.fallback_shards, alone.fallback_bytes) == (3, 7)


@pytest.mark.parametrize(
    ("step", "save_id", "warned"), [(1, "theirs", 1), (2, "s", 1), (0, "old", 0), (1, "s", 0)]
)
def test_steps_that_nodes_hold_from_the_claimed_one_on_are_named_once_a_run(
    alone: Client,
    bucket: FakeBucket,
    caplog: pytest.LogCaptureFixture,
    step: int,
    save_id: str,
    warned: int,
) -> None:
    unflushed.warn_once.cache_clear()
    save = UnflushedSave(step=step, save_id=save_id, world_size=1, ranks=(0,))
    note = UnflushedNote(run="r", store="0f", host="node-a", saves=(save,))
    bucket.objects["p/.cachetier/unflushed/r/0f.json"] = Stored(encode(note), {}, '"1"')
    for number in range(2):
        alone.put_shard(b"one", name=f"{number}", **{**IDS, "save_id": "s"})
        alone.put_shard(b"one", name=f"{number}", **{**IDS, "step": 9})

    assert caplog.text.count(f"step {step} of run r (all of it) is on node-a") == warned


def test_notes_that_cannot_be_read_keep_no_shard_from_the_bucket(
    alone: Client, bucket: FakeBucket, caplog: pytest.LogCaptureFixture
) -> None:
    bucket.objects["p/.cachetier/unflushed/r/0f.json"] = Stored(b"{", {}, '"1"')
    unflushed.warn_once.cache_clear()

    assert alone.put_shard(b"one", name="a", **IDS).level == "durable"
    assert "cannot be read from the bucket whether other nodes hold newer steps" in caplog.text


def test_half_of_a_short_call_is_left_for_s3(alone: Client, clock: FakeClock) -> None:
    began = clock.time
    alone.put_shard(b"one", name="a", timeout_seconds=4, **IDS)
    assert clock.time - began <= 2


def test_how_long_to_wait_can_be_set(
    bucket: FakeBucket, clock: FakeClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CACHETIER_FALLBACK", "s3:0s")
    with Client(f"unix://{tmp_path}/none", clock=clock) as client:
        client.put_shard(b"one", name="a", **IDS)
    assert clock.naps == []


def test_it_begins_and_ends_with_one_line_each(
    service: FakeService, bucket: FakeBucket, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "cachetier_client")
    with Client(service.url, clock=clock) as client:
        service.stop()
        for step in range(5):
            client.put_shard(b"12345", name="a", **{**IDS, "step": step})
            clock.time += 3
        assert client.fallback_shards == 5
        service.start()
        clock.time += 5
        assert client.put_shard(b"x", name="a", **{**IDS, "step": 9}).level == "local"
    begins, ends = (
        record.getMessage() for record in caplog.records if "sealed" not in record.getMessage()
    )
    assert "is away: shards go straight to s3://bucket/p" in begins
    assert "is back" in ends
    assert "5 shards, 25 B, went" in ends
    assert service.fallbacks == [(5, 25)]


def test_the_service_is_looked_for_every_few_seconds_however_often_shards_are_put(
    service: FakeService, bucket: FakeBucket, clock: FakeClock
) -> None:
    with Client(service.url, clock=clock) as client:
        service.stop()
        client.put_shard(b"x", name="a", **IDS)
        service.start()
        for step in range(2, 20):
            clock.time += 1
            if client.put_shard(b"x", name="a", **{**IDS, "step": step}).level == "local":
                break
        assert 5 <= step <= 7


def test_what_the_service_itself_refuses_does_not_go_past_it(
    service: FakeService, bucket: FakeBucket
) -> None:
    service.refusals["put"] = [Refusal("backpressure"), Refusal("fenced")]
    with Client(service.url, clock=FakeClock()) as client:
        for _ in range(2):
            with pytest.raises(Exception, match="as told"):
                client.put_shard(b"x", name="a", **IDS)
    assert not bucket.seen


def test_reading_waits_for_the_service_as_ever(alone: Client, bucket: FakeBucket) -> None:
    alone.put_shard(b"one", name="a", **IDS)
    before = bucket.seen.copy()
    with pytest.raises(ServiceUnavailableError):
        alone.get_shard("r", 1, "a", timeout_seconds=1)
    with pytest.raises(ServiceUnavailableError):
        alone.latest("r", timeout_seconds=1)
    assert bucket.seen == before


# --- where ---------------------------------------------------------------------------------------


def test_without_a_remote_nothing_goes_anywhere(tmp_path: Path) -> None:
    with Client(f"unix://{tmp_path}/none", run="r", clock=FakeClock()) as client:
        with pytest.raises(ServiceUnavailableError, match="cannot connect"):
            client.put_shard(b"x", name="a", timeout_seconds=3, **IDS)
        assert client.fallback_shards == 0


@pytest.mark.parametrize("fallback", ["wait", "fail"])
def test_who_does_not_want_it_does_not_get_it(
    bucket: FakeBucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fallback: str
) -> None:
    monkeypatch.setenv("CACHETIER_FALLBACK", fallback)
    with Client(f"unix://{tmp_path}/none", run="r", clock=FakeClock()) as client:
        assert not isinstance(client._caller.transport, FallbackTransport)
        with pytest.raises(ServiceUnavailableError):
            client.put_shard(b"x", name="a", timeout_seconds=3, **IDS)
    assert not bucket.seen


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("CACHETIER_FALLBACK", "gcs"),
        ("CACHETIER_FALLBACK", "s3:soon"),
        ("CACHETIER_FALLBACK", "wait:10s"),
        ("CACHETIER_REMOTE", "gs://bucket"),
        ("CACHETIER_REMOTE_ENDPOINT", "no-url"),
        ("CACHETIER_REMOTE_ENDPOINT", "http://host:port"),
    ],
)
def test_a_setting_that_means_nothing_is_refused_by_its_name(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CACHETIER_REMOTE", "s3://bucket/p")
    monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=value):
        Client("unix:///none")


def test_the_environment_names_a_remote_as_it_does_for_the_service() -> None:
    assert from_environment({}) is None
    assert from_environment({"CACHETIER_REMOTE": "s3://bucket"}) == S3Address("bucket")
    full = {
        "CACHETIER_REMOTE": json.dumps(
            {
                "url": "s3://bucket/a/b/",
                "region": "eu",
                "assume": ["readback", "unconditional", "spread"],
            }
        ),
        "CACHETIER_REMOTE_ENDPOINT": "https://host:1",
    }
    expected = S3Address("bucket", "a/b", "https://host:1", "eu", "readback", False, True)
    assert from_environment(full) == expected


ENCRYPTED = AtRest("aws:kms", "alias/k", (("team", "llama"),), "STANDARD_IA")


@pytest.mark.parametrize("name", ["CACHETIER_REMOTE_ASSUME", "CACHETIER_CONDITIONAL_WRITES"])
def test_a_variable_that_only_the_service_has_is_not_ignored(name: str) -> None:
    for wrong in ('"assume": "maybe"', '"asume": "path"', '"assume": ["path", "virtual"]'):
        with pytest.raises(ValueError, match=r"CACHETIER_REMOTE: as"):
            from_environment({"CACHETIER_REMOTE": f'{{"url": "s3://bucket", {wrong}}}'})
    with pytest.raises(ValueError, match=f"CACHETIER_REMOTE: {name}: write all as JSON"):
        from_environment({"CACHETIER_REMOTE": "s3://bucket", name: "off"})


def test_the_environment_says_how_objects_are_kept_as_it_does_for_the_service() -> None:
    remote = {
        "url": "s3://bucket",
        "encryption": "aws:kms alias/k",
        "kms_context": {"team": "llama"},
        "storage_class": "STANDARD_IA",
    }
    assert from_environment({"CACHETIER_REMOTE": json.dumps(remote)}) == S3Address(
        "bucket", at_rest=ENCRYPTED
    )
    remote["storage_class"] = "DEEP_ARCHIVE"
    with pytest.raises(ValueError, match="cannot be read back at once"):
        from_environment({"CACHETIER_REMOTE": json.dumps(remote)})


def test_an_environment_that_says_only_where_leaves_the_services_encryption_on() -> None:
    told = from_hello({"bucket": "bucket", "prefix": "", **ENCRYPTED.described()})
    assert told == S3Address("bucket", at_rest=ENCRYPTED)
    named = S3Address("bucket", region="eu")
    assert first_of(named, told) == S3Address("bucket", region="eu", at_rest=ENCRYPTED)
    remote = {"CACHETIER_REMOTE": "s3://bucket"}
    assert first_of(from_environment(remote), told) == told
    said = from_environment({"CACHETIER_REMOTE": '{"url": "s3://bucket", "encryption": "bucket"}'})
    assert first_of(said, told) == said, "who says that the bucket decides is not silent"
    plain = S3Address("bucket", at_rest=AtRest("AES256"))
    assert first_of(plain, told) is plain
    elsewhere = S3Address("elsewhere")
    assert first_of(elsewhere, told) is elsewhere
    assert first_of(None, told) is told
    assert first_of(named, None) is named


def test_an_environment_that_says_no_addressing_style_leaves_what_the_service_found() -> None:
    where = {"CACHETIER_REMOTE": "s3://bucket/p", "CACHETIER_REMOTE_ENDPOINT": "http://s3.example"}
    told = S3Address("bucket", "p", "http://s3.example", addressing_style="virtual")
    assert first_of(from_environment(where), told) == told
    forced = where | {"CACHETIER_REMOTE": '{"url": "s3://bucket/p", "assume": ["path"]}'}
    assert first_of(from_environment(forced), told) == replace(told, addressing_style="path")
    elsewhere = where | {"CACHETIER_REMOTE_ENDPOINT": "http://other.example"}
    found = first_of(from_environment(elsewhere), told)
    assert isinstance(found, S3Address) and found.addressing_style == "auto"


@pytest.mark.parametrize(
    "told",
    [
        *(None, 5, {}, {"bucket": 5}),
        {"bucket": "b", "prefix": "", "encryption": "rot13"},
        {"bucket": "b", "prefix": "", "encryption": "aws:kms", "kms_context": 5},
        {"bucket": "b", "prefix": "", "endpoint": "no-url"},
        {"bucket": "b", "prefix": "", "endpoint": "http://[host"},
        {"bucket": "b", "prefix": "", "endpoint": "http://host:port"},
    ],
)
def test_a_service_that_names_no_remote_we_understand_names_none(told: object) -> None:
    assert from_hello(told) is None


# --- what is asked of S3 -------------------------------------------------------------------------


def test_a_large_shard_goes_in_parts_and_a_stream_holds_one_of_them(
    alone: Client, bucket: FakeBucket
) -> None:
    body = os.urandom(40 * MIB + 3)
    with alone.checkpoint("r", 1, rank=0, world_size=1, save_id="s") as checkpoint:
        checkpoint.put([body[: 7 * MIB + 1], body[7 * MIB + 1 :]], "put")
        with checkpoint.open("stream") as stream:
            for at in range(0, len(body), 3 * MIB):
                stream.write(body[at : at + 3 * MIB])
    assert bucket.objects["p/r/1/put"].body == body
    assert bucket.objects["p/r/1/stream"].body == body
    assert bucket.longest_body == 16 * MIB
    assert not bucket.uploads
    manifest = json.loads(bucket.objects["p/r/1/.cachetier/manifest.json"].body)
    assert manifest["state"] == "published"


@pytest.mark.parametrize("method", ["PUT", "HEAD", "GET"])
def test_what_may_pass_is_repeated_and_a_wait_that_s3_asks_for_is_kept(
    alone: Client, bucket: FakeBucket, clock: FakeClock, method: str
) -> None:
    slow = error(503, "SlowDown", **{"retry-after": "7"})
    bucket.troubles = [(method, slow), (method, ConnectionResetError()), (method, error(500, "X"))]
    alone.put_shard(b"x", name="a", **IDS)
    assert not bucket.troubles
    assert 7.0 in clock.naps
    assert bucket.objects["p/r/1/a"].body == b"x"


def test_what_s3_refuses_is_not_repeated(alone: Client, bucket: FakeBucket) -> None:
    alone.put_shard(b"x", name="a", **IDS)
    bucket.troubles = [("PUT", error(403, "AccessDenied"))]
    with pytest.raises(ServiceUnavailableError, match="AccessDenied") as caught:
        alone.put_shard(b"x", name="b", **IDS)
    assert isinstance(caught.value.__cause__, RemoteRefusedError)
    assert "p/r/1/b" not in bucket.objects


def test_a_code_wins_over_the_status_as_it_does_for_the_drain(
    alone: Client, bucket: FakeBucket
) -> None:
    alone.put_shard(b"x", name="a", **IDS)
    bucket.troubles = [("PUT", error(503, "QuotaExceeded"))]
    with pytest.raises(ServiceUnavailableError, match="QuotaExceeded"):
        alone.put_shard(b"x", name="b", **IDS)
    large = bytes(17 << 20)
    bucket.troubles = [("PUT", error(400, "InvalidPart"))]  # mended by a new upload
    assert alone.put_shard(large, name="c", **IDS).level == "durable"
    assert bucket.objects["p/r/1/c"].body == large


def test_a_call_that_s3_took_all_the_time_of_names_both_too(
    alone: Client, bucket: FakeBucket, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused_late(*_: object) -> Any:
        clock.sleep(100)
        return error(403, "AccessDenied")

    monkeypatch.setattr(bucket, "_answer", refused_late)
    with pytest.raises(ServiceUnavailableError, match=r"the service is away .*AccessDenied"):
        alone.put_shard(b"x", name="b", timeout_seconds=4, **IDS)


def test_a_bucket_that_lets_nobody_in_is_not_asked_again_at_once(
    alone: Client, bucket: FakeBucket, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    def refused(name: str) -> None:
        with pytest.raises(ServiceUnavailableError, match="AccessDenied"):
            alone.put_shard(b"x", name=name, timeout_seconds=4, **IDS)

    bucket.troubles = [("GET", error(403, "AccessDenied"))]
    refused("a")
    seen = bucket.seen.total()
    refused("b")
    assert bucket.seen.total() == seen
    assert not caplog.records  # nothing went anywhere
    clock.time += 30
    assert alone.put_shard(b"x", name="c", **IDS).level == "durable"
    assert len(caplog.records) == 1


def test_a_claim_whose_answer_was_lost_is_recognised(alone: Client, bucket: FakeBucket) -> None:
    class Lossy(FakeBucket):
        """Does the first write, and loses the answer."""

        lost = 0

        def _answer(self, *args: object, **options: object):  # type: ignore[no-untyped-def]
            answer = super()._answer(*args, **options)  # type: ignore[arg-type]
            if args[0] == "PUT" and self.lost < 3:
                self.lost += 1
                raise ConnectionResetError
            return answer

    lossy = Lossy()
    bucket.send = lossy.send  # type: ignore[method-assign]
    with alone.checkpoint("r", 1, rank=0, world_size=1, save_id="s") as checkpoint:
        checkpoint.put(b"x", "a")
    assert lossy.lost == 3
    manifest = json.loads(lossy.objects["p/r/1/.cachetier/manifest.json"].body)
    assert manifest["state"] == "published"


def test_a_store_that_keeps_other_bytes_is_found_out(alone: Client, bucket: FakeBucket) -> None:
    keep = bucket._keep

    def damaging(key: str, body: bytes, metadata: dict[str, str]):  # type: ignore[no-untyped-def]
        return keep(key, body if ".cachetier" in key else body + b"!", metadata)

    bucket._keep = damaging  # type: ignore[method-assign]
    with pytest.raises((IntegrityError, ServiceUnavailableError)):
        alone.put_shard(b"x", name="a", **IDS)


def test_a_manifest_that_is_none_of_ours_is_named(alone: Client, bucket: FakeBucket) -> None:
    bucket._keep("p/r/1/.cachetier/manifest.json", b"[]", {})
    with pytest.raises(IntegrityError, match=r"manifest\.json"):
        alone.put_shard(b"x", name="a", **IDS)


# --- parts of several processes ------------------------------------------------------------------


def test_a_part_that_this_process_put_nothing_of_is_left_to_the_service(
    alone: Client, bucket: FakeBucket
) -> None:
    with pytest.raises(ServiceUnavailableError):
        alone.seal("r", 1, rank=0, world_size=1, save_id="s", timeout_seconds=3)
    assert not bucket.objects


def test_a_part_that_follows_may_grow_until_its_leader_has_sealed(
    alone: Client, bucket: FakeBucket
) -> None:
    ids = {**IDS, "world_size": 2}
    for name in ("a", "b"):
        alone.put_shard(b"x", name=name, **{**ids, "rank": 1})
        alone.seal("r", 1, rank=1, world_size=2, save_id="s", follows=True)
    part = json.loads(bucket.objects["p/r/1/.cachetier/rank-1.json"].body)
    assert [shard["name"] for shard in part["shards"]] == ["a", "b"]
    manifest = json.loads(bucket.objects["p/r/1/.cachetier/manifest.json"].body)
    assert manifest["state"] == "claimed"
    alone.put_shard(b"x", name="leader", **ids)
    alone.seal("r", 1, rank=0, world_size=2, save_id="s")
    manifest = json.loads(bucket.objects["p/r/1/.cachetier/manifest.json"].body)
    assert manifest["state"] == "published"
    assert len(manifest["shards"]) == 3


def test_what_a_process_knows_of_its_parts_is_bounded() -> None:
    known = parts.DirectRankParts()
    for step in range(parts.UNSEALED_LIMIT + 10):
        known.of(SaveIds("r", step, "s", 0, 1), 0.0)
    assert len(known._states) <= parts.UNSEALED_LIMIT
    for step in range(100, 300):
        state = known.of(SaveIds("r", step, "s", 0, 1), 0.0)
        state.pending = True
        known.ended(state)
    ended = [state for state in known._states.values() if state.has_ended]
    assert len(ended) == parts.SEALED_LIMIT


# --- a forked child ------------------------------------------------------------------------------


def test_a_forked_child_saves_on_its_own(alone: Client, bucket: FakeBucket) -> None:
    alone.put_shard(b"x", name="a", **IDS)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            alone.put_shard(b"y", name="b", **IDS)
            status = 0 if alone.fallback_shards == 1 else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    alone.put_shard(b"z", name="c", **IDS)
    assert alone.fallback_shards == 2


def test_requests_are_signed_with_the_keys_of_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "an-id")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "a-secret")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "a-token")
    deadline = Deadline(10, FakeClock())
    headers = dict(Signer("eu-west-1").signed("GET", "/b/k", {"Host": "h"}, deadline))
    assert headers["Authorization"].startswith("AWS4-HMAC-SHA256 Credential=an-id/")
    assert "/eu-west-1/s3/aws4_request" in headers["Authorization"]
    assert headers["X-Amz-Security-Token"] == "a-token"
    assert headers["x-amz-content-sha256"] == "UNSIGNED-PAYLOAD"


def test_a_store_with_a_certificate_of_its_own_is_trusted_as_the_service_trusts_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "an-id")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "a-secret")
    monkeypatch.setenv("AWS_CA_BUNDLE", str(tmp_path / "none.pem"))
    requests = Requests(S3Address("bucket", endpoint="https://127.0.0.1:1"))
    with pytest.raises(FileNotFoundError):
        requests.send("GET", "key", Deadline(10, FakeClock()))


def test_keys_of_a_profile_do_in_a_forked_child_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID", raising=False)
    profile = tmp_path / "credentials"
    profile.write_text("[default]\naws_access_key_id = of-file\naws_secret_access_key = x\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(profile))
    signer = Signer("eu-west-1")

    def is_signed() -> bool:
        deadline = Deadline(10, FakeClock())
        headers = dict(signer.signed("GET", "/b/k", {"Host": "h"}, deadline))
        return "Credential=of-file/" in headers["Authorization"]

    assert is_signed()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            status = 0 if is_signed() else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert is_signed()


def test_without_keys_the_error_says_what_to_give(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID", raising=False)
    deadline = Deadline(10, FakeClock())
    with pytest.raises(RemoteRefusedError, match="no AWS credentials") as caught:
        Signer("eu-west-1").signed("GET", "/b/k", {"Host": "h"}, deadline)
    assert "CACHETIER_FALLBACK=wait" in caught.value.hint


def test_keys_that_are_slow_to_come_are_trouble_that_may_pass_and_no_refusal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "an-id")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "a-secret")
    signing: Future[None] = Future()
    monkeypatch.setattr(auth, "aws_sign_request", lambda *_: signing)

    with pytest.raises(OSError) as slow:
        Signer("eu-west-1").signed("GET", "/b/k", {"Host": "h"}, Deadline(0.01, FakeClock()))

    assert not isinstance(slow.value, RemoteRefusedError)
    assert isinstance(slow.value, SlowCredentialsError)
