"""What doctor says of a remote: rules of the bucket, clocks, credentials, refusals."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from botocore.exceptions import EndpointConnectionError
from cachetier_client.bucket_format.at_rest import AtRest

from cachetier.doctor import remote, s3
from cachetier.doctor.findings import State
from cachetier.doctor.refusals import judge_refusal
from cachetier.errors import RemoteRefusedError, ThrottledError, TransientError
from cachetier.remote.s3.boto_client import FoundCredentials
from cachetier.remote.settings import RemoteSettings

SETTINGS = RemoteSettings("durable", "bucket", "train/a")


@pytest.mark.parametrize(
    ("ahead", "state", "said"),
    [
        (0.4, State.OK, "to the second"),
        (-3.0, State.OK, "3 s ahead of"),
        (-12.0, State.WARN, "12 s ahead of"),
        (45.0, State.WARN, "45 s behind"),
        (-3600.0, State.FAIL, "3600 s ahead"),
        (None, State.SKIPPED, "no Date"),
    ],
)
def test_clocks_that_are_apart_are_noticed(ahead: float | None, state: State, said: str) -> None:
    found = s3.judge_clock(ahead)
    assert found.state is state
    assert said in found.measured


def credentials(**change: Any) -> FoundCredentials:
    fields = {"source": "env", "access_key": "AKIAEXAMPLEKEY99", "temporary": False}
    return FoundCredentials(**{**fields, "renewed": False, "expires_at": None, **change})


@pytest.mark.parametrize(
    ("found", "state", "said"),
    [
        (None, State.FAIL, "none were found"),
        (credentials(), State.OK, "env, key AKIA...EY99, without an end"),
        (credentials(temporary=True), State.WARN, "nobody renews them"),
        (
            credentials(temporary=True, renewed=True, source="iam-role", expires_at=7200.0),
            State.OK,
            "renewed by themselves, these for 2.0 h",
        ),
    ],
)
def test_credentials_that_end_are_noticed(
    found: FoundCredentials | None, state: State, said: str
) -> None:
    judgement = s3.judge_credentials(found, now=0.0)
    assert judgement.state is state
    assert said in judgement.measured
    assert "EXAMPLE" not in judgement.measured


@pytest.mark.parametrize(
    ("absent", "match", "declared", "state"),
    [
        ("obeyed", "obeyed", True, State.OK),
        ("obeyed", "obeyed", False, State.WARN),
        ("ignored", "obeyed", True, State.FAIL),
        ("obeyed", "ignored", True, State.FAIL),
        ("refused", "refused", True, State.FAIL),
        ("ignored", "ignored", False, State.WARN),
    ],
)
def test_conditions_must_be_obeyed_as_they_are_declared(
    absent: str, match: str, declared: bool, state: State
) -> None:
    assert remote.judge_conditional(absent, match, declared=declared).state is state


@pytest.mark.parametrize(
    ("faults", "verify", "state", "fix"),
    [
        ([], "checksum", State.OK, ""),
        ([], "readback", State.WARN, "Take `readback` out"),
        (["not kept"], "readback", State.OK, ""),
        (["not kept"], "checksum", State.FAIL, 'assume = ["readback"]'),
    ],
)
def test_checksums_must_be_there_as_they_are_declared(
    faults: list[str], verify: str, state: State, fix: str
) -> None:
    found = remote.judge_checksum(faults, verify)
    assert found.state is state
    assert fix in found.fix


def test_a_store_that_does_not_copy_costs_traffic() -> None:
    assert remote.judge_copy(refused=False, wanted=True).state is State.OK
    assert remote.judge_copy(refused=True, wanted=True).state is State.WARN
    assert remote.judge_copy(refused=True, wanted=False).state is State.OK


def rule(**fields: Any) -> dict[str, Any]:
    return {"ID": "r", "Status": "Enabled", "Filter": {"Prefix": ""}, **fields}


ABORTS = {"AbortIncompleteMultipartUpload": {"DaysAfterInitiation": 7}}
EXPIRES = {"Expiration": {"Days": 30}}
FREEZES = {"Transitions": [{"Days": 30, "StorageClass": "DEEP_ARCHIVE"}]}
COOLS = {"Transitions": [{"Days": 30, "StorageClass": "STANDARD_IA"}]}


@pytest.mark.parametrize(
    ("rules", "state", "said"),
    [
        ([], State.WARN, "no rule aborts"),
        ([rule(**ABORTS)], State.OK, "after 7 d"),
        ([rule(**ABORTS, Status="Disabled")], State.WARN, "no rule aborts"),
        ([rule(**ABORTS, Filter={"Prefix": "train/"})], State.OK, "after 7 d"),
        ([rule(**ABORTS, Filter={"Prefix": "other/"})], State.WARN, "no rule aborts"),
        ([rule(**ABORTS, Filter={"Prefix": "train/a/run-1/"})], State.WARN, "no rule aborts"),
        ([rule(**ABORTS, Filter={"Tag": {"Key": "a"}})], State.WARN, "no rule aborts"),
        ([rule(**ABORTS, Filter={"And": {"Prefix": "train/"}})], State.OK, "after 7 d"),
        ([{"ID": "old", "Status": "Enabled", "Prefix": "", **ABORTS}], State.OK, "after 7 d"),
        ([rule(**ABORTS), rule(**EXPIRES)], State.WARN, "r deletes objects under train/a"),
        (
            [rule(**EXPIRES, Filter={"Prefix": "train/a/run-1/"})],
            State.WARN,
            "deletes objects",
        ),
        ([rule(**EXPIRES, Filter={"Prefix": "logs/"}), rule(**ABORTS)], State.OK, "after 7 d"),
        ([rule(**ABORTS), rule(**FREEZES)], State.WARN, "to an archive"),
        ([rule(**ABORTS), rule(**COOLS)], State.OK, "after 7 d"),
    ],
)
def test_rules_must_remove_uploads_and_keep_checkpoints(
    rules: list[dict[str, Any]], state: State, said: str
) -> None:
    found = s3.judge_lifecycle(rules, "train/a")
    assert found.state is state
    assert said in found.measured


KEEPS_NOTHING_OLD = rule(NoncurrentVersionExpiration={"NoncurrentDays": 1})


@pytest.mark.parametrize(
    ("status", "rules", "state"),
    [
        ("", [], State.OK),
        ("Suspended", [], State.OK),
        ("Enabled", [], State.WARN),
        ("Enabled", [KEEPS_NOTHING_OLD], State.OK),
        ("Enabled", None, State.OK),
    ],
)
def test_versions_that_nobody_removes_are_a_warning(
    status: str, rules: list[dict[str, Any]] | None, state: State
) -> None:
    assert s3.judge_versioning(status, rules, "train/a").state is state


@pytest.mark.parametrize(
    ("code", "said", "fix"),
    [
        ("InvalidAccessKeyId", "does not know the access key", "Correct the credentials"),
        ("SignatureDoesNotMatch", "secret key", "Correct the credentials"),
        ("ExpiredToken", "expired", "Renew"),
        ("RequestTimeTooSkewed", "clock", "chronyd"),
        ("NoSuchBucket", "no bucket bucket", "Create it"),
        ("PermanentRedirect", "another region", "`region`"),
        ("AccessDenied", "s3:PutObject", "on arn:aws:s3:::bucket/train/a/*"),
        ("NotImplemented", "does not know this call", "newer release"),
        ("KMS.NotFoundException", "no such KMS key", "key in `encryption`"),
        ("KMS.DisabledException", "disabled", "Enable it"),
        ("QuotaExceeded", "quota", "Raise the quota"),
        ("SomethingElse", "what it said", "Correct"),
        ("SignatureDoesNotMatch", "does not belong", "proxy_set_header Host $http_host"),
        ("413", "a proxy in front", "client_max_body_size 0"),
    ],
)
def test_each_refusal_has_its_next_move(code: str, said: str, fix: str) -> None:
    error = RemoteRefusedError("what it said", remote_code=code, hint="Correct it.")
    found = judge_refusal(error, SETTINGS, "s3:PutObject")
    assert found.state is State.FAIL
    assert said in found.measured
    assert fix in found.fix


def test_rights_on_the_bucket_are_named_without_the_prefix() -> None:
    error = RemoteRefusedError("no", remote_code="AccessDenied")
    fix = judge_refusal(error, SETTINGS, "s3:ListBucket").fix
    assert "on arn:aws:s3:::bucket," in fix
    assert (
        "Without it cachetier cannot list steps there, or see the saves and deletions of other "
        "nodes." in fix
    )


class NoCredentialsError(Exception):
    """As botocore's is called."""


