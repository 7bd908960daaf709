"""Tables from a remote's error code to its cause and fix; message texts are never looked at."""

from __future__ import annotations

from cachetier.doctor.findings import CheckResult, fail, warn
from cachetier.errors import CachetierError, ThrottledError, TransientError
from cachetier.remote.settings import RemoteSettings

_KEYS = (
    "Correct the credentials: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, the profile, or the "
    "role of the machine."
)
_ELSEWHERE = "the bucket is in another region", "Set `region` of the remote to the bucket's region."
_KMS_KEY = "Enable it, or correct the key in `encryption`: it lies in the bucket's region."
_BY_CODE = {
    "InvalidAccessKeyId": ("the store does not know the access key", _KEYS),
    "SignatureDoesNotMatch": (
        "the secret key does not belong to the access key",
        _KEYS + " If they are right, a proxy changes the host; nginx: "
        "`proxy_set_header Host $http_host`.",
    ),
    "413": (
        "a proxy in front of the store takes no body of this size",
        "Raise its limit to 5 GiB, or remove it; nginx needs `client_max_body_size 0`.",
    ),
    "InvalidSecurity": ("the store does not take the credentials", _KEYS),
    "NotSignedUp": ("the store does not take the credentials", _KEYS),
    "InvalidToken": ("the session token is not valid", _KEYS),
    "ExpiredToken": (
        "the credentials have expired",
        "Renew them; a role or a profile that botocore can refresh renews itself.",
    ),
    "RequestTimeTooSkewed": (
        "this machine's clock is too far from the store's",
        "Set the clock and keep it: run chronyd or systemd-timesyncd.",
    ),
    "PermanentRedirect": _ELSEWHERE,
    "IllegalLocationConstraintException": _ELSEWHERE,
    "AuthorizationHeaderMalformed": (
        "the request was signed for another region",
        "Set `region` of the remote to the bucket's region.",
    ),
    "KMS.NotFoundException": ("there is no such KMS key", _KMS_KEY),
    "KMS.DisabledException": ("the KMS key is disabled", _KMS_KEY),
    "KMS.KMSInvalidStateException": ("the KMS key is about to be deleted, or not ready", _KMS_KEY),
    "QuotaExceeded": ("the store's quota is used up", "Raise the quota, or delete old steps."),
    "XMinioStorageFull": ("the store is full", "Give it more disks, or delete old steps."),
}
_UNKNOWN_CALL = {"NotImplemented", "MethodNotAllowed", "501", "405"}
_DENIED = {"AccessDenied", "403", "Forbidden", "AllAccessDisabled", "UnauthorizedAccess"}
_NO_BUCKET = {"NoSuchBucket", "InvalidBucketName", "404"}
_BY_CAUSE = {
    "NoCredentialsError": (
        "no credentials were found",
        "Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, AWS_PROFILE, or give the node a role.",
    ),
    "PartialCredentialsError": ("the credentials are not complete", _KEYS),
    "SSLError": (
        "the certificate of the store is not trusted",
        "Set AWS_CA_BUNDLE to the file of the authority that signed it.",
    ),
    "EndpointConnectionError": (
        "the store cannot be reached at {where}",
        "Correct `endpoint` of the remote, or look at name resolution, routes and proxies.",
    ),
}


def judge_refusal(error: CachetierError, remote: RemoteSettings, right: str = "") -> CheckResult:
    """Say why a call failed; ``right`` is what it needs, as IAM calls it."""
    code = str(error.context.get("remote_code") or "")
    if isinstance(error, ThrottledError):
        fix = (
            "Try again under less load; `cachetier bench --remote` finds the rate that it accepts."
        )
        return warn("the store throttles at the moment", fix, remote_code=code)
    summary, fix = reason_of(error, remote, right)
    return fail(summary, fix, remote_code=code)


def reason_of(error: CachetierError, remote: RemoteSettings, right: str = "") -> tuple[str, str]:
    """Return why a call failed and what to do about it."""
    code = str(error.context.get("remote_code") or "")
    if code in _BY_CODE:
        summary, fix = _BY_CODE[code]
        return f"{summary} ({code})", fix
    if code in _NO_BUCKET:
        fix = "Create it, or correct `remote`, its `url` and `endpoint`."
        return f"there is no bucket {remote.bucket} ({code})", fix
    if code in _DENIED:
        fix = f"Allow {right or 'the call'} on {arn_of(remote, right)}, or as the store words it."
        if right == "s3:ListBucket":
            fix += " Requests without a prefix need it too (StringLikeIfExists)."
            fix += (
                " Without it cachetier cannot list steps there, or see the saves and "
                "deletions of other nodes."
            )
        return f"access denied: {right or code}", fix
    if code in _UNKNOWN_CALL:
        return (
            f"the store does not know this call ({code})",
            "Use a store that does, or a newer release of it.",
        )
    if (cause := lower_cause_of(error)) is not None:
        summary, fix = _BY_CAUSE[cause]
        return summary.format(where=remote.endpoint or "AWS"), fix
    if isinstance(error, TransientError):
        return (
            f"no usable answer: {error.message}",
            "Look at the network and at the store's log, then run this again.",
        )
    return error.message, error.hint


def lower_cause_of(error: CachetierError) -> str | None:
    """Return the class of what went wrong below HTTP, as botocore calls it; None if unknown."""
    cause = error.__cause__ or error.__context__
    while cause is not None:
        for base in type(cause).__mro__:
            if base.__name__ in _BY_CAUSE:
                return base.__name__
        cause = cause.__cause__ or cause.__context__
    return None


def arn_of(remote: RemoteSettings, right: str) -> str:
    """Return what a policy would name: the bucket for calls about it, else what lies in it."""
    of_bucket = {"s3:ListBucket", "s3:ListBucketMultipartUploads"}
    if right in of_bucket or right.startswith("s3:GetLifecycle") or "Versioning" in right:
        return f"arn:aws:s3:::{remote.bucket}"
    return f"arn:aws:s3:::{'/'.join(part for part in (remote.bucket, remote.prefix, '*') if part)}"
