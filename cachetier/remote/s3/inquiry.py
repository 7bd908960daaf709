"""Read a bucket's properties: lifecycle rules, versioning, clock, and our credentials to it.

Only tools that a person runs ask this; nothing that carries bytes depends on an answer.
"""

from __future__ import annotations

import time
from dataclasses import replace
from email.utils import parsedate_to_datetime
from typing import Any

from cachetier_client.bucket_format.at_rest import AtRest

from cachetier.errors import RemoteError
from cachetier.remote.s3.addressing import found_style
from cachetier.remote.s3.boto_client import (
    FoundCredentials,
    connect_to,
    find_credentials,
)
from cachetier.remote.s3.boto_errors import translated_errors
from cachetier.remote.settings import RemoteSettings
from cachetier.remote.stall_guard import Timeouts

TIMEOUTS = Timeouts(connect_seconds=5.0, read_seconds=15.0)


class S3Inquiry:
    """Asks about one remote; used by one thread.

    Every method may raise ThrottledError, TransientError or RemoteRefusedError.

    Raises:
        ConfigError: The endpoint is no URL, or the AWS profile does not exist.
    """

    def __init__(self, settings: RemoteSettings) -> None:
        self._bucket = settings.bucket
        self._credentials = settings.profile
        self.remote = replace(settings, addressing_style=found_style(settings))
        style = self.remote.addressing_style
        self._client = connect_to(settings, style, max_connections=1, timeouts=TIMEOUTS)
        self._asked_at = 0.0
        self.clock_ahead_seconds: float | None = None
        self.server = ""
        self._client.meta.events.register("before-send.s3", self._sending)
        self._client.meta.events.register("response-received.s3", self._received)

    def credentials(self) -> FoundCredentials | None:
        """Return what the AWS chain finds for us, None if it finds nothing."""
        with translated_errors("credentials", None):
            return find_credentials(self._credentials)

    def look(self, prefix: str) -> None:
        """List one key under ``prefix``: unlike HEAD a refusal of it comes with its reason."""
        with translated_errors("list_objects_v2", None):
            self._client.list_objects_v2(Bucket=self._bucket, Prefix=prefix, MaxKeys=1)

    def listed(self, prefix: str, after: str = "") -> list[str]:
        """Return the keys under ``prefix`` in the order of the store, up to a page of them."""
        begin: Any = {"StartAfter": after} if after else {}
        with translated_errors("list_objects_v2", None):
            answer = self._client.list_objects_v2(Bucket=self._bucket, Prefix=prefix, **begin)
        return [each["Key"] for each in answer.get("Contents", ())]

    def without_length(self, key: str) -> list[str]:
        """Return which of HEAD and GET of an object do not say how long the answer is."""
        with translated_errors("get_object", key):
            got = self._client.get_object(Bucket=self._bucket, Key=key)
            got["Body"].read()
            head = self._client.head_object(Bucket=self._bucket, Key=key)
        answers: dict[str, Any] = {"HEAD": head, "GET": got}
        return [name for name, answer in answers.items() if "ContentLength" not in answer]

    def url_of(self, key: str) -> str:
        """Return where an object is, without a signature."""
        where = {"Bucket": self._bucket, "Key": key}
        signed = self._client.generate_presigned_url("put_object", Params=where)
        return str(signed).partition("?")[0]

    def at_rest(self, key: str) -> AtRest:
        """Return how the store says that it keeps an object; it never tells a context."""
        with translated_errors("head_object", key):
            answer = self._client.head_object(Bucket=self._bucket, Key=key)
        encryption, kms_key = answer.get("ServerSideEncryption", ""), answer.get("SSEKMSKeyId", "")
        return AtRest(encryption, kms_key, (), answer.get("StorageClass", "STANDARD"))

    def lifecycle(self) -> list[dict[str, Any]]:
        """Return the bucket's lifecycle rules, as S3 words them."""
        try:
            with translated_errors("get_bucket_lifecycle_configuration", None):
                answer: Any = self._client.get_bucket_lifecycle_configuration(Bucket=self._bucket)
        except RemoteError as error:
            if error.context.get("remote_code") == "NoSuchLifecycleConfiguration":
                return []
            raise
        return list(answer.get("Rules", ()))

    def versioning(self) -> str:
        """Return ``Enabled``, ``Suspended``, or nothing for a bucket that never had versions."""
        with translated_errors("get_bucket_versioning", None):
            answer = self._client.get_bucket_versioning(Bucket=self._bucket)
        return str(answer.get("Status", ""))

    def _sending(self, **_: Any) -> None:
        self._asked_at = time.time()

    def _received(self, response_dict: dict[str, Any] | None, **_: Any) -> None:
        """Compare the clocks: a ``Date`` is a whole second, and was written between the two."""
        if response_dict is None:  # nobody answered
            return
        headers = {name.lower(): text for name, text in response_dict["headers"].items()}
        self.server = headers.get("server", self.server)
        try:
            server_now = parsedate_to_datetime(headers["date"]).timestamp() + 0.5
        except (KeyError, ValueError):
            return
        self.clock_ahead_seconds = server_now - (self._asked_at + time.time()) / 2
