"""The checks of how a store, or a proxy before it, differs from S3 in what it takes and answers.

Some begin a request that nobody has signed, and look at the first answer: no object comes of it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from cachetier_client.bucket_format.uploads import ObjectInfo
from cachetier_client.io.digests import digest_of
from cachetier_client.units import shown_size, shown_span

from cachetier.doctor.findings import CheckResult, fail, ok, warn
from cachetier.doctor.probe import METADATA, NotTriedError, Probe
from cachetier.doctor.refusals import judge_refusal
from cachetier.doctor.subject import Subject
from cachetier.errors import RemoteError, RemoteRefusedError, ThrottledError, TransientError

if TYPE_CHECKING:
    import socket

LARGE_BYTES = 64 << 20  # as large as bodies that we send become
BEGUN_BYTES = 1 << 20  # more than a server reads before it answers, no more than nginx takes
KEYS = {"+": "a+b", "=": "a=b", "@": "a@b"}
KEYS_OF_OTHERS = {"//": "a//b", "%2F": "a%2Fb", "a space": "a b", "é": "é"}


def check_addressing(probe: Probe, _subject: Subject) -> CheckResult:
    style = probe.inquiry.addressing_style
    probe.settings = replace(probe.settings, addressing_style=style)
    in_path = style == "path" or (style == "auto" and probe.settings.endpoint is not None)
    where = "in the path" if in_path else "before the host's name"
    return ok(f"the bucket's name stands {where}", style=style)


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
        return ok("odd signs in keys come through")
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


def check_order(probe: Probe, _subject: Subject) -> CheckResult:
    probe.needed_object()
    for name in "5938271604":
        probe.store.put(probe.key(f"order-{name}"), b"", digest=digest_of(b""))
    keys = probe.inquiry.listed(f"{probe.folder}order-")
    try:
        behind = probe.inquiry.listed(f"{probe.folder}order-", after=f"{probe.folder}order-4")
    except RemoteRefusedError:
        behind = []
    if keys == sorted(keys) and behind == keys[5:]:
        return ok("listings are sorted, and begin behind a key")
    difference = "cannot begin behind a key" if keys == sorted(keys) else "are not sorted"
    fix = "No key is missed, but each page at the S3 door reads all of them: keep prefixes small."
    return warn(f"listings {difference}", fix)


def check_lengths(probe: Probe, _subject: Subject) -> CheckResult:
    without = probe.inquiry.without_length(probe.needed_object().key)
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

    url = urlsplit(probe.inquiry.url_of(f"{probe.folder}unsigned"))
    host, is_secure = url.hostname or "", url.scheme == "https"
    if url.scheme in getproxies() and not proxy_bypass(host):
        raise NotTriedError("a proxy of the environment (HTTPS_PROXY and its kin) is before it")
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
