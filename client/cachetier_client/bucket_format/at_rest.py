"""How the bucket keeps what is written to it: encrypted how, by which key, in which storage class.

Every write says so: a default of the bucket can be changed by others, and a policy can ask for the
words. A storage class is for bytes of shards alone: documents are small, and read again and again.

Source: docs/remotes.md, "Encryption and storage class".
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cachetier_client.identity.names import RESERVED_SEGMENT

BUCKETS_OWN = "bucket"
ENCRYPTIONS = (BUCKETS_OWN, "AES256", "aws:kms", "aws:kms:dsse")
_ARCHIVES = frozenset({"GLACIER", "DEEP_ARCHIVE"})
_FIELDS = ("encryption", "kms_context", "storage_class")


@dataclass(frozen=True, slots=True)
class AtRest:
    """The encryption and storage class that each write asks for.

    Empty where the bucket's own settings are to count.
    """

    encryption: str = ""
    kms_key: str = ""
    kms_context: tuple[tuple[str, str], ...] = ()
    storage_class: str = ""

    @classmethod
    def checked(cls, fields: Mapping[str, Any]) -> AtRest:
        """Read what settings, or a service's greeting, say; None counts as not said.

        The encryption may name its KMS key: ``aws:kms alias/checkpoints``.

        Raises:
            ValueError: They contradict each other, or nothing could be read back at once.
        """
        encryption, storage_class = (
            str(fields.get(name) or "") for name in ("encryption", "storage_class")
        )
        encryption, _, kms_key = encryption.partition(" ")
        context = dict(fields.get("kms_context") or {})
        if encryption and encryption not in ENCRYPTIONS:
            raise ValueError(f"encryption {encryption!r} is not one of {', '.join(ENCRYPTIONS)}")
        if (kms_key or context) and not encryption.startswith("aws:kms"):
            raise ValueError('a KMS key or context needs the encryption "aws:kms"')
        if storage_class in _ARCHIVES:
            raise ValueError(
                f"objects in {storage_class} cannot be read back at once, which a restore has to: "
                "take GLACIER_IR, or let a lifecycle rule archive old steps"
            )
        for what, text in (("KMS key", kms_key), ("storage class", storage_class)):
            if not re.fullmatch(r"[!-~]*", text):
                raise ValueError(f"{text!r} is no {what}")
        encryption = "" if encryption == BUCKETS_OWN else encryption
        return cls(encryption, kms_key, tuple(context.items()), storage_class)

    def described(self) -> dict[str, Any]:
        """Return what ``checked`` reads."""
        encryption = f"{self.encryption} {self.kms_key}".strip()
        values = encryption, dict(self.kms_context), self.storage_class
        return dict(zip(_FIELDS, values, strict=True))

    def headers(self, key: str) -> dict[str, str]:
        """Return the headers of a request that makes, or begins to make, the object ``key``."""
        context = json.dumps(dict(self.kms_context)).encode() if self.kms_context else b""
        headers = {
            "x-amz-server-side-encryption": self.encryption,
            "x-amz-server-side-encryption-aws-kms-key-id": self.kms_key,
            "x-amz-server-side-encryption-context": base64.b64encode(context).decode(),
            "x-amz-storage-class": "" if _is_document(key) else self.storage_class,
        }
        return {name: value for name, value in headers.items() if value}


AS_THE_BUCKET_DOES = AtRest()


def _is_document(key: str) -> bool:
    return f"{RESERVED_SEGMENT}/" in key and key.endswith(".json")
