"""The claim on a store id: tells a cache directory that went back in time, or was copied.

A small document in the bucket bears a nonce and the highest version of a shard. It is claimed by a
conditional put before the first upload after a start, and after the remote was away, and put again
before each publication. A nonce that the catalog knows nothing of means that another directory, or
this one in a life that its disk forgot, claimed it since; a counter beyond the catalog's, that the
catalog is older than the bucket. Either way a new *epoch* begins: objects say another identity from
then on, so that none of the other life is taken for one of this.

Source: docs/design/0019-store-claims.md.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable
from dataclasses import replace

from cachetier_client.bucket_format.documents import StoreClaim
from cachetier_client.bucket_format.publication import RACES
from cachetier_client.bucket_format.uploads import store_identity

from cachetier.drain.serve.service import DrainService
from cachetier.errors import IntegrityError, TransientError
from cachetier.local.catalog.notes import OwnClaim
from cachetier.remote.bucket import Bucket, SeenStoreClaim


class StoreClaimer:
    """Claims the store id of a cache directory at one remote. Thread-safe."""

    def __init__(
        self,
        serve: DrainService,
        bucket: Bucket,
        store_id: str,
        nonce: Callable[[], str] = lambda: secrets.token_hex(8),
    ) -> None:
        self._serve = serve
        self._bucket = bucket
        self._store_id = store_id
        self._nonce = nonce
        self._lock = threading.Lock()
        self._held: SeenStoreClaim | None = None  # what was ours when it was last put
        self._first = ""  # what we claimed first

    def identity(self) -> str:
        """Return what objects are to say that they are of, once it is claimed.

        Raises:
            RemoteError: The remote cannot say; nothing may be sent.
        """
        with self._lock:
            if self._held is None:
                self._held = self._claimed()
            return self._held.claim.store

    def confirm(self) -> bool:
        """Put the claim again; return False if anybody else claimed it since the drain began.

        All is then to be looked at.

        Raises:
            RemoteError: The remote cannot say; nothing may be published.
        """
        with self._lock:
            if self._held is not None:
                again = replace(self._held.claim, counter=self._serve.read_claim().counter)
                self._held = self._bucket.put_store_claim(again, self._held)
            if self._held is None:
                self._held = self._claimed()
            return self._held.claim.store == self._first

    def forget(self) -> None:
        """Claim again before anything is sent: the remote was away."""
        with self._lock:
            self._held = None

    def _claimed(self) -> SeenStoreClaim:
        own = self._serve.read_claim()
        self._first = self._first or store_identity(self._store_id, own.epoch)
        for _ in range(RACES):
            identity = store_identity(self._store_id, own.epoch)
            seen, ours = self._seen(identity, own)
            if not ours:
                own = OwnClaim(self._nonce(), (), own.counter)  # another epoch
                continue
            nonce, before = self._nonce(), seen.claim.nonce if seen is not None else ""
            self._serve.intend_claim(own.epoch, nonce, before)
            own = OwnClaim(own.epoch, (nonce, before), own.counter)
            claim = StoreClaim(store=identity, nonce=nonce, counter=own.counter)
            put = self._bucket.put_store_claim(claim, seen)
            if put is not None:
                return put
        raise TransientError(f"the claim of store {self._store_id} keeps changing")

    def _seen(self, identity: str, own: OwnClaim) -> tuple[SeenStoreClaim | None, bool]:
        """Return the claim that is there, and whether this catalog knows of it, and no less."""
        try:
            seen = self._bucket.store_claim(identity)
        except IntegrityError:
            return None, False  # whoever wrote that
        if seen is None:
            return None, True
        return seen, seen.claim.nonce in own.nonces and seen.claim.counter <= own.counter
