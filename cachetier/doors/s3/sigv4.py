"""AWS's Signature Version 4, as S3 has it: who signed a request, and each chunk of its body.

The canonical request is made of what was sent, byte by byte: path and query are not decoded, only
their percent-encoding is written in the one canonical way. Of botocore nothing is used: it can only
sign what it has composed itself.

A signed request is good for its window (15 minutes about its date; a presigned URL until it
expires) and can be repeated within it by whoever read it on the way. That is S3's own promise. A
repeated put stores the same bytes under the same key again; TLS keeps readers away.

Source: https://docs.aws.amazon.com/AmazonS3/latest/API/sig-v4-authenticating-requests.html
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from functools import lru_cache
from urllib.parse import unquote

from cachetier.doors.s3.errors import refused

ALGORITHM = "AWS4-HMAC-SHA256"
SKEW_SECONDS = 15 * 60.0
LONGEST_SECONDS = 7 * 86_400
TEXT_LIMIT = 4096  # characters of the header, or of a parameter, that says who signed
_SERVICE, _END = "s3", "aws4_request"
_STAMP = "%Y%m%dT%H%M%SZ"
_STAMP_SHAPE = re.compile(r"\d{8}T\d{6}Z", re.ASCII)
_SHA256 = re.compile("[0-9a-f]{64}", re.ASCII)
_EMPTY_SHA256 = hashlib.sha256(b"").hexdigest()
_CREDENTIAL = re.compile(r"(?P<id>[\w-]{1,128})/(?P<date>\d{8})/(?P<region>[\w-]{1,64})/(.+)/(.+)")
_HEADER = re.compile(
    rf"{ALGORITHM}\s+Credential=([^,\s]+)\s*,\s*SignedHeaders=([^,\s]+)\s*,\s*Signature=([^,\s]+)\s*"
)
_WHAT_IT_IS = "Credential, SignedHeaders and Signature, in this order"
_PRESIGNED = "X-Amz-Algorithm", "X-Amz-Credential", "X-Amz-SignedHeaders", "X-Amz-Signature"
# Of a path or a query: an escape, what needs none, or a byte that must become one.
_TOKEN = re.compile(r"%([0-9A-Fa-f]{2})|([A-Za-z0-9\-._~]+)|(.)", re.DOTALL)
_PLAIN = re.compile(r"[A-Za-z0-9\-._~/]*")
_SPACES = re.compile("[ \t\r\n\v\f]+")  # of ASCII alone, as the header was sent


class Payload(StrEnum):
    """How a body is covered by its signature; ``WHOLE``: by its SHA-256, which the header says."""

    WHOLE = "sha256"
    UNSIGNED = "UNSIGNED-PAYLOAD"
    CHUNKS = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"
    CHUNKS_AND_TRAILER = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER"
    UNSIGNED_CHUNKS = "STREAMING-UNSIGNED-PAYLOAD-TRAILER"

    @property
    def is_chunked(self) -> bool:
        return self not in (Payload.WHOLE, Payload.UNSIGNED)


@dataclass(frozen=True, slots=True)
class RawRequest:
    """A request as it was sent; headers in their order, names in lower case."""

    method: str
    raw_path: bytes
    raw_query: bytes
    headers: Iterable[tuple[bytes, bytes]]


class SignedRequest:
    """The fields of a request's signature.

    Attributes:
        key_id: Whose key it claims to be signed with.
        payload: How the body is covered.
        payload_sha256: Of the body, in hexadecimal, where it is covered so.
    """

    def __init__(self, claim: _Claim, request: RawRequest, headers: Mapping[str, str]) -> None:
        self._claim = claim
        self.key_id = claim.key_id
        text = claim.payload
        is_hash = _SHA256.fullmatch(text) is not None
        self.payload = Payload.WHOLE if is_hash else Payload(text)
        self.payload_sha256 = text if is_hash else None
        canonical = _canonical(request, headers, claim)
        hashed = hashlib.sha256(canonical.encode("latin-1")).hexdigest()
        self._to_sign = "\n".join((ALGORITHM, claim.stamp, claim.scope, hashed))
        self._key = b""

    def is_signed_by(self, secret: str) -> bool:
        """Return whether it is signed with ``secret``; takes as long whatever the answer is."""
        claim = self._claim
        key = signing_key(secret, claim.date, claim.region)
        is_signed = hmac.compare_digest(_signature(key, self._to_sign), claim.signature)
        self._key = key if is_signed else b""
        return is_signed

    def chunk_signatures(self) -> ChunkSignatures:
        """Return what checks the chunks of its body, once it is known to be signed."""
        assert self._key, "the request's own signature comes first"
        claim = self._claim
        return ChunkSignatures(self._key, claim.stamp, claim.scope, claim.signature)


class ChunkSignatures:
    """Checks signatures of chunks in their order: each covers the one before it."""

    def __init__(self, key: bytes, stamp: str, scope: str, seed: str) -> None:
        self._key = key
        self._head = f"{stamp}\n{scope}"
        self._previous = seed

    def check_chunk(self, sha256: str, signature: str) -> None:
        """Check the next chunk, whose bytes hash to ``sha256``; raises SignatureDoesNotMatch."""
        self._check(
            f"{ALGORITHM}-PAYLOAD\n{self._head}\n", f"\n{_EMPTY_SHA256}\n{sha256}", signature
        )

    def check_trailer(self, lines: bytes, signature: str) -> None:
        """Check the trailer: ``name:value`` and a newline for each; raises as ``check_chunk``."""
        sha256 = hashlib.sha256(lines).hexdigest()
        self._check(f"{ALGORITHM}-TRAILER\n{self._head}\n", f"\n{sha256}", signature)

    def _check(self, before: str, after: str, signature: str) -> None:
        wanted = _signature(self._key, f"{before}{self._previous}{after}")
        if not hmac.compare_digest(wanted, signature):
            raise refused("SignatureDoesNotMatch", "the signature of a chunk does not match")
        self._previous = signature


@lru_cache(maxsize=256)
def signing_key(secret: str, date: str, region: str) -> bytes:
    """Return what requests of a day are signed with."""
    key = f"AWS4{secret}".encode()
    for part in (date, region, _SERVICE, _END):
        key = hmac.digest(key, part.encode(), "sha256")
    return key


def headers_of(raw: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """Return headers by their names; of one that came several times all values, by commas."""
    headers: dict[str, str] = {}
    for raw_name, raw_value in raw:
        name, value = raw_name.decode("latin-1"), raw_value.decode("latin-1")
        headers[name] = f"{headers[name]},{value}" if name in headers else value
    return headers


def read_signature(
    request: RawRequest, now: float, named: Mapping[str, str] | None = None
) -> SignedRequest:
    """Return what ``request`` says of its signature, which remains to be checked.

    Args:
        request: As it was sent.
        now: UTC seconds.
        named: Its headers as ``headers_of`` returns them, where somebody has read them already.

    Raises:
        CachetierError: AccessDenied where there is no signature or its time is over,
            RequestTimeTooSkewed, AuthorizationHeaderMalformed, AuthorizationQueryParametersError,
            InvalidRequest, InvalidArgument, NotImplemented.
    """
    headers = headers_of(request.headers) if named is None else named
    parameters = _parameters(request.raw_query)
    is_presigned = any(name in parameters for name in _PRESIGNED)
    if "authorization" in headers:
        if is_presigned:
            raise refused("InvalidArgument", "a request is signed in its header or in its URL")
        claim = _claim_of_header(headers, now)
    elif is_presigned:
        claim = _claim_of_url(headers, parameters, now)
    elif "AWSAccessKeyId" in parameters:
        raise refused("InvalidRequest", _OLD)
    else:
        raise refused("AccessDenied", "this door takes signed requests alone")
    _check_covered(headers, claim)
    return SignedRequest(claim, request, headers)


_OLD = f"this authorization is not supported: use {ALGORITHM}"


@dataclass(frozen=True, slots=True)
class _Claim:
    key_id: str
    date: str
    region: str
    stamp: str
    signed: tuple[str, ...]
    signature: str
    payload: str

    @property
    def scope(self) -> str:
        return f"{self.date}/{self.region}/{_SERVICE}/{_END}"


def _claim_of_header(headers: Mapping[str, str], now: float) -> _Claim:
    code, text = "AuthorizationHeaderMalformed", headers["authorization"]
    if text.partition(" ")[0] != ALGORITHM:
        raise refused("InvalidRequest", _OLD)
    match = _HEADER.fullmatch(text) if len(text) <= TEXT_LIMIT else None
    if match is None:
        raise refused(code, f"the header Authorization has {_WHAT_IT_IS}")
    credential, signed, signature = match.groups()
    stamp, instant = _stamp_of(headers.get("x-amz-date", ""), "AccessDenied")
    if abs(now - instant) > SKEW_SECONDS:
        minutes = SKEW_SECONDS / 60
        raise refused(
            "RequestTimeTooSkewed", f"its date is more than {minutes:g} minutes from ours"
        )
    if "x-amz-content-sha256" not in headers:
        raise refused("InvalidRequest", "the header x-amz-content-sha256 is missing")
    payload = _checked_payload(headers["x-amz-content-sha256"])
    return _claim(code, credential, signed, signature, stamp=stamp, payload=payload)


def _claim_of_url(headers: Mapping[str, str], parameters: dict[str, str], now: float) -> _Claim:
    code = "AuthorizationQueryParametersError"
    names = (*_PRESIGNED, "X-Amz-Date", "X-Amz-Expires")
    given = [parameters.get(name, "") for name in names]
    if not all(given) or max(map(len, given)) > TEXT_LIMIT:
        raise refused(code, f"a presigned URL has {', '.join(names)}")
    algorithm, credential, signed, signature, date, expires = given
    if algorithm != ALGORITHM:
        raise refused(code, f"X-Amz-Algorithm is {ALGORITHM}")
    if not (
        expires.isascii() and expires.isdecimal() and len(expires) <= len(str(LONGEST_SECONDS))
    ):
        raise refused(code, "X-Amz-Expires is a number of seconds, a week at most")
    if not 1 <= int(expires) <= LONGEST_SECONDS:
        raise refused(code, f"X-Amz-Expires is from 1 to {LONGEST_SECONDS}")
    stamp, instant = _stamp_of(date, code)
    if instant - SKEW_SECONDS > now:
        raise refused("AccessDenied", "Request is not valid yet")
    if now > instant + int(expires):
        raise refused("AccessDenied", "Request has expired")
    hashed = headers.get("x-amz-content-sha256") or parameters.get("X-Amz-Content-Sha256")
    payload = _checked_payload(hashed or Payload.UNSIGNED)
    return _claim(code, credential, signed, signature, stamp=stamp, payload=payload)


def _claim(
    code: str, credential: str, signed: str, signature: str, *, stamp: str, payload: str
) -> _Claim:
    match = _CREDENTIAL.fullmatch(credential)
    if match is None:
        raise refused(code, "the credential is <key>/<date>/<region>/s3/aws4_request")
    key_id, date, region, service, end = match.groups()
    if (service, end) != (_SERVICE, _END):
        raise refused(code, f"the credential is for {_SERVICE}/{_END}, not for another service")
    if date != stamp[:8]:
        raise refused(code, "the date of the credential is not that of the request")
    if not _SHA256.fullmatch(signature):
        raise refused("SignatureDoesNotMatch", "the signature is not one of SHA-256")
    names = tuple(signed.split(";"))
    if names != tuple(sorted(set(names))) or signed.lower() != signed:
        raise refused(code, "the signed headers are in lower case, in order, and each there once")
    return _Claim(key_id, date, region, stamp, names, signature, payload)


def _check_covered(headers: Mapping[str, str], claim: _Claim) -> None:
    """Refuse a request of which somebody on the way could have changed what it asks for."""
    if "host" not in claim.signed:
        raise refused("AccessDenied", "the header host is not signed")
    for name in headers:
        if name.startswith("x-amz-") and name not in claim.signed:
            raise refused("AccessDenied", f"the header {name[:60]} is there and not signed")


def _checked_payload(text: str) -> str:
    if _SHA256.fullmatch(text) or text in set(Payload) - {Payload.WHOLE}:
        return text
    if text.startswith("STREAMING-AWS4-ECDSA"):
        raise refused("NotImplemented", "signatures with several regions (SigV4A) are not taken")
    raise refused("InvalidArgument", "x-amz-content-sha256 is no SHA-256, and no way of streaming")


@lru_cache(maxsize=64)
def _instant_of(stamp: str) -> float:
    if not _STAMP_SHAPE.fullmatch(stamp):
        raise ValueError(stamp)
    return datetime.strptime(stamp, _STAMP).replace(tzinfo=UTC).timestamp()


def _stamp_of(text: str, code: str) -> tuple[str, float]:
    try:
        instant = _instant_of(text)
    except ValueError:
        raise refused(
            code, "the request wants its date as 20260131T235959Z, in x-amz-date"
        ) from None
    return text, instant


def _canonical(request: RawRequest, headers: Mapping[str, str], claim: _Claim) -> str:
    values = ((name, _SPACES.sub(" ", headers.get(name, ""))) for name in claim.signed)
    lines = [f"{name}:{value.strip(' ')}\n" for name, value in values]
    return "\n".join(
        (
            request.method,
            _encoded(request.raw_path.decode("latin-1"), "/") or "/",
            _canonical_query(request.raw_query.decode("latin-1")),
            "".join(lines),
            ";".join(claim.signed),
            claim.payload,
        )
    )


def _canonical_query(raw: str) -> str:
    pairs = []
    for pair in raw.split("&") if raw else ():
        name, _, value = pair.partition("=")
        found = _encoded(name.replace("+", " ")), _encoded(value.replace("+", " "))
        if found[0] not in ("", "X-Amz-Signature"):
            pairs.append(found)
    return "&".join(f"{name}={value}" for name, value in sorted(pairs))


def _parameters(raw_query: bytes) -> dict[str, str]:
    """Return the parameters of a query, as far as they concern signatures."""
    pairs = (pair.partition("=") for pair in raw_query.decode("latin-1").split("&"))
    return {name: unquote(value, "latin-1") for name, _, value in pairs if name}


def _encoded(text: str, plain: str = "") -> str:
    """Write percent-encoding in the canonical way, without undoing it."""
    if plain == "/" and _PLAIN.fullmatch(text):
        return text

    def canonical(token: re.Match[str]) -> str:
        escaped, unreserved, other = token.groups()
        if escaped is not None:
            character = chr(int(escaped, 16))
            is_plain = character.isascii() and (character.isalnum() or character in "-._~")
            return character if is_plain else f"%{escaped.upper()}"
        return unreserved or (other if other in plain and plain else f"%{ord(other):02X}")

    return _TOKEN.sub(canonical, text)


def _signature(key: bytes, to_sign: str) -> str:
    return hmac.digest(key, to_sign.encode("latin-1"), "sha256").hex()
