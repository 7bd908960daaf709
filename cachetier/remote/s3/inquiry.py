"""Ask about a bucket: its addressing style, lifecycle rules, versioning, clock, our credentials.

All but the style is asked only by tools that a person runs; nothing that carries bytes depends on
an answer. The style is where a bucket's name stands: in the path, or before the host's name
(``virtual``). A setting or the AWS configuration says it. Otherwise a store that has a name is
asked, by listing a key either way: some refuse the path, and others have no name for each bucket.
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import replace
from email.utils import parsedate_to_datetime
from typing import Any

from cachetier_client.bucket_format.at_rest import AtRest

from cachetier.errors import RemoteError, RemoteRefusedError
from cachetier.remote.s3.boto_client import (
    FoundCredentials,
    connect_to,
    find_credentials,
)
from cachetier.remote.s3.boto_errors import translated_errors
from cachetier.remote.s3.scheme import has_a_choice, stated_style, used_endpoint
from cachetier.remote.settings import AddressingStyle, RemoteSettings
from cachetier.remote.stall_guard import Timeouts

TIMEOUTS = Timeouts(connect_seconds=5.0, read_seconds=15.0)
STYLE_TIMEOUTS = Timeouts(connect_seconds=3.0, read_seconds=5.0)


class S3Inquiry:
    """Asks about one remote; used by one thread.

    Every method may raise ThrottledError, TransientError or RemoteRefusedError.

    Raises:
        ConfigError: The endpoint is no URL, or the AWS profile does not exist.
    """

    def __init__(
        self,
        settings: RemoteSettings,
        style: AddressingStyle | None = None,
        timeouts: Timeouts = TIMEOUTS,
    ) -> None:
        """Prepare to ask; without a ``style`` it is found out first."""
        self._bucket = settings.bucket
        self._credentials = settings.profile
        style = style or found_style(settings)
        self.remote = replace(settings, addressing_style=style)
        self._client = connect_to(settings, style, max_connections=1, timeouts=timeouts)
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
        self._ask("list_objects_v2", Prefix=prefix, MaxKeys=1)

    def listed(self, prefix: str, after: str = "") -> list[str]:
        """Return the keys under ``prefix`` in the order of the store, up to a page of them."""
        begin: Any = {"StartAfter": after} if after else {}
        answer = self._ask("list_objects_v2", Prefix=prefix, **begin)
        return [each["Key"] for each in answer.get("Contents", ())]

    def without_length(self, key: str) -> list[str]:
        """Return which of HEAD and GET of an object do not say how long the answer is."""
        got, head = self._ask("get_object", Key=key), self._ask("head_object", Key=key)
        with translated_errors("get_object", key):
            got["Body"].read()
        answers = {"HEAD": head, "GET": got}
        return [name for name, answer in answers.items() if "ContentLength" not in answer]

    def url_of(self, key: str) -> str:
        """Return where an object is, without a signature."""
        where = {"Bucket": self._bucket, "Key": key}
        signed = self._client.generate_presigned_url("put_object", Params=where)
        return str(signed).partition("?")[0]

    def at_rest(self, key: str) -> AtRest:
        """Return how the store says that it keeps an object; it never tells a context."""
        answer = self._ask("head_object", Key=key)
        encryption, kms_key = answer.get("ServerSideEncryption", ""), answer.get("SSEKMSKeyId", "")
        return AtRest(encryption, kms_key, (), answer.get("StorageClass", "STANDARD"))

    def lifecycle(self) -> list[dict[str, Any]]:
        """Return the bucket's lifecycle rules, as S3 words them."""
        try:
            answer = self._ask("get_bucket_lifecycle_configuration")
        except RemoteError as error:
            if error.context.get("remote_code") == "NoSuchLifecycleConfiguration":
                return []
            raise
        return list(answer.get("Rules", ()))

    def versioning(self) -> str:
        """Return ``Enabled``, ``Suspended``, or nothing for a bucket that never had versions."""
        return str(self._ask("get_bucket_versioning").get("Status", ""))

    def _ask(self, operation: str, **options: Any) -> dict[str, Any]:
        with translated_errors(operation, options.get("Key")):
            answer: dict[str, Any] = getattr(self._client, operation)(
                Bucket=self._bucket, **options
            )
        return answer

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


def found_style(remote: RemoteSettings) -> AddressingStyle:
    """Return the style that ``remote`` takes; ``auto`` where there is nothing to be found out.

    Raises:
        ConfigError: As ``connect``.
    """
    if (style := stated_style(remote)) != "auto" or not has_a_choice(used_endpoint(remote)):
        return style
    try:
        S3Inquiry(remote, "path", STYLE_TIMEOUTS).look(remote.prefix)
    except RemoteRefusedError:  # perhaps of the style
        with suppress(RemoteError):
            S3Inquiry(remote, "virtual", STYLE_TIMEOUTS).look(remote.prefix)
            return "virtual"
        return "auto"
    except RemoteError:
        return "auto"
    return "path"