class SSLError(Exception):
    """As botocore's is called."""


@pytest.mark.parametrize(
    ("cause", "fix"), [(NoCredentialsError(), "AWS_PROFILE"), (SSLError(), "AWS_CA_BUNDLE")]
)
def test_what_fails_before_an_answer_is_told_by_its_cause(cause: Exception, fix: str) -> None:
    error = RemoteRefusedError("below HTTP")
    error.__cause__ = cause
    assert fix in judge_refusal(error, SETTINGS).fix


def test_a_store_that_does_not_answer_is_named_by_its_address() -> None:
    error = TransientError("below HTTP")
    error.__cause__ = EndpointConnectionError(endpoint_url="http://s3.invalid/bucket?list-type=2")
    there = replace(SETTINGS, endpoint="http://s3.invalid")
    found = judge_refusal(error, there)
    assert found.measured == "the store cannot be reached at http://s3.invalid"
    assert judge_refusal(error, SETTINGS).measured.endswith(" at AWS")


def test_trouble_that_passes_is_told_apart() -> None:
    assert judge_refusal(ThrottledError("slow down"), SETTINGS).state is State.WARN
    lost = judge_refusal(TransientError("reset"), SETTINGS)
    assert lost.state is State.FAIL
    assert "reset" in lost.measured


