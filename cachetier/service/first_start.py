"""Check the remotes before a cache directory is used for the first time.

A cache that holds nothing yet has nothing to lose by not starting, so what a person mistyped ends
the first start at once. Later starts never depend on the remote: they serve, and keep, bytes that
may be nowhere else, and the drain says what it is refused.
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path

from cachetier.config.remotes import remote_settings, replica_settings
from cachetier.config.settings import Settings
from cachetier.errors import ConfigError, RemoteError, RemoteRefusedError, TransientError
from cachetier.local.recovery import CATALOG_NAME
from cachetier.remote.bucket_properties import Inquiry
from cachetier.remote.reconnecting import alone
from cachetier.remote.settings import RemoteSettings
from cachetier.telemetry.events import REMOTE_REFUSED, REMOTE_UNREACHABLE, tell

log = logging.getLogger(__name__)

LOOK_SECONDS = 20.0
_NO_CREDENTIALS = ("NoCredentialsError", "PartialCredentialsError")  # botocore's

_NO_BUCKET = "there is no such bucket", "Create it, or correct `remote` and `remote_endpoint`."
_NO_KEYS = (
    "the store does not take our credentials",
    "Correct AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, the profile, or the role of the machine.",
)
_NOBODY = (
    "the AWS chain has no credentials for us",
    "Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, name a profile, or give the machine a role.",
)
_ELSEWHERE = "the bucket is in another region", "Set `remote_region` to the bucket's."
_UNTRUSTED = (
    "its certificate is not trusted here",
    "Name the authority that signed it in AWS_CA_BUNDLE, or correct `remote_endpoint`.",
)
# What no waiting mends. Other refusals may: a token that ended, a clock, a quota, a missing right
# that is not needed.
_WRONG = {
    "NoSuchBucket": _NO_BUCKET,
    "InvalidBucketName": _NO_BUCKET,
    "InvalidAccessKeyId": _NO_KEYS,
    "InvalidSecurity": _NO_KEYS,
    "NotSignedUp": _NO_KEYS,
    "SignatureDoesNotMatch": _NO_KEYS,
    "AuthorizationHeaderMalformed": _ELSEWHERE,
    "IllegalLocationConstraintException": _ELSEWHERE,
    "PermanentRedirect": _ELSEWHERE,
}


def refuse_wrong_remote(settings: Settings) -> None:
    """Look at the remotes once, if ``cache_dir`` is new; each look takes up to twenty seconds.

    A remote that cannot be reached, or may yet change its mind, is told in the log. A replica is
    not asked, as it may be away; but its profile is there, or the start ends.

    Raises:
        ConfigError: The bucket, the region, the credentials or the certificate is wrong.
    """
    if not _is_new(settings.cache_dir):
        return
    _refuse_wrong(remote_settings(settings), _ask)
    for replica in replica_settings(settings):
        _refuse_wrong(replica, Inquiry)


def _refuse_wrong(remote: RemoteSettings, look: Callable[[RemoteSettings], object]) -> None:
    try:
        _look(remote, look)
    except RemoteError as error:
        wrong = _wrong(error)
        if wrong is not None:
            what, hint = wrong
            code = error.context.get("remote_code")
            reason = f"{what} ({code})" if code else what
            raise ConfigError(f"{_named(remote)}: {reason}", hint=hint) from error
        refused = isinstance(error, RemoteRefusedError)
        event = REMOTE_REFUSED if refused else REMOTE_UNREACHABLE
        tell(log, event, remote=remote.name, reason=error.message)


def _is_new(cache_dir: Path) -> bool:
    try:
        return not (cache_dir / CATALOG_NAME).exists()
    except OSError:
        return False  # the service cannot use it either, and says why


def _ask(remote: RemoteSettings) -> None:
    Inquiry(remote).look(remote.prefix)


def _look(remote: RemoteSettings, look: Callable[[RemoteSettings], object]) -> None:
    """Look, but never for longer than ``LOOK_SECONDS``, whatever hangs: a program, a name, a key.

    Raises:
        RemoteError: What came of it.
        ConfigError: As ``Inquiry``.
    """
    try:
        alone("first-look", lambda: look(remote)).result(LOOK_SECONDS)
    except (ConfigError, RemoteError):
        raise
    except Exception as error:  # no answer that we understand is no refusal
        why = f"no answer in {LOOK_SECONDS:g} s" if isinstance(error, TimeoutError) else repr(error)
        raise TransientError(f"the first look at the bucket: {why}") from error


def _wrong(error: RemoteError) -> tuple[str, str] | None:
    """Return what is wrong and what to do about it, None where waiting may mend it."""
    if not isinstance(error, RemoteRefusedError) or _is_the_servers_own(error):
        return None
    code = error.context.get("remote_code")
    if code:
        return _WRONG.get(str(code))
    # There was no answer: the connection was not trusted, or there was nothing to sign with.
    causes = list(_causes(error))
    if any(isinstance(each, ssl.SSLError) for each in causes):
        return _UNTRUSTED
    # Credentials that could not be had just now may be there later: that is no mistyped name.
    nobody = any(type(each).__name__ in _NO_CREDENTIALS for each in causes)
    return _NOBODY if nobody else None


def _is_the_servers_own(error: RemoteError) -> bool:
    """Whether a server in trouble said it: what it says of the bucket may not be so."""
    return int(error.context.get("remote_status") or 0) >= 500


def _causes(error: BaseException) -> Iterator[BaseException]:
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__ or cause.__context__


def _named(remote: RemoteSettings) -> str:
    return f"{remote.url} at {remote.endpoint}" if remote.endpoint else remote.url
