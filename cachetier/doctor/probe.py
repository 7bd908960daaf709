"""A scratch prefix in a bucket for the checks, empty again afterwards."""

from __future__ import annotations

import contextlib
import os
import secrets
from dataclasses import replace
from functools import cached_property
from typing import Any

from cachetier_client.bucket_format.uploads import SAVE_KEY, ObjectInfo
from cachetier_client.identity.names import RESERVED_SEGMENT
from cachetier_client.io.digests import digest_of

from cachetier.errors import RemoteError
from cachetier.remote.base import ObjectStore
from cachetier.remote.call_policy import DOCTOR, CallPolicy, Retries
from cachetier.remote.scheme import Inquiry, scheme_of
from cachetier.remote.settings import RemoteSettings

TIMEOUTS = (5.0, 15.0)
METADATA = {SAVE_KEY: "kept"}  # nothing becomes durable without
LEAST_PART_BYTES = 5 << 20
SMALL_BYTES = 1024


class NotTriedError(Exception):
    """A check cannot be made, as another one failed that it builds on."""


class Probe:
    """One remote, and what doctor keeps there for the moment.

    Everything is under ``<prefix>/.cachetier/doctor-<id>/``, where no reader of checkpoints looks.

    Attributes:
        refused: Why the remote as a whole cannot be used; the other checks are then skipped.
    """

    def __init__(self, settings: RemoteSettings, name: str = "doctor") -> None:
        self.settings = settings
        self.refused: str = ""
        parts = [settings.prefix, RESERVED_SEGMENT, f"{name}-{secrets.token_hex(4)}", ""]
        self.folder = "/".join(part for part in parts if part) + "/"
        self.small = os.urandom(SMALL_BYTES)
        self.part = os.urandom(LEAST_PART_BYTES)
        self._keys: set[str] = set()
        self._uploads: dict[str, str] = {}
        self._stores: dict[RemoteSettings, ObjectStore] = {}

    @cached_property
    def inquiry(self) -> Inquiry:
        return scheme_of(self.settings).inquire(self.settings)

    @property
    def store(self) -> ObjectStore:
        """The remote as it is set."""
        return self._store(self.settings)

    def store_set_to(self, **settings: Any) -> ObjectStore:
        """Return the same with other ``settings``, as if the store were known to do that."""
        return self._store(replace(self.settings, **settings))

    def _store(self, settings: RemoteSettings) -> ObjectStore:
        from cachetier.remote.factory import open_store
        from cachetier.remote.stall_guard import Timeouts

        if settings not in self._stores:
            store = open_store(settings, timeouts=Timeouts(*TIMEOUTS))
            self._stores[settings] = CallPolicy(store, retries=Retries(DOCTOR))
        return self._stores[settings]

    # --- what is there for the moment ------------------------------------------------------------

    def key(self, name: str) -> str:
        """Return the key for ``name``; whatever is put there goes at the end."""
        key = f"{self.folder}{name}"
        self._keys.add(key)
        return key

    @cached_property
    def object(self) -> ObjectInfo:
        """A small object; raises what its put raises."""
        return self.store.put(
            self.key("small"), self.small, digest=digest_of(self.small), metadata=METADATA
        )

    def needed_object(self) -> ObjectInfo:
        """Return the small object.

        Raises:
            NotTriedError: It cannot be put.
        """
        try:
            return self.object
        except RemoteError:
            raise NotTriedError("needs an object: see `put`") from None

    def upload(self, name: str, store: ObjectStore | None = None) -> tuple[str, str]:
        """Begin an upload; return its key and id. It is aborted at the end, unless it ``ended``."""
        key = self.key(name)
        upload_id = (store or self.store).create_upload(key, METADATA)
        self._uploads[upload_id] = key
        return key, upload_id

    def ended(self, upload_id: str) -> None:
        """Note that an upload was completed or aborted."""
        del self._uploads[upload_id]

    # --- the end ---------------------------------------------------------------------------------

    def clean(self) -> list[str]:
        """Remove everything; return the keys of what could not be removed."""
        left = []
        for upload_id, key in list(self._uploads.items()):
            with contextlib.suppress(RemoteError):
                self.store.abort_upload(key, upload_id)
                continue
            left.append(f"{key} (upload {upload_id})")
        listed = self._listed()
        for key in sorted(self._keys | (listed or set())):  # a store may list other keys than ours
            try:
                self.store.delete(key)
            except RemoteError:
                left += [key] if listed is not None or self._is_there(key) else []
        return left

    def _listed(self) -> set[str] | None:
        """Return what lies in our folder, a put whose answer was lost too; None if it is hidden."""
        if not self._keys:
            return set()
        with contextlib.suppress(RemoteError):
            return set(self.store.list(self.folder).keys)
        return None

    def _is_there(self, key: str) -> bool:
        try:
            return self.store.head(key) is not None
        except RemoteError:
            return key == f"{self.folder}small" and "object" in self.__dict__
