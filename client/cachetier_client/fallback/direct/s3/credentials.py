"""Keys from the usual AWS chain, and signatures made with them.

Keys from the environment need no thread. Any others come over awscrt's event loop, which a forked
child must not touch: it makes its own, and leaves the parent's where it is.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from concurrent.futures import TimeoutError as FuturesTimeoutError
from typing import Any

from awscrt import auth, http, io
from awscrt.exceptions import AwsCrtError

from cachetier_client import forks
from cachetier_client.deadline import Deadline
from cachetier_client.errors import RemoteRefusedError

_CHAIN_SECONDS = 10.0
_KEYS_HINT = (
    "Give this process AWS credentials as the service has them: in the environment, a profile or a "
    "role; or set CACHETIER_FALLBACK=wait."
)
_left_behind: list[Any] = []  # a parent's, kept from being freed in the child


class SlowCredentialsError(TimeoutError):
    """The provider of the keys is slow; like any network error this may pass."""


class Signer:
    """Signs requests to S3. Thread-safe and fork-safe."""

    def __init__(self, region: str) -> None:
        self._region = region
        self._lock = threading.RLock()
        self._provider: Any = None
        forks.own(self)

    def abandon(self) -> None:
        """Begin again in a forked child."""
        _left_behind.append(self._provider)
        self._provider = None
        self._lock = threading.RLock()
        forks.own(self)

    def signed(
        self, method: str, target: str, headers: Mapping[str, str], deadline: Deadline
    ) -> list[tuple[str, str]]:
        """Return ``headers`` with those that sign the request; the payload itself is not signed.

        Raises:
            RemoteRefusedError: There are no keys.
            SlowCredentialsError: Nobody knows yet.
        """
        request = http.HttpRequest(method, target, http.HttpHeaders(list(headers.items())))
        config = auth.AwsSigningConfig(
            algorithm=auth.AwsSigningAlgorithm.V4,
            signature_type=auth.AwsSignatureType.HTTP_REQUEST_HEADERS,
            credentials_provider=self._keys(),
            region=self._region,
            service="s3",
            use_double_uri_encode=False,
            should_normalize_uri_path=False,
            signed_body_value=auth.AwsSignedBodyValue.UNSIGNED_PAYLOAD,
            signed_body_header_type=auth.AwsSignedBodyHeaderType.X_AMZ_CONTENT_SHA_256,
        )
        seconds = min(_CHAIN_SECONDS, deadline.require("signing a request"))
        try:
            auth.aws_sign_request(request, config).result(seconds)
        except FuturesTimeoutError:
            raise SlowCredentialsError from None  # on a busy node: that may pass
        except AwsCrtError as error:
            raise RemoteRefusedError(
                "no AWS credentials were found for writing to S3 directly", hint=_KEYS_HINT
            ) from error
        return list(request.headers)

    def _keys(self) -> Any:
        with self._lock:
            if self._provider is None:
                self._provider = _provider()
            return self._provider


def _provider() -> Any:
    if os.environ.get("AWS_ACCESS_KEY_ID") and os.environ.get("AWS_SECRET_ACCESS_KEY"):
        return auth.AwsCredentialsProvider.new_environment()
    loops = io.EventLoopGroup(1)
    bootstrap = io.ClientBootstrap(loops, io.DefaultHostResolver(loops))
    return auth.AwsCredentialsProvider.new_default_chain(bootstrap)
