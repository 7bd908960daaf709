"""Remotes as people write them: ``s3://bucket/prefix``, and what is wrong where one is none."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any

from cachetier_client.units import counted

# Upper case and `_` are in names of old buckets and of other stores than AWS: they pass, unsaid.
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{2,62}", re.ASCII)
_NOT_IN_BUCKET = re.compile(r"[^A-Za-z0-9._-]", re.ASCII)
_BUCKET_RULE = "a bucket's name has 3 to 63 characters of a-z 0-9 . -"
_SEGMENT = re.compile(r"[A-Za-z0-9._\-=+@]+", re.ASCII)
_NOT_IN_SEGMENT = re.compile(r"[^A-Za-z0-9._\-=+@]+", re.ASCII)
_PREFIX_RULE = "a prefix is segments of A-Z a-z 0-9 . _ - = + @ between single slashes"
_S3 = re.compile(r"s3:/*", re.IGNORECASE)
_SERVER = re.compile(r"(?:s3|https?)://[^/]+:\d+(?:/|$)|https?://")
_AWS = re.compile(r"(?:(?P<bucket>.+)\.)?s3[.-](?:.+\.)?amazonaws\.com", re.ASCII)
_FORM = "s3://bucket/prefix"
DEFAULT_REGION = "us-east-1"  # what S3-compatible stores expect where nobody names a region
_AZURE = "Azure has no S3 API: put a gateway that speaks S3 before it, or use another store"
_GOOGLE = (
    "Google's buckets have an S3 API: write s3://bucket/prefix, set `remote.endpoint` to "
    "https://storage.googleapis.com and give an HMAC key; docs/remotes.md has the other settings"
)
_OTHER_STORES = {
    **dict.fromkeys(("gs", "gcs"), _GOOGLE),
    **dict.fromkeys(("az", "azure", "abfs", "abfss", "wasb", "wasbs"), _AZURE),
}
# What stands before an @ in a URL, also with the slashes that secret keys have; a port is none.
_CREDENTIALS = re.compile(
    r"^(\s*(?:\w+:/+)?)(?:[^/@:]*:(?!/|\d+(?:/|$))[^@]*@|[^/@]*@)(?:[^/@]*@)*"
)


# What a store can be assumed to do, each with the word for the opposite.
PROPERTIES = (
    *("path", "virtual", "checksum", "readback", "conditional", "unconditional"),
    *("plain", "spread", "copy", "nocopy", "sorted", "unsorted"),
)


def contradiction_of(words: Collection[str]) -> tuple[str, str] | None:
    """Return two of ``words``, out of ``PROPERTIES``, that cannot both hold; None without any."""
    pairs = zip(PROPERTIES[::2], PROPERTIES[1::2], strict=True)
    return next((pair for pair in pairs if set(pair) <= set(words)), None)


def dialect_of(words: Collection[str]) -> dict[str, Any]:
    """Return what ``words``, out of ``PROPERTIES``, say of a store, by the names of its fields."""
    style = next((word for word in PROPERTIES[:2] if word in words), "auto")
    return {
        "verify": "readback" if "readback" in words else "checksum",
        "conditional_writes": "unconditional" not in words,
        "addressing_style": style,
        "spread": "spread" in words,
    }


def remote_of(text: str) -> tuple[str, str]:
    """Return (bucket, prefix) of ``s3://bucket/prefix``.

    Raises:
        ValueError: It is none. Says which part breaks which rule, and what may have been meant.
    """
    if arn := re.fullmatch(r"(?:s3://)?arn:aws[\w-]*:s3:::(.+?)/*", text):
        raise ValueError(f"{without_secret(text)!r} is an ARN: did you mean 's3://{arn[1]}'?")
    if text.removeprefix("s3://").startswith("arn:"):
        alias = "give its alias as the bucket, which `aws s3control get-access-point` shows"
        raise ValueError(f"{without_secret(text)!r} names an access point by its ARN: {alias}")
    other = _OTHER_STORES.get(text.partition("://")[0].strip().lower())
    if other is not None:
        raise ValueError(f"{without_secret(text)!r} is not in S3: {other}")
    wrong = _wrong(text)
    if wrong is None:
        bucket, prefix = _parts(text)
        return bucket, prefix
    meant = _meant(text)
    move = f"did you mean {meant!r}?" if _wrong(meant) is None else f"write it as {_FORM!r}"
    raise ValueError(f"{without_secret(text)!r} {wrong}: {move}")


def oddity_of(bucket: str) -> str | None:
    """Return why no bucket can be made today under this name, or None; an old one may have it."""
    if re.fullmatch(r"[a-z0-9][a-z0-9.-]*[a-z0-9]", bucket, re.ASCII) and ".." not in bucket:
        return "it looks like an IP address" if re.fullmatch(r"[\d.]+\.\d+", bucket) else None
    return "a name has a-z 0-9 . - alone, and a letter or digit at both ends"


def _parts(text: str) -> tuple[str, str]:
    bucket, _, prefix = text.removeprefix("s3://").partition("/")
    return bucket, prefix.strip("/")


def _wrong(text: str) -> str | None:
    """Return which rule ``text`` breaks, or None if it breaks none."""
    if _SERVER.match(text) and not _is_aws(text):
        return "names a server, which is for `remote.endpoint` to say"
    if not text.startswith("s3://"):
        return "does not begin with s3://"
    if _CREDENTIALS.match(text):
        return "has credentials in it, which come from the AWS chain alone"
    bucket, prefix = _parts(text)
    if not bucket:
        return "names no bucket"
    if not _BUCKET.fullmatch(bucket):
        return f"{_wrong_with(bucket)}, but {_BUCKET_RULE}"
    for segment in prefix.split("/") if prefix else ():
        if segment in (".", "..") or not _SEGMENT.fullmatch(segment):
            odd = _NOT_IN_SEGMENT.search(segment)
            what = f"has {odd[0]!r} in its prefix" if odd else f"has a segment {segment!r}"
            return f"{what}, but {_PREFIX_RULE}"
    return None


def _wrong_with(bucket: str) -> str:
    if odd := _NOT_IN_BUCKET.search(bucket):
        return f"has {odd[0]!r} in its bucket"
    if not bucket[0].isalnum():
        return f"has {bucket[0]!r} at the begin of its bucket"
    return f"has a bucket of {counted(len(bucket), 'character')}"


def _meant(text: str) -> str:
    """Return what is nearest to ``text``; it may be no remote either."""
    plain = _CREDENTIALS.sub(r"\1", text).strip()
    if _SERVER.match(plain):
        plain = _behind_server(plain)
    elif "://" in plain and not _S3.match(plain):
        return ""  # of another kind of store
    elif plain.startswith((".", "/", "~")):
        return ""  # a directory
    bucket, _, prefix = _S3.sub("", plain, count=1).partition("/")
    bucket = re.split(r"[?#]", bucket)[0]
    bucket = re.sub(r"[^a-z0-9.-]+", "-", bucket.lower()).strip("-.")
    prefix = re.split(r"[?#]", prefix)[0]
    segments = (_NOT_IN_SEGMENT.sub("-", each).strip("-") for each in prefix.split("/"))
    return "/".join(("s3:/", bucket, *(each for each in segments if each.strip("."))))


def _behind_server(url: str) -> str:
    """Return bucket and prefix of the URL of an object, or of a place for some."""
    _, _, rest = url.partition("://")
    host, _, path = rest.partition("/")
    server = _AWS.fullmatch(host)
    bucket = f"{server['bucket']}/" if server is not None and server["bucket"] else ""
    return bucket + path


def _is_aws(url: str) -> bool:
    return _AWS.fullmatch(url.partition("://")[2].partition("/")[0]) is not None


def without_secret(url: str) -> str:
    """Return ``url``, whatever it is of, without the credentials that somebody wrote into it."""
    return _CREDENTIALS.sub(r"\1***@", url)
