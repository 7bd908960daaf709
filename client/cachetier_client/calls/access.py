"""The calls about the client's own identity, and, for admins, about the tokens of others."""

from __future__ import annotations

from typing import Any

from cachetier_client.calls.caller import understood
from cachetier_client.calls.runs import LOOK_SECONDS, RunCalls


class AccessCalls(RunCalls):
    """The part of ``Client`` that is about principals."""

    def whoami(self, *, timeout_seconds: float = LOOK_SECONDS) -> dict[str, Any]:
        """Return as whom the service knows this process: ``principal``, ``role``, ``runs``."""
        with self._caller.calling("whoami", tells=False), understood():
            return dict(self._ask("whoami", {}, timeout_seconds)["caller"])

    def link(self, *, timeout_seconds: float = LOOK_SECONDS) -> dict[str, Any]:
        """Return the ``url`` that signs a browser in as this caller, and ``expires_seconds``."""
        with self._caller.calling("link_create", tells=False), understood():
            return dict(self._ask("link_create", {}, timeout_seconds))

    def create_token(
        self,
        principal: str,
        *,
        expires_seconds: float | None,
        timeout_seconds: float = LOOK_SECONDS,
    ) -> dict[str, Any]:
        """Make a token for a principal; ``token`` of the answer is shown nowhere else.

        Raises:
            ForbiddenError: Only an admin may.
        """
        with self._caller.calling("token_create", tells=False), understood():
            fields = {"principal": principal, "expires_seconds": expires_seconds}
            return dict(self._ask("token_create", fields, timeout_seconds))

    def create_s3_key(
        self,
        principal: str | None = None,
        *,
        mount: str | None = None,
        expires_seconds: float | None,
        timeout_seconds: float = LOOK_SECONDS,
    ) -> dict[str, Any]:
        """Make a key of an S3 client; ``secret`` of the answer is shown nowhere else.

        Args:
            principal: Whose it is; None: the caller's.
            mount: One that the key must open.
            expires_seconds: When it ends; None: never.
            timeout_seconds: For the whole call.

        Raises:
            ForbiddenError: It is for another principal, which only an admin may.
        """
        with self._caller.calling("s3_key_create", tells=False), understood():
            fields = {"principal": principal, "mount": mount, "expires_seconds": expires_seconds}
            return dict(self._ask("s3_key_create", fields, timeout_seconds))

    def settle_object(
        self, mount: str, key: str, how: str, *, timeout_seconds: float = LOOK_SECONDS
    ) -> dict[str, Any]:
        """Decide about an object of the S3 door that does not go on by itself.

        Args:
            mount: Of the door, by its name.
            key: Whole, as the bucket has it.
            how: Of a key that somebody else changed in the bucket: ``ours`` replaces what is there
                by now, ``theirs`` drops this node's version. Of a marker: ``release`` lets it wait
                no more for other nodes.
            timeout_seconds: For the whole call.

        Raises:
            NotFoundError: Nobody has to decide about this key.
            RemoteError: The bucket cannot say what is there; nothing changed.
        """
        fields = {"run": mount, "key": key, "settle": how}
        with self._caller.calling("s3_settle", run=mount), understood():
            answer = self._ask("s3_settle", fields, timeout_seconds)
        return {name: answer[name] for name in ("key", "replaces") if name in answer}

    def tokens(self, *, timeout_seconds: float = LOOK_SECONDS) -> list[dict[str, Any]]:
        """Return the tokens that were made, without their secrets."""
        with self._caller.calling("token_list", tells=False), understood():
            return [dict(each) for each in self._ask("token_list", {}, timeout_seconds)["tokens"]]

    def revoke_token(self, token_id: str, *, timeout_seconds: float = LOOK_SECONDS) -> None:
        """Revoke a token."""
        with self._caller.calling("token_revoke", tells=False), understood():
            self._ask("token_revoke", {"id": token_id}, timeout_seconds)