ARN = "arn:aws:kms:eu-1:1:key/12-34"


@pytest.mark.parametrize(
    ("wanted", "found", "state", "says"),
    [
        (AtRest(), AtRest("AES256", "", (), "STANDARD"), State.OK, "AES256, STANDARD"),
        (AtRest(), AtRest("", "", (), "STANDARD"), State.OK, "no encryption"),
        (AtRest("AES256"), AtRest("", "", (), "STANDARD"), State.FAIL, "not AES256"),
        (AtRest("aws:kms"), AtRest("AES256", "", (), "STANDARD"), State.FAIL, "not aws:kms"),
        (
            AtRest("aws:kms", ARN),
            AtRest("aws:kms", ARN, (), "STANDARD"),
            State.OK,
            "as each write",
        ),
        (
            AtRest("aws:kms", "12-34"),
            AtRest("aws:kms", ARN, (), "STANDARD"),
            State.OK,
            "aws:kms",
        ),
        (AtRest("aws:kms", "alias/k"), AtRest("aws:kms", ARN, (), "STANDARD"), State.OK, "as"),
        (
            AtRest("aws:kms", "56"),
            AtRest("aws:kms", ARN, (), "STANDARD"),
            State.FAIL,
            f", by {ARN}",
        ),
        (AtRest("", "", (), "X_IA"), AtRest("", "", (), "STANDARD"), State.FAIL, "not X_IA"),
        (AtRest("", "", (), "STANDARD"), AtRest("", "", (), "STANDARD"), State.OK, "STANDARD"),
    ],
)
def test_what_the_store_reports_is_compared_with_what_each_write_asks(
    wanted: AtRest, found: AtRest, state: State, says: str
) -> None:
    judged = s3.judge_at_rest(wanted, found)
    assert judged.state is state
    assert says in judged.measured
    assert judged.fix or state is State.OK
