"""The checks of how a store, or a proxy before it, differs from S3 in what it takes and answers.

Some begin a PUT that nobody has signed and look at the first answer: no object comes of it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from cachetier_client.bucket_format.uploads import SAVE_KEY
from cachetier_client.io.digests import digest_of
from cachetier_client.units import shown_size, shown_span

from cachetier.doctor.findings import CheckResult, fail, ok, warn
from cachetier.doctor.probe import NotTriedError, Probe
from cachetier.doctor.refusals import judge_refusal
from cachetier.doctor.subject import Subject
from cachetier.errors import RemoteError, RemoteRefusedError, ThrottledError, TransientError

if TYPE_CHECKING:
    from http.client import HTTPConnection

LARGE_BYTES = 64 << 20  # as large as bodies that we send become
BEGUN_BYTES = 1 << 20  # more than a server reads before it answers, less than nginx refuses
KEYS = {"+": "a+b", "=": "a=b", "@": "a@b"}
KEYS_OF_OTHERS = {"//": "a//b", "%2F": "a%2Fb", "a space": "a b", "é": "é"}
_PASSES = "Have the proxy pass on {} as they come"


def check_addressing(probe: Probe, _subject: Subject) -> CheckResult:
    style = probe.inquiry.addressing_style
    probe.settings = replace(probe.settings, addressing_style=style)
    in_path = style == "path" or (style == "auto" and probe.settings.endpoint is not None)
    where = "in the path" if in_path else "before the host's name"
    return ok(f"the bucket's name stands {where}", style=style)


def check_metadata(probe: Probe, _subject: object = None) -> CheckResult:
    probe.needed_object()
    key, metadata = probe.key("metadata"), {SAVE_KEY: "kept"}
    probe.store.put(key, probe.small, digest=digest_of(probe.small), metadata=metadata)
    info = probe.store.head(key)
    if info is None or info.metadata.get(SAVE_KEY) != "kept":
        fix = f"{_PASSES.format('headers (x-amz-meta-*)')}, or use another gateway."
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
    ours, others = (
        [name for name, part in keys.items() if not _comes_back(probe, part)]
        for keys in (KEYS, KEYS_OF_OTHERS)
    )
    if not ours + others:
        return ok("odd signs in keys come through")
    fix = f"{_PASSES.format('paths')}: nginx `proxy_pass` without a path, `merge_slashes off`."
    measured = f"keys are refused or changed with {', '.join(ours + others)}"
    if ours:
        return fail(measured, fix)
    return warn(f"{measured}: only clients of the S3 door have any", fix)


def _comes_back(probe: Probe, name: str) -> bool:
    """Return whether an object is where it was put, and is listed there."""
    key = probe.key(name)
    try:
        probe.store.put(key, name.encode(), digest=digest_of(name.encode()))
        return key in probe.store.list(key).keys and probe.store.get(key) == name.encode()
    except (ThrottledError, TransientError):
        raise
    except RemoteError:
        return False


def check_order(probe: Probe, _subject: Subject) -> CheckResult:
    probe.needed_object()
    names = [f"order-{(at * 7) % 10}" for at in range(10)]
    for name in names:
        probe.store.put(probe.key(name), b"", digest=digest_of(b""))
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
    size_bytes = LARGE_BYTES
    while _first_answer(probe, size_bytes).startswith("413") and size_bytes > 1 << 10:
        size_bytes //= 2
    if size_bytes == LARGE_BYTES:
        return ok(f"bodies of {shown_size(LARGE_BYTES)} are let in")
    fix = "Lift the proxy's limit: nginx `client_max_body_size 0`."
    return fail(f"bodies above some {shown_size(size_bytes)} are refused (413)", fix)


def check_buffering(probe: Probe, subject: Subject) -> CheckResult:
    if _first_answer(probe, BEGUN_BYTES, seconds=subject.pause_seconds):
        return ok("an answer comes before the whole body is sent: no proxy buffers it")
    return ok("whole bodies are taken before an answer: by a proxy (nginx buffers), or the store")


def check_expect(probe: Probe, subject: Subject) -> CheckResult:
    status = _first_answer(probe, BEGUN_BYTES, expect=True, seconds=subject.pause_seconds)
    answer = f"is answered with {status[:3]}" if status else "is not answered"
    return ok(f"`Expect: 100-continue` {answer}; we never send it")


def check_connections(probe: Probe, subject: Subject) -> CheckResult:
    with _connection(probe) as (connection, path):
        connection.request("HEAD", path)
        answer = connection.getresponse()
        answer.read()
        if answer.will_close:
            fix = "Have the proxy keep connections: HTTP/1.1, and no `Connection: close`."
            return warn("each request needs a connection of its own", fix)
        assert connection.sock is not None
        connection.sock.settimeout(subject.pause_seconds)
        try:
            connection.sock.recv(1)
        except TimeoutError:
            span = shown_span(subject.pause_seconds)
            return ok(f"connections are kept, for {span} at least")
    fix = "Raise the time-out of the proxy for idle connections to a minute."
    return warn("idle connections are closed at once", fix)


def _first_answer(
    probe: Probe, size_bytes: int, *, expect: bool = False, seconds: float = 5.0
) -> str:
    """Begin an unsigned PUT; return the status of the first answer, empty if none comes in time."""
    with _connection(probe) as (connection, path):
        connection.putrequest("PUT", path)
        connection.putheader("Content-Length", str(size_bytes))
        if expect:
            connection.putheader("Expect", "100-continue")
        connection.endheaders(None if expect else b"x")
        assert connection.sock is not None
        connection.sock.settimeout(seconds)
        try:
            return connection.sock.recv(12).decode("latin-1").partition(" ")[2]
        except OSError:
            return ""


@contextmanager
def _connection(probe: Probe) -> Iterator[tuple[HTTPConnection, str]]:
    """Connect to the store as botocore does, and lend the path of a key there.

    Raises:
        NotTriedError: It cannot be done so.
    """
    import ssl
    from http.client import HTTPConnection, HTTPSConnection
    from urllib.request import getproxies, proxy_bypass

    parts = urlsplit(probe.inquiry.url_of(f"{probe.folder}unsigned"))
    host = parts.hostname or ""
    if parts.scheme in getproxies() and not proxy_bypass(host):
        raise NotTriedError("a proxy of the environment (HTTPS_PROXY and its kin) is before it")
    trusted = ssl.create_default_context(cafile=os.environ.get("AWS_CA_BUNDLE") or None)
    connection = HTTPConnection(host, parts.port, timeout=5.0)
    if parts.scheme == "https":
        connection = HTTPSConnection(host, parts.port, timeout=5.0, context=trusted)
    try:
        with closing(connection):
            yield connection, parts.path
    except OSError as error:
        raise NotTriedError(f"no plain connection: {error}") from error
