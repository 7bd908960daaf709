"""The checks of one remote: do what the service does, then judge what came of it.

``check_*`` let errors of the store out; whoever runs them names the right that was missing.
``judge_*`` are pure functions from what the calls did to a ``CheckResult``.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from cachetier_client.bucket_format.at_rest import AS_THE_BUCKET_DOES, AtRest
from cachetier_client.io.digests import digest_of
from cachetier_client.s3_errors import GENERAL_REFUSALS
from cachetier_client.units import shown_span, shown_time

from cachetier.doctor.dialect import judge_metadata
from cachetier.doctor.findings import CheckResult, State, fail, ok, skipped, warn
from cachetier.doctor.probe import NotTriedError, Probe
from cachetier.doctor.subject import Subject
from cachetier.errors import (
    CopiesRefusedError,
    PreconditionFailedError,
    RemoteDigestError,
    RemoteError,
    RemoteRefusedError,
    SourceChangedError,
    ThrottledError,
    TransientError,
)
from cachetier.remote.base import IF_ABSENT, Condition, CopyRange, ObjectStore, if_match
from cachetier.remote.settings import RemoteSettings

if TYPE_CHECKING:
    from cachetier.remote.s3.boto_client import FoundCredentials

_ANOTHER_STORE = "Use another store, or a newer release of this one: it does not do what S3 does."
_DENIED = frozenset({"AccessDenied", "403", "Forbidden"})


def check_reach(probe: Probe, _subject: Subject) -> CheckResult:
    began = time.perf_counter()
    probe.inquiry.look(probe.settings.prefix)
    seconds = time.perf_counter() - began
    return judge_reach(probe.settings, probe.inquiry.server, seconds)


def check_credentials(probe: Probe, _subject: Subject) -> CheckResult:
    return judge_credentials(probe.inquiry.credentials(), time.time())


def check_clock(probe: Probe, _subject: Subject) -> CheckResult:
    if probe.inquiry.clock_ahead_seconds is None:
        probe.inquiry.look(probe.settings.prefix)
    return judge_clock(probe.inquiry.clock_ahead_seconds)


def check_put(probe: Probe, _subject: Subject) -> CheckResult:
    try:
        probe.object  # noqa: B018 - the put itself is the check
    except RemoteRefusedError as error:
        if not _is_for_the_key(probe, error):
            raise
        return fail("access denied: the KMS key", KMS_RIGHTS, remote_code="AccessDenied")
    return ok(f"an object of {len(probe.small)} B was put")


def _is_for_the_key(probe: Probe, error: RemoteRefusedError) -> bool:
    """Return whether a put that is denied would not be without the KMS key."""
    kms = probe.settings.at_rest.encryption.startswith("aws:kms")
    if not kms or error.context.get("remote_code") not in _DENIED:
        return False
    try:
        digest = digest_of(probe.small)
        probe.as_the_bucket_keeps.put(probe.key("plain"), probe.small, digest=digest)
    except RemoteError:
        return False
    return True


def check_at_rest(probe: Probe, _subject: Subject) -> CheckResult:
    found = probe.inquiry.at_rest(probe.needed_object().key)
    return judge_at_rest(probe.settings.at_rest, found)


def check_read(probe: Probe, _subject: Subject) -> CheckResult:
    stored = probe.needed_object()
    info = probe.store.head(stored.key)
    if info is None or info.size_bytes != len(probe.small):
        return fail("HEAD does not find what was just put", _ANOTHER_STORE)
    if probe.store.get(stored.key) != probe.small:
        return fail("GET returns other bytes than were put", _ANOTHER_STORE)
    if probe.store.get(stored.key, 10, 20) != probe.small[10:30]:
        return fail("a ranged GET returns other bytes", _ANOTHER_STORE)
    return ok("HEAD, GET and a ranged GET return what was put")


def check_list(probe: Probe, _subject: Subject) -> CheckResult:
    key = probe.needed_object().key
    if key not in probe.store.list(probe.folder).keys:
        return fail("an object that was just put is not listed", _ANOTHER_STORE)
    return ok("what was put is listed")


def check_conditional(probe: Probe, _subject: object = None) -> CheckResult:
    key = probe.needed_object().key
    absent = _obeys(probe, key, IF_ABSENT)
    match = _obeys(probe, key, if_match('"0123456789abcdef0123456789abcdef"'))
    return judge_conditional(absent, match, declared=probe.settings.conditional_writes)


def _obeys(probe: Probe, key: str, condition: Condition) -> str:
    """Put over an object under a condition that does not hold."""
    try:
        probe.conditional.put(key, probe.small, digest=digest_of(probe.small), condition=condition)
    except PreconditionFailedError:
        return "obeyed"
    except (ThrottledError, TransientError):
        raise
    except RemoteError as error:
        if _is_about_us(error):  # a policy may deny conditions alone
            probe.store.put(key, probe.small, digest=digest_of(probe.small))
        return "refused"
    return "ignored"


def check_checksum(probe: Probe, _subject: Subject) -> CheckResult:
    probe.needed_object()
    faults = [*_small_faults(probe), *_whole_faults(probe)]
    return judge_checksum(faults, probe.settings.verify)


def _small_faults(probe: Probe) -> Iterator[str]:
    """Put with a right digest and a wrong one; yield what the store did not do."""
    digest = digest_of(probe.small)
    key = probe.key("judged")
    try:
        probe.judging.put(key, probe.small, digest=digest)
        info = probe.judging.head(key)
        if info is None or info.digest != digest:
            yield "not kept"
        probe.judging.put(key, probe.small, digest=digest ^ 1)
    except RemoteDigestError:
        return
    except RemoteRefusedError as error:
        if _is_about_us(error):
            raise
        yield "refused"
    else:
        yield "a wrong one is accepted"


def _whole_faults(probe: Probe) -> Iterator[str]:
    """Upload an object of two parts; yield what the store did not do."""
    whole = digest_of(probe.small, digest_of(probe.part))
    try:
        key = _uploaded(probe, "judged-parts", probe.judging)
        info = probe.judging.head(key)
        if info is None or info.digest != whole:
            yield "not kept of multipart objects"
    except RemoteDigestError:
        yield "wrong of multipart objects"
    except RemoteRefusedError as error:
        if _is_about_us(error):
            raise
        yield "refused of multipart objects"


def check_multipart(probe: Probe, _subject: Subject) -> CheckResult:
    probe.needed_object()
    store = probe.store
    key = _uploaded(probe, "parts", store)
    info = store.head(key)
    whole = len(probe.part) + len(probe.small)
    if info is None or info.size_bytes != whole:
        return fail("a completed upload is not the sum of its parts", _ANOTHER_STORE)
    if store.get(key, len(probe.part) - 5, 10) != probe.part[-5:] + probe.small[:5]:
        return fail("a completed upload holds other bytes", _ANOTHER_STORE)
    kept = judge_metadata(info)
    return ok(f"two parts, {whole} B, are one object") if kept.state is State.OK else kept


def _uploaded(probe: Probe, name: str, store: ObjectStore) -> str:
    """Upload an object of two parts and return its key."""
    part, small = probe.part, probe.small
    key, upload_id = probe.upload(name, store)
    parts = [
        store.upload_part(key, upload_id, number, body, digest=digest_of(body))
        for number, body in ((1, part), (2, small))
    ]
    whole = digest_of(small, digest_of(part))
    store.complete_upload(key, upload_id, parts, digest=whole)
    probe.ended(upload_id)
    return key


def check_abort(probe: Probe, _subject: Subject) -> CheckResult:
    probe.needed_object()
    key, upload_id = probe.upload("aborted")
    if (key, upload_id) not in set(probe.store.list_uploads(probe.folder)):
        return fail("an upload that was begun is not listed", _ANOTHER_STORE)
    probe.store.abort_upload(key, upload_id)
    if (key, upload_id) in set(probe.store.list_uploads(probe.folder)):
        return fail("an aborted upload is still listed", _ANOTHER_STORE)
    probe.ended(upload_id)
    return ok("an upload was listed, and is gone once aborted")


def check_copy(probe: Probe, subject: Subject) -> CheckResult:
    key = probe.key("parts")
    source = probe.store.head(key)
    if source is None:
        raise NotTriedError("needs an object of two parts: see `multipart`")
    bytes_in = CopyRange(key, source.etag, 0, len(probe.part))
    target, upload_id = probe.upload("copied")
    try:
        probe.store.copy_part(target, upload_id, 1, bytes_in, digest=digest_of(probe.part))
    except (CopiesRefusedError, SourceChangedError):
        return judge_copy(refused=True, wanted=subject.block_copies)
    return judge_copy(refused=False, wanted=subject.block_copies)


def check_delete(probe: Probe, _subject: Subject) -> CheckResult:
    key = probe.needed_object().key
    probe.store.delete(key)
    if key in probe.store.list(probe.folder).keys:  # HEAD may be denied: see `missing`
        return fail("a deleted object is still there", _ANOTHER_STORE)
    return ok("a deleted object is gone")


def check_lifecycle(probe: Probe, _subject: Subject) -> CheckResult:
    rules = _rules(probe)
    if rules is None:
        return skipped("the rules cannot be read (s3:GetLifecycleConfiguration)")
    return judge_lifecycle(rules, probe.settings.prefix)


def check_versioning(probe: Probe, _subject: Subject) -> CheckResult:
    try:
        status = probe.inquiry.versioning()
    except RemoteError as error:
        if _may_not_ask(error):
            return skipped("it cannot be asked for (s3:GetBucketVersioning)")
        raise
    return judge_versioning(status, _rules(probe), probe.settings.prefix)


def _rules(probe: Probe) -> list[dict[str, object]] | None:
    """Return the lifecycle rules; None where we may not read them, or there is no such thing."""
    try:
        return probe.inquiry.lifecycle()
    except RemoteError as error:
        if _may_not_ask(error):
            return None
        raise


def _may_not_ask(error: RemoteError) -> bool:
    refused = isinstance(error, RemoteRefusedError)
    return refused and error.context.get("remote_code") not in GENERAL_REFUSALS


def _is_about_us(error: RemoteError) -> bool:
    """Whether a refusal is of who asks, not of what is asked."""
    code = error.context.get("remote_code")
    return code is None or code in GENERAL_REFUSALS or code in _DENIED


SKEW_NOTED_SECONDS = 5.0
SKEW_REFUSED_SECONDS = 600.0  # S3 refuses at fifteen minutes
SOON_SECONDS = 900.0
COLD = frozenset({"GLACIER", "DEEP_ARCHIVE"})
KMS_RIGHTS = "Allow kms:GenerateDataKey and kms:Decrypt on it, in the key's policy too."
READBACK = 'remote_verify = "readback"'


def judge_reach(remote: RemoteSettings, server: str, seconds: float) -> CheckResult:
    """Say where the remote is, now that it has answered."""
    where = f"{remote.url} at {remote.endpoint or 'AWS'}"
    software = f", {server}" if server else ""
    return ok(f"{where}{software}, answered in {shown_time(seconds)}", server=server)


def judge_clock(ahead_seconds: float | None) -> CheckResult:
    """Say how far this machine's clock is from the store's."""
    if ahead_seconds is None:
        return skipped("the store sends no Date")
    apart = abs(ahead_seconds)
    values = {"skew_seconds": -ahead_seconds}
    if apart <= 1.5:
        return ok("with the store's, to the second", **values)
    measured = f"{apart:.0f} s {'behind' if ahead_seconds > 0 else 'ahead of'} the store's"
    fix = "Set the clock and keep it: run chronyd or systemd-timesyncd."
    if apart > SKEW_REFUSED_SECONDS:
        return fail(f"{measured}; S3 refuses 15 min", fix, **values)
    if apart > SKEW_NOTED_SECONDS:
        return warn(measured, fix, **values)
    return ok(measured, **values)


def judge_credentials(found: FoundCredentials | None, now: float) -> CheckResult:
    """Say where the credentials are from, and whether they will still be good tomorrow."""
    if found is None:
        fix = "Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, AWS_PROFILE, or give it a role."
        return fail("none were found", fix)
    measured = f"{found.source}, key {found.access_key[:4]}...{found.access_key[-4:]}"
    values = {"source": found.source, "temporary": found.temporary, "renewed": found.renewed}
    if found.renewed:
        left = None if found.expires_at is None else found.expires_at - now
        ends = "" if left is None else f", these for {shown_span(max(0.0, left))}"
        return ok(f"{measured}, renewed by themselves{ends}", **values)
    if found.temporary:
        fix = "Give the service a role, or a profile that botocore renews: the drain would stop."
        return warn(f"{measured}, temporary, and nobody renews them", fix, **values)
    return ok(f"{measured}, without an end", **values)


def judge_conditional(absent: str, match: str, *, declared: bool) -> CheckResult:
    """Say whether the store obeys ``If-None-Match`` and ``If-Match``.

    Args:
        absent, match: ``obeyed``, ``ignored`` or ``refused``, for each of the two.
        declared: Whether ``conditional_writes`` is on.
    """
    obeyed = absent == match == "obeyed"
    measured = f"If-None-Match {absent}, If-Match {match}"
    values = {"if_none_match": absent, "if_match": match}
    if obeyed and declared:
        return ok(measured, **values)
    if obeyed:
        fix = "Set conditional_writes = true: the store can keep two nodes from overwriting."
        return warn(f"{measured}, and conditional_writes is off", fix, **values)
    if declared:
        fix = "Set conditional_writes = false, and let one node only save a step at a time."
        return fail(f"{measured}: two nodes could publish one step", fix, **values)
    fix = "Nothing keeps two nodes from overwriting each other here; a newer store may."
    return warn(f"{measured}, as conditional_writes = false says", fix, **values)


def judge_checksum(faults: Sequence[str], verify: str) -> CheckResult:
    """Say whether the store keeps and judges a CRC-64/NVME of whole objects.

    Args:
        faults: What it did not do; none if all is well.
        verify: What ``remote_verify`` says.
    """
    values = {"keeps_crc64nvme": not faults}
    if not faults and verify == "checksum":
        return ok("CRC-64/NVME is judged, kept, and of whole multipart objects", **values)
    if not faults:
        fix = 'Set remote_verify = "checksum": each object need not be read back.'
        return warn("CRC-64/NVME works, and remote_verify is readback", fix, **values)
    summary = f"CRC-64/NVME: {', '.join(faults)}"
    if verify == "readback":
        return ok(f"{summary}; objects are read back", **values)
    return fail(summary, f"Set {READBACK}: objects are then read back to verify them.", **values)


def judge_at_rest(wanted: AtRest, found: AtRest) -> CheckResult:
    """Say whether the store keeps objects as each write asks it to."""
    measured = f"{found.encryption or 'no encryption'}, {found.storage_class}"
    values = {"encryption": found.encryption, "kms_key": found.kms_key}
    values["storage_class"] = found.storage_class
    if wanted.encryption and wanted.encryption != found.encryption:
        fix = "Correct remote_encryption, or use a store that does it."
        return fail(f"{measured}, not {wanted.encryption}", fix, **values)
    by_alias = "alias/" in wanted.kms_key  # of which the store tells the key
    if wanted.kms_key and not by_alias and not found.kms_key.endswith(wanted.kms_key):
        fix = "Correct remote_kms_key: the store took another."
        return fail(f"{measured}, by the key {found.kms_key or 'of nobody'}", fix, **values)
    if wanted.storage_class and wanted.storage_class != found.storage_class:
        fix = "Correct remote_storage_class: the store has no such class."
        return fail(f"{measured}, not {wanted.storage_class}", fix, **values)
    return ok(
        f"{measured}{', as each write asks' if wanted != AS_THE_BUCKET_DOES else ''}", **values
    )


def judge_copy(*, refused: bool, wanted: bool) -> CheckResult:
    """Say whether bytes can be copied inside the bucket."""
    if not refused:
        return ok("ranges are copied inside the bucket (UploadPartCopy)")
    if not wanted:
        return ok("no UploadPartCopy, and block_copies is off")
    fix = "Set block_copies = false; or let the store copy (s3:GetObject beside s3:PutObject)."
    return warn("no UploadPartCopy: unchanged bytes are sent again", fix)


def judge_lifecycle(rules: Sequence[Mapping[str, Any]], prefix: str) -> CheckResult:
    """Say whether unfinished uploads go by themselves, and checkpoints do not."""
    ours = [rule for rule in rules if rule.get("Status") == "Enabled" and _meets(rule, prefix)]
    if losing := [rule for rule in ours if _expires(rule)]:
        fix = "Narrow it to other prefixes: cachetier deletes by `delete` and `prune` alone."
        return warn(f"rule {_id(losing[0])} deletes objects under {prefix or '/'}", fix)
    if cold := [rule for rule in ours if _goes_cold(rule)]:
        fix = "Keep the newest steps out of it: a restore from there waits for hours."
        return warn(f"rule {_id(cold[0])} moves objects to an archive", fix)
    days = [_abort_days(rule) for rule in ours if _covers(rule, prefix)]
    found = [number for number in days if number is not None]
    if found:
        return ok(f"unfinished uploads go after {min(found)} d", abort_days=min(found))
    fix = "Add a rule with AbortIncompleteMultipartUpload (7 days) for the prefix."
    return warn("no rule aborts unfinished uploads: they are paid for, unseen", fix)


def _meets(rule: Mapping[str, Any], prefix: str) -> bool:
    """Whether the rule concerns anything that we write."""
    of_rule, folder = _prefix_of(rule), f"{prefix}/" if prefix else ""
    return folder.startswith(of_rule) or of_rule.startswith(folder)


def _covers(rule: Mapping[str, Any], prefix: str) -> bool:
    """Whether the rule concerns everything that we write."""
    inside: Mapping[str, Any] = rule.get("Filter") or {}
    limits = {"Tag", "Tags", "ObjectSizeGreaterThan", "ObjectSizeLessThan"}
    narrowed = limits.intersection(inside) or limits.intersection(inside.get("And") or {})
    return not narrowed and (f"{prefix}/" if prefix else "").startswith(_prefix_of(rule))


def _prefix_of(rule: Mapping[str, Any]) -> str:
    inside: Mapping[str, Any] = rule.get("Filter") or {}
    both: Mapping[str, Any] = inside.get("And") or {}
    return str(rule.get("Prefix") or inside.get("Prefix") or both.get("Prefix") or "")


def _expires(rule: Mapping[str, Any]) -> bool:
    expiration: Mapping[str, Any] = rule.get("Expiration") or {}
    return bool(expiration.get("Days") or expiration.get("Date"))


def _goes_cold(rule: Mapping[str, Any]) -> bool:
    return any(each.get("StorageClass") in COLD for each in rule.get("Transitions") or ())


def _abort_days(rule: Mapping[str, Any]) -> int | None:
    days = (rule.get("AbortIncompleteMultipartUpload") or {}).get("DaysAfterInitiation")
    return int(days) if days else None


def _id(rule: Mapping[str, Any]) -> str:
    return str(rule.get("ID") or "without a name")


def judge_versioning(
    status: str, rules: Sequence[Mapping[str, Any]] | None, prefix: str
) -> CheckResult:
    """Say whether deleted steps keep costing.

    Args:
        rules: The lifecycle rules; None where they cannot be read.
    """
    values = {"versioning": status or "never"}
    if status != "Enabled":
        return ok("suspended" if status else "off", **values)
    if rules is None:
        return ok("on; whether old versions go cannot be told", **values)
    goes = [
        rule
        for rule in rules
        if rule.get("Status") == "Enabled"
        and rule.get("NoncurrentVersionExpiration")
        and _covers(rule, prefix)
    ]
    if goes:
        return ok("on; old versions go by a rule", **values)
    fix = "Add a rule with NoncurrentVersionExpiration: deleted steps are paid for else."
    return warn("on, and no rule removes old versions", fix, **values)
