"""The checks of a remote of any kind: do what the service does, then judge what came of it.

``check_*`` let errors of the store out; whoever runs them names the right that was missing.
``judge_*`` are pure functions from what the calls did to a ``CheckResult``.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from cachetier_client.bucket_format.at_rest import AS_THE_BUCKET_DOES
from cachetier_client.bucket_format.uploads import ObjectInfo
from cachetier_client.io.digests import digest_of
from cachetier_client.s3_errors import GENERAL_REFUSALS
from cachetier_client.units import shown_time

from cachetier.doctor.findings import CheckResult, State, fail, ok, warn
from cachetier.doctor.probe import METADATA, NotTriedError, Probe
from cachetier.doctor.refusals import judge_refusal
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
from cachetier.remote.scheme import scheme_of
from cachetier.remote.settings import RemoteSettings

_ANOTHER_STORE = "Use another store, or a newer release of this one: it does not do what S3 does."
KEYS = {"+": "a+b", "=": "a=b", "@": "a@b"}
KEYS_OF_OTHERS = {"//": "a//b", "%2F": "a%2Fb", "a space": "a b", "é": "é"}
_DENIED = frozenset({"AccessDenied", "403", "Forbidden"})


def check_reach(probe: Probe, _subject: Subject) -> CheckResult:
    began = time.perf_counter()
    probe.inquiry.look(probe.settings.prefix)
    seconds = time.perf_counter() - began
    return judge_reach(probe.settings, probe.inquiry.server, seconds)


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
        plain = probe.store_set_to(at_rest=AS_THE_BUCKET_DOES)
        plain.put(probe.key("plain"), probe.small, digest=digest)
    except RemoteError:
        return False
    return True


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


def check_metadata(probe: Probe, _subject: object = None) -> CheckResult:
    return judge_metadata(probe.store.head(probe.needed_object().key))


def judge_metadata(info: ObjectInfo | None) -> CheckResult:
    """Say whether the store has kept the metadata of an object of ours."""
    if info is None or not METADATA.items() <= info.metadata.items():
        fix = "Have the proxy pass on headers (x-amz-meta-*), or use another gateway."
        return fail("user metadata is dropped: nothing would become durable", fix)
    return ok("user metadata is kept")


def check_missing(probe: Probe, _subject: object = None) -> CheckResult:
    probe.store.head(probe.needed_object().key)
    try:
        probe.store.head(f"{probe.folder}missing")
    except RemoteRefusedError as error:
        return judge_refusal(error, probe.settings, "s3:ListBucket")
    return ok("HEAD of what is missing is 404")


def check_keys(probe: Probe, _subject: object = None) -> CheckResult:
    probe.needed_object()
    ours = [name for name, part in KEYS.items() if not _comes_back(probe, part)]
    others = [name for name, part in KEYS_OF_OTHERS.items() if not _comes_back(probe, part)]
    if not ours + others:
        return ok("special characters in keys are kept")
    fix = "Have the proxy pass on paths as they come: nginx `proxy_pass` without a path."
    measured = f"keys are refused or changed with {', '.join(ours + others)}"
    if ours:
        return fail(measured, fix)
    return warn(f"{measured}: only clients of the S3 door have any", fix)


def _comes_back(probe: Probe, name: str) -> bool:
    """Return whether an object is where it was put, and is listed there."""
    key, body = probe.key(name), name.encode()
    try:
        probe.store.put(key, body, digest=digest_of(body))
        return key in probe.store.list(key).keys and probe.store.get(key) == body
    except (ThrottledError, TransientError):
        raise
    except RemoteError:
        return False


def check_conditional(probe: Probe, _subject: object = None) -> CheckResult:
    key = probe.needed_object().key
    absent = _obeys(probe, key, IF_ABSENT)
    match = _obeys(probe, key, if_match('"0123456789abcdef0123456789abcdef"'))
    return judge_conditional(absent, match, declared=probe.settings.conditional_writes)


def _obeys(probe: Probe, key: str, condition: Condition) -> str:
    """Put over an object under a condition that does not hold."""
    try:
        store = probe.store_set_to(conditional_writes=True)
        store.put(key, probe.small, digest=digest_of(probe.small), condition=condition)
    except PreconditionFailedError:
        return "obeyed"
    except (ThrottledError, TransientError):
        raise
    except RemoteError as error:
        if _is_about_us(error):  # a policy may deny conditions alone
            probe.store.put(key, probe.small, digest=digest_of(probe.small))
        return "refused"
    return "ignored"


def check_checksum(probe: Probe, _subject: object = None) -> CheckResult:
    probe.needed_object()
    faults = [*_small_faults(probe), *_whole_faults(probe)]
    return judge_checksum(faults, probe.settings.verify)


def _small_faults(probe: Probe) -> Iterator[str]:
    """Put with a right digest and a wrong one; yield what the store did not do."""
    store, digest = probe.store_set_to(verify="checksum"), digest_of(probe.small)
    key = probe.key("judged")
    try:
        store.put(key, probe.small, digest=digest)
        info = store.head(key)
        if info is None or info.digest != digest:
            yield "not kept"
        store.put(key, probe.small, digest=digest ^ 1)
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
    store = probe.store_set_to(verify="checksum")
    whole = digest_of(probe.small, digest_of(probe.part))
    try:
        key = _uploaded(probe, "judged-parts", store)
        info = store.head(key)
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


def check_copy(probe: Probe, _subject: Subject) -> CheckResult:
    key = probe.key("parts")
    source = probe.store.head(key)
    if source is None:
        raise NotTriedError("needs an object of two parts: see `multipart`")
    bytes_in = CopyRange(key, source.etag, 0, len(probe.part))
    target, upload_id = probe.upload("copied")
    try:
        probe.store.copy_part(target, upload_id, 1, bytes_in, digest=digest_of(probe.part))
    except (CopiesRefusedError, SourceChangedError):
        return judge_copy(refused=True, wanted="nocopy" not in probe.settings.stated)
    return judge_copy(refused=False, wanted=True)


def check_delete(probe: Probe, _subject: Subject) -> CheckResult:
    key = probe.needed_object().key
    probe.store.delete(key)
    if key in probe.store.list(probe.folder).keys:  # HEAD may be denied: see `missing`
        return fail("a deleted object is still there", _ANOTHER_STORE)
    return ok("a deleted object is gone")


def _is_about_us(error: RemoteError) -> bool:
    """Whether a refusal is of who asks, not of what is asked."""
    code = error.context.get("remote_code")
    return code is None or code in GENERAL_REFUSALS or code in _DENIED


KMS_RIGHTS = "Allow kms:GenerateDataKey and kms:Decrypt on it, in the key's policy too."
READBACK = 'assume = ["readback"]'


def judge_reach(remote: RemoteSettings, server: str, seconds: float) -> CheckResult:
    """Say where the remote is, now that it has answered."""
    where = scheme_of(remote).shown(remote)
    software = f", {server}" if server else ""
    return ok(f"{where}{software}, answered in {shown_time(seconds)}", server=server)


def judge_conditional(absent: str, match: str, *, declared: bool) -> CheckResult:
    """Say whether the store obeys ``If-None-Match`` and ``If-Match``.

    Args:
        absent, match: ``obeyed``, ``ignored`` or ``refused``, for each of the two.
        declared: Whether they are assumed to work.
    """
    obeyed = absent == match == "obeyed"
    measured = f"If-None-Match {absent}, If-Match {match}"
    values = {"if_none_match": absent, "if_match": match}
    if obeyed and declared:
        return ok(measured, **values)
    if obeyed:
        fix = "Take `unconditional` out of `assume`: the store can keep two nodes from overwriting."
        return warn(f"{measured}, and `unconditional` is assumed", fix, **values)
    if declared:
        fix = 'Set assume = ["unconditional"], and let one node only save a step at a time.'
        return fail(f"{measured}: two nodes could publish one step", fix, **values)
    fix = "Nothing keeps two nodes from overwriting each other here; a newer store may."
    return warn(f"{measured}, as `unconditional` says", fix, **values)


def judge_checksum(faults: Sequence[str], verify: str) -> CheckResult:
    """Say whether the store keeps and judges a CRC-64/NVME of whole objects.

    Args:
        faults: What it did not do; none if all is well.
        verify: What is assumed of the store.
    """
    values = {"keeps_crc64nvme": not faults}
    if not faults and verify == "checksum":
        return ok("CRC-64/NVME is checked and stored, for whole multipart objects too", **values)
    if not faults:
        fix = "Take `readback` out of `assume`, write `checksum`: objects need not be read back."
        return warn("CRC-64/NVME works, and `readback` is assumed", fix, **values)
    summary = f"CRC-64/NVME: {', '.join(faults)}"
    if verify == "readback":
        return ok(f"{summary}; objects are read back", **values)
    return fail(summary, f"Set {READBACK}: objects are then read back to verify them.", **values)


def judge_copy(*, refused: bool, wanted: bool) -> CheckResult:
    """Say whether bytes can be copied inside the bucket."""
    if not refused:
        return ok("ranges are copied inside the bucket (UploadPartCopy)")
    if not wanted:
        return ok("no UploadPartCopy, as `nocopy` says")
    fix = "Add `nocopy` to `assume`; or let the store copy (s3:GetObject beside s3:PutObject)."
    return warn("no UploadPartCopy: unchanged bytes are sent again", fix)
