"""Read the documents that clients send: the parts of an upload, and keys to delete.

They are read as a stream, so that a document costs its own size and no tree, and bounded in bytes,
depth and entries. Without a DTD there are no entities, and nothing that grows or is fetched.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from xml.sax import SAXException
from xml.sax.handler import ContentHandler
from xml.sax.xmlreader import AttributesImpl

from defusedxml.sax import parseString

from cachetier.doors.s3.checksums import declared_in
from cachetier.doors.s3.conditions import MATCH, MATCH_SIZE, MATCH_TIME, of_deletion, unquoted
from cachetier.doors.s3.errors import refused
from cachetier.local.catalog.objects import KeyCondition
from cachetier.model.objects import OBJECT_PART_LIMIT
from cachetier.objects.base import DeclaredPart

DOCUMENT_LIMIT_BYTES = 2 << 20  # 10,000 parts with the longest checksum
KEYS_LIMIT = 1_000
_TEXT_LIMIT = 4096  # characters; longer than any key
_FIELDS_LIMIT = 16  # of an entry
_DEEPEST = 3  # root, entry, field
_CHECKSUM = "Checksum"
_CONDITIONS = {"ETag": MATCH, "Size": MATCH_SIZE, "LastModifiedTime": MATCH_TIME}  # of an entry


@dataclass(frozen=True, slots=True)
class Deletion:
    """Keys to delete, as they were sent, and what must hold of each.

    ``quiet``: what was deleted is not listed.
    """

    keys: Mapping[str, KeyCondition]
    quiet: bool


def read_parts(body: bytes) -> list[DeclaredPart]:
    """Return the parts of a CompleteMultipartUpload, in the order of the document.

    Raises:
        CachetierError: MalformedXML; InvalidArgument for a number that no part has; InvalidRequest
            for a checksum that is none.
    """
    entries, _ = _read(body, "CompleteMultipartUpload", "Part", OBJECT_PART_LIMIT)
    return [_part_of(entry) for entry in entries]


def read_deletion(body: bytes) -> Deletion:
    """Return what a DeleteObjects names; whether its keys are any is not judged here.

    Raises:
        CachetierError: MalformedXML, or InvalidArgument for a condition that is none;
            NotImplemented where a version is named, or a key twice with other conditions.
    """
    entries, fields = _read(body, "Delete", "Object", KEYS_LIMIT)
    keys: dict[str, KeyCondition] = {}
    for entry in entries:
        if not entry.get("Key"):
            raise refused("MalformedXML", "an object to delete has no key")
        named = sorted(entry.keys() - {"Key", *_CONDITIONS})
        if named:
            raise refused("NotImplemented", f"deletions by {named[0][:60]} are not offered here")
        wanted = of_deletion({_CONDITIONS[n]: v.strip() for n, v in entry.items() if n != "Key"})
        if keys.setdefault(entry["Key"], wanted) != wanted:
            raise refused("NotImplemented", "a key is deleted once, under one condition")
    return Deletion(keys, fields.get("Quiet") == "true")


def _part_of(entry: Mapping[str, str]) -> DeclaredPart:
    number, etag = entry.get("PartNumber", "").strip(), entry.get("ETag", "")
    if not etag or not (number.isascii() and number.isdecimal()):
        raise refused("MalformedXML", "a part has a PartNumber and an ETag")
    if len(number) > len(str(OBJECT_PART_LIMIT)) or not 1 <= int(number) <= OBJECT_PART_LIMIT:
        raise refused("InvalidArgument", f"a part's number is from 1 to {OBJECT_PART_LIMIT}")
    headers = {
        f"x-amz-checksum-{name.removeprefix(_CHECKSUM).lower()}": value.strip()
        for name, value in entry.items()
        if name.startswith(_CHECKSUM)
    }
    return DeclaredPart(int(number), unquoted(etag), declared_in(headers))


def _read(
    body: bytes, root: str, entry: str, limit: int
) -> tuple[list[dict[str, str]], dict[str, str]]:
    """Return the entries of a document, and the fields beside them."""
    if len(body) > DOCUMENT_LIMIT_BYTES:
        raise refused("MalformedXML", f"a document has up to {DOCUMENT_LIMIT_BYTES} bytes")
    reader = _Reader(root, entry, limit)
    try:
        parseString(body, reader, forbid_dtd=True)
    except (SAXException, ValueError, LookupError):  # defused, or in no encoding that there is
        raise refused("MalformedXML", "the document is not well-formed, or has a DTD") from None
    if not reader.entries:
        raise refused("MalformedXML", f"the document has no {entry}")
    return reader.entries, reader.fields


class _Reader(ContentHandler):
    """Keeps the entries of a document of one kind, and refuses any other."""

    def __init__(self, root: str, entry: str, limit: int) -> None:
        super().__init__()
        self.entries: list[dict[str, str]] = []
        self.fields: dict[str, str] = {}
        self._root, self._entry, self._limit = root, entry, limit
        self._path: list[str] = []
        self._text: list[str] = []
        self._characters = 0

    def startElement(self, name: str, attrs: AttributesImpl) -> None:  # noqa: N802, ARG002
        self._path.append(name.rpartition(":")[2])
        self._text, self._characters = [], 0
        if self._path[0] != self._root or len(self._path) > _DEEPEST:
            raise refused("MalformedXML", f"the document is no {self._root}")
        if self._path[1:] == [self._entry]:
            if len(self.entries) == self._limit:
                raise refused("MalformedXML", f"a {self._root} has up to {self._limit} entries")
            self.entries.append({})

    def characters(self, content: str) -> None:
        self._characters += len(content)
        if self._characters > _TEXT_LIMIT:
            raise refused("MalformedXML", f"a text has up to {_TEXT_LIMIT} characters")
        self._text.append(content)

    def endElement(self, name: str) -> None:  # noqa: N802, ARG002
        *parents, field = self._path
        self._path.pop()
        text, self._text = "".join(self._text), []
        if len(parents) == 1 and field != self._entry:
            self._keep(self.fields, field, text)
        elif parents[1:] == [self._entry]:
            self._keep(self.entries[-1], field, text)

    def _keep(self, record: dict[str, str], field: str, text: str) -> None:
        if field in record or len(record) == _FIELDS_LIMIT:
            raise refused("MalformedXML", f"{field[:60]} appears twice, or too much is")
        record[field] = text
