"""The checks of one remote: do what the service does, then let ``remote`` judge.

A check lets errors of the store out; whoever runs it names the right that was missing.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from cachetier_client.io.digests import digest_of

from cachetier.doctor import remote
from cachetier.doctor.findings import CheckResult, fail, ok, skipped
from cachetier.doctor.probe import NotTriedError, Probe
from cachetier.doctor.subject import Patient
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
from cachetier.remote import classify
from cachetier.remote.base import IF_ABSENT, Condition, CopyRange, ObjectStore, if_match

_ANOTHER_STORE = "Use another store, or a newer release of this one: it does not do what S3 does."
_DENIED = frozenset({"AccessDenied", "403", "Forbidden"})


def check_reach(probe: Probe, _patient: Patient) -> CheckResult:
    began = time.perf_counter()
    probe.inquiry.look(probe.settings.prefix)
    seconds = time.perf_counter() - began
    return remote.judge_reach(probe.settings, probe.inquiry.server, seconds)


def check_credentials(probe: Probe, _patient: Patient) -> CheckResult:
    return remote.judge_credentials(probe.inquiry.credentials(), time.time())


def check_clock(probe: Probe, _patient: Patient) -> CheckResult:
    if probe.inquiry.clock_ahead_seconds is None:
        probe.inquiry.look(probe.settings.prefix)
    return remote.judge_clock(probe.inquiry.clock_ahead_seconds)


def check_put(probe: Probe, _patient: Patient) -> CheckResult:
    probe.object  # noqa: B018 - the put itself is the check
    return ok("put", f"an object of {len(probe.small)} B was put")


def check_read(probe: Probe, _patient: Patient) -> CheckResult:
    stored = probe.needed_object()
    info = probe.store.head(stored.key)
    if info is None or info.size_bytes != len(probe.small):
        return fail("read", "HEAD does not find what was just put", _ANOTHER_STORE)
    if probe.store.get(stored.key) != probe.small:
        return fail("read", "GET returns other bytes than were put", _ANOTHER_STORE)
    if probe.store.get(stored.key, 10, 20) != probe.small[10:30]:
        return fail("read", "a ranged GET returns other bytes", _ANOTHER_STORE)
    return ok("read", "HEAD, GET and a ranged GET return what was put")


def check_list(probe: Probe, _patient: Patient) -> CheckResult:
    key = probe.needed_object().key
    if key not in probe.store.list(probe.folder).keys:
        return fail("list", "an object that was just put is not listed", _ANOTHER_STORE)
    return ok("list", "what was put is listed")


def check_conditional(probe: Probe, _patient: Patient) -> CheckResult:
    key = probe.needed_object().key
    absent = _obeys(probe, key, IF_ABSENT)
    match = _obeys(probe, key, if_match('"0123456789abcdef0123456789abcdef"'))
    return remote.judge_conditional(absent, match, declared=probe.settings.conditional_writes)


def _obeys(probe: Probe, key: str, condition: Condition) -> str:
    """Put over an object under a condition that does not hold."""
    try:
        probe.conditional.put(key, probe.small, digest=digest_of(probe.small), condition=condition)
    except PreconditionFailedError:
        return "obeyed"
    except (ThrottledError, TransientError):
        raise
    except RemoteError as error:
        if _is_about_us(error):
            raise
        return "refused"
    return "ignored"


def check_checksum(probe: Probe, _patient: Patient) -> CheckResult:
    probe.needed_object()
    faults = [*_small_faults(probe), *_whole_faults(probe)]
    return remote.judge_checksum(faults, probe.settings.verify)


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


def check_multipart(probe: Probe, _patient: Patient) -> CheckResult:
    probe.needed_object()
    store = probe.store
    key = _uploaded(probe, "parts", store)
    info = store.head(key)
    whole = len(probe.part) + len(probe.small)
    if info is None or info.size_bytes != whole:
        return fail("multipart", "a completed upload is not the sum of its parts", _ANOTHER_STORE)
    if store.get(key, len(probe.part) - 5, 10) != probe.part[-5:] + probe.small[:5]:
        return fail("multipart", "a completed upload holds other bytes", _ANOTHER_STORE)
    return ok("multipart", f"two parts, {whole} B, are one object")


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


def check_abort(probe: Probe, _patient: Patient) -> CheckResult:
    probe.needed_object()
    key, upload_id = probe.upload("aborted")
    if (key, upload_id) not in set(probe.store.list_uploads(probe.folder)):
        return fail("abort", "an upload that was begun is not listed", _ANOTHER_STORE)
    probe.store.abort_upload(key, upload_id)
    if (key, upload_id) in set(probe.store.list_uploads(probe.folder)):
        return fail("abort", "an aborted upload is still listed", _ANOTHER_STORE)
    probe.ended(upload_id)
    return ok("abort", "an upload was listed, and is gone once aborted")


def check_copy(probe: Probe, patient: Patient) -> CheckResult:
    key = probe.key("parts")
    source = probe.store.head(key)
    if source is None:
        raise NotTriedError("needs an object of two parts: see `multipart`")
    bytes_in = CopyRange(key, source.etag, 0, len(probe.part))
    target, upload_id = probe.upload("copied")
    try:
        probe.store.copy_part(target, upload_id, 1, bytes_in, digest=digest_of(probe.part))
    except (CopiesRefusedError, SourceChangedError):
        return remote.judge_copy(refused=True, wanted=patient.block_copies)
    return remote.judge_copy(refused=False, wanted=patient.block_copies)


def check_delete(probe: Probe, _patient: Patient) -> CheckResult:
    key = probe.needed_object().key
    probe.store.delete(key)
    if probe.store.head(key) is not None:
        return fail("delete", "a deleted object is still there", _ANOTHER_STORE)
    return ok("delete", "a deleted object is gone")


def check_lifecycle(probe: Probe, _patient: Patient) -> CheckResult:
    rules = _rules(probe)
    if rules is None:
        return skipped("lifecycle", "the rules cannot be read (s3:GetLifecycleConfiguration)")
    return remote.judge_lifecycle(rules, probe.settings.prefix)


def check_versioning(probe: Probe, _patient: Patient) -> CheckResult:
    try:
        status = probe.inquiry.versioning()
    except RemoteError as error:
        if _may_not_ask(error):
            return skipped("versioning", "it cannot be asked for (s3:GetBucketVersioning)")
        raise
    return remote.judge_versioning(status, _rules(probe), probe.settings.prefix)


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
    return refused and error.context.get("remote_code") not in classify.GENERAL_REFUSALS


def _is_about_us(error: RemoteError) -> bool:
    """Whether a refusal is of who asks, not of what is asked."""
    code = error.context.get("remote_code")
    return code is None or code in classify.GENERAL_REFUSALS or code in _DENIED
