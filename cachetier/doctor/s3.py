"""The checks that a remote of S3 has beside those of any: its protocol, credentials and properties.

Some begin a request that nobody has signed, and look at the first answer: no object comes of it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit

from cachetier_client.bucket_format.at_rest import AS_THE_BUCKET_DOES, AtRest
from cachetier_client.io.digests import digest_of
from cachetier_client.s3_errors import GENERAL_REFUSALS
from cachetier_client.units import shown_size, shown_span

from cachetier.doctor.findings import CheckResult, fail, ok, skipped, warn
from cachetier.doctor.probe import NotTriedError, Probe
from cachetier.doctor.subject import Subject
from cachetier.errors import RemoteError, RemoteRefusedError
from cachetier.remote.scheme import scheme_of

if TYPE_CHECKING:
    import socket

    from cachetier.remote.s3.boto_client import FoundCredentials
    from cachetier.remote.s3.inquiry import S3Inquiry

LARGE_BYTES = 64 << 20  # as large as bodies that we send become
BEGUN_BYTES = 1 << 20  # more than a server reads before it answers, no more than nginx takes
SKEW_NOTED_SECONDS = 5.0
SKEW_REFUSED_SECONDS = 600.0  # S3 refuses at fifteen minutes
COLD = frozenset({"GLACIER", "DEEP_ARCHIVE"})


def _inquiry(probe: Probe) -> S3Inquiry:
    return cast("S3Inquiry", probe.inquiry)  # of a remote of S3


def check_addressing(probe: Probe, subject: Subject) -> CheckResult:
    found = probe.inquiry.remote
    # What the first start found out holds here too; the style is known by now, and not asked again.
    kept = scheme_of(found).resolved(found, subject.cache_dir)
    probe.settings = replace(found, verify=kept.verify)
    style = probe.settings.addressing_style
    in_path = style == "path" or (style == "auto" and probe.settings.endpoint is not None)
    where = "in the path" if in_path else "before the host's name"
    return ok(f"the bucket's name stands {where}", style=style)


def check_order(probe: Probe, _subject: Subject) -> CheckResult:
    probe.needed_object()
    for name in "5938271604":
        probe.store.put(probe.key(f"order-{name}"), b"", digest=digest_of(b""))
    keys = _inquiry(probe).listed(f"{probe.folder}order-")
    try:
        behind = _inquiry(probe).listed(f"{probe.folder}order-", after=f"{probe.folder}order-4")
    except RemoteRefusedError:
        behind = []
    if keys == sorted(keys) and behind == keys[5:]:
        return ok("listings are sorted, and begin behind a key")
    difference = "cannot begin behind a key" if keys == sorted(keys) else "are not sorted"
    fix = "No key is missed, but each page at the S3 door reads all of them: keep prefixes small."
    return warn(f"listings {difference}", fix)


def check_lengths(probe: Probe, _subject: Subject) -> CheckResult:
    without = _inquiry(probe).without_length(probe.needed_object().key)
    if not without:
        return ok("answers say how long they are")
    fix = "Have the proxy speak HTTP/1.1 to the store, without compression."
    return warn(f"no Content-Length from {', '.join(without)}: one more request each", fix)


def check_body_limit(probe: Probe, _subject: object = None) -> CheckResult:
    with _asked(probe, "PUT", f"Content-Length: {LARGE_BYTES}") as (head, _):
        if head[9:12] != "413":
            return ok(f"bodies of {shown_size(LARGE_BYTES)} are let in")
    fix = "Lift the proxy's limit: nginx `client_max_body_size 0`."
    return fail(f"bodies of {shown_size(LARGE_BYTES)} are refused (413)", fix)


def check_buffering(probe: Probe, subject: Subject) -> CheckResult:
    length = f"Content-Length: {BEGUN_BYTES}"
    with _asked(probe, "PUT", length, seconds=subject.pause_seconds) as (head, _):
        if head:
            return ok("an answer comes before the whole body is sent: no proxy buffers it")
    return ok("whole bodies are taken before an answer: by a proxy (nginx buffers), or the store")


def check_expect(probe: Probe, subject: Subject) -> CheckResult:
    headers = f"Content-Length: {BEGUN_BYTES}", "Expect: 100-continue"
    with _asked(probe, "PUT", *headers, seconds=subject.pause_seconds) as (head, _):
        answer = f"is answered with {head[9:12]}" if head else "is not answered"
    return ok(f"`Expect: 100-continue` {answer}; we never send it")


def check_connections(probe: Probe, subject: Subject) -> CheckResult:
    with _asked(probe, "HEAD") as (head, connection):
        if head.startswith("HTTP/1.0") or "connection: close" in head.lower():
            fix = "Have the proxy keep connections: HTTP/1.1, and no `Connection: close`."
            return warn("each request needs a connection of its own", fix)
        connection.settimeout(subject.pause_seconds)
        try:
            connection.recv(1)
        except TimeoutError:
            return ok(f"connections are kept, for {shown_span(subject.pause_seconds)} at least")
    fix = "Raise the time-out of the proxy for idle connections to a minute."
    return warn("idle connections are closed at once", fix)


@contextmanager
def _asked(
    probe: Probe, method: str, *headers: str, seconds: float = 2.0
) -> Iterator[tuple[str, socket.socket]]:
    """Send the head of a request; lend that of the answer, empty if it takes longer, and the line.

    Raises:
        NotTriedError: A proxy of the environment is before it, or nothing can be sent.
    """
    import socket
    import ssl
    from urllib.request import getproxies, proxy_bypass

    url = urlsplit(_inquiry(probe).url_of(f"{probe.folder}unsigned"))
    host, is_secure = url.hostname or "", url.scheme == "https"
    if url.scheme in getproxies() and not proxy_bypass(host):
        raise NotTriedError(
            "a proxy from the environment (HTTPS_PROXY, HTTP_PROXY or ALL_PROXY) is in between"
        )
    lines = f"{method} {url.path} HTTP/1.1", f"Host: {url.netloc}", *headers, "", ""
    try:
        line = socket.create_connection((host, url.port or (443 if is_secure else 80)), 5.0)
        if is_secure:
            trusted = ssl.create_default_context(cafile=os.environ.get("AWS_CA_BUNDLE") or None)
            line = trusted.wrap_socket(line, server_hostname=host)
        with closing(line):
            line.settimeout(seconds)
            line.sendall("\r\n".join(lines).encode())
            try:
                head = line.recv(4096).decode("latin-1")
            except TimeoutError:
                head = ""
            yield head, line
    except OSError as error:
        raise NotTriedError(f"no plain connection: {error}") from error


# --- settings of the bucket, and who we are there -------------------------------------------------


def check_credentials(probe: Probe, _subject: Subject) -> CheckResult:
    return judge_credentials(_inquiry(probe).credentials(), time.time())


def check_clock(probe: Probe, _subject: Subject) -> CheckResult:
    if _inquiry(probe).clock_ahead_seconds is None:
        _inquiry(probe).look(probe.settings.prefix)
    return judge_clock(_inquiry(probe).clock_ahead_seconds)


def check_at_rest(probe: Probe, _subject: Subject) -> CheckResult:
    found = _inquiry(probe).at_rest(probe.needed_object().key)
    return judge_at_rest(probe.settings.at_rest, found)


def check_lifecycle(probe: Probe, _subject: Subject) -> CheckResult:
    rules = _rules(probe)
    if rules is None:
        return skipped("the lifecycle rules cannot be read (s3:GetLifecycleConfiguration)")
    return judge_lifecycle(rules, probe.settings.prefix)


def check_versioning(probe: Probe, _subject: Subject) -> CheckResult:
    try:
        status = _inquiry(probe).versioning()
    except RemoteError as error:
        if _may_not_ask(error):
            return skipped("it cannot be asked for (s3:GetBucketVersioning)")
        raise
    return judge_versioning(status, _rules(probe), probe.settings.prefix)


def _rules(probe: Probe) -> list[dict[str, object]] | None:
    """Return the lifecycle rules; None where we may not read them, or there is no such thing."""
    try:
        return _inquiry(probe).lifecycle()
    except RemoteError as error:
        if _may_not_ask(error):
            return None
        raise


def _may_not_ask(error: RemoteError) -> bool:
    refused = isinstance(error, RemoteRefusedError)
    return refused and error.context.get("remote_code") not in GENERAL_REFUSALS


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


def judge_at_rest(wanted: AtRest, found: AtRest) -> CheckResult:
    """Say whether the store keeps objects as each write asks it to."""
    measured = f"{found.encryption or 'no encryption'}, {found.storage_class}"
    values = {"encryption": found.encryption, "kms_key": found.kms_key}
    values["storage_class"] = found.storage_class
    if wanted.encryption and wanted.encryption != found.encryption:
        fix = "Correct `encryption` of the remote, or use a store that does it."
        return fail(f"{measured}, not {wanted.encryption}", fix, **values)
    by_alias = "alias/" in wanted.kms_key  # of which the store tells the key
    if wanted.kms_key and not by_alias and not found.kms_key.endswith(wanted.kms_key):
        fix = "Correct the key in its `encryption`: the store took another."
        return fail(f"{measured}, by {found.kms_key or 'no key'}", fix, **values)
    if wanted.storage_class and wanted.storage_class != found.storage_class:
        fix = "Correct its `storage_class`: the store has no such class."
        return fail(f"{measured}, not {wanted.storage_class}", fix, **values)
    return ok(
        f"{measured}{', as each write asks' if wanted != AS_THE_BUCKET_DOES else ''}", **values
    )


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
    return warn(
        "no rule aborts unfinished uploads: they cost money, and no listing shows them", fix
    )


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
        return ok("on; it is not known whether old versions expire", **values)
    goes = [
        rule
        for rule in rules
        if rule.get("Status") == "Enabled"
        and rule.get("NoncurrentVersionExpiration")
        and _covers(rule, prefix)
    ]
    if goes:
        return ok("on; a rule removes old versions", **values)
    fix = "Add a rule with NoncurrentVersionExpiration: otherwise deleted steps still cost money."
    return warn("on, and no rule removes old versions", fix, **values)
