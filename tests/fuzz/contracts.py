"""What parsers promise for any bytes: an answer, or one of their errors, soon, in little memory.

The bytes are those of a sound example that somebody changed, or made up from nothing.
"""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import hypothesis
from cachetier_client.bucket_format.documents import (
    Manifest,
    PartDocument,
    PendingSeal,
    ShardEntry,
    StoreClaim,
    UnflushedNote,
    UnflushedSave,
    decode,
    encode,
)
from cachetier_client.bucket_format.publication import Claimant, claim, published
from cachetier_client.bucket_format.stored import FACT_HEADERS, Codec, ShardFacts, unpack_frames
from cachetier_client.bucket_format.uploads import (
    ACKNOWLEDGED_KEY,
    PLACE_KEY,
    STORE_KEY,
    VERSION_KEY,
    ObjectInfo,
)
from cachetier_client.clock import SystemClock
from cachetier_client.errors import CachetierClientError
from cachetier_client.identity.names import SaveIds
from cachetier_client.identity.remote_url import remote_of
from cachetier_client.transport.base import PutRequest
from cachetier_client.transport.wire import FrameError, receive_frame
from cachetier_client.units import parsed_size, parsed_span
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from benchmarks import processes
from cachetier import parsers
from cachetier.codec.frames import FrameDecoder
from cachetier.codec.seek_table import decode_table, encode_table
from cachetier.config.settings import sourced
from cachetier.doors.http.paths import target_of
from cachetier.doors.http.queries import Query, digest_of, size_of
from cachetier.doors.http.ranges import span_of
from cachetier.doors.http.shards import PUT_PARAMETERS
from cachetier.doors.unix import requests
from cachetier.errors import CachetierError, IntegrityError
from cachetier.fsck.run import FsckOptions, fsck
from cachetier.local.catalog import saves
from cachetier.local.recovery import open_store
from cachetier.model.superseding import VERSION_LIMIT, DeletionRecord, Stamp
from tests.crash.sweep import Remote
from tests.fakes.fake_clock import FakeClock
from tests.fuzz import s3_contracts
from tests.fuzz.mutants import PIECES
from tests.fuzz.recording import frame
from tests.stateful.node import Node
from tests.stateful.unsynced import default_vfs, unsynced
from tests.unit.codec import test_hostile as frames

SECONDS = 10.0  # of a processor, for one example
TAKEN_BYTES = 64 << 20
RESET = Path("/proc/self/clear_refs")


@dataclass(frozen=True, slots=True)
class Contract:
    """A parser, sound examples of what it reads, and the errors that it may raise."""

    read: Callable[[bytes], object]
    examples: Callable[[], Sequence[bytes]]
    errors: tuple[type[Exception], ...]
    costly: bool = False

    def holds(self, data: bytes) -> None:
        RESET.write_text("5")  # the kernel forgets the peak
        began, before = time.thread_time(), processes.peak_bytes(os.getpid())
        with suppress(*self.errors):
            self.read(data)
        assert time.thread_time() - began < SECONDS, "it took too long"
        assert processes.peak_bytes(os.getpid()) < before + TAKEN_BYTES, "it took too much memory"


def check(contract: Contract, seed: int, examples: int) -> None:
    """Check a contract with examples of chance.

    Raises:
        Exception: It does not hold: whatever came instead.
    """
    test = hypothesis.given(changed_bytes(contract.examples()))(contract.holds)
    test = settings(
        max_examples=max(10, examples // 20) if contract.costly else examples,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )(test)
    hypothesis.seed(seed)(test)()


def changed_bytes(examples: Sequence[bytes]) -> st.SearchStrategy[bytes]:
    """Return a strategy of examples with pieces cut out, put in, and taken from one another."""
    spot = st.integers(0, 1 << 30)
    piece = st.one_of(
        st.binary(max_size=9),
        st.sampled_from(PIECES),
        st.sampled_from(examples),
        st.sampled_from((b"[", b'{"a":', b"9")).map(lambda each: each * 20_000),
    )
    edit = st.tuples(spot, st.integers(0, 40), piece)
    changed = st.builds(_edited, st.sampled_from(examples), st.lists(edit, max_size=4))
    return st.one_of(changed, changed, changed, st.binary(max_size=300))


def _edited(data: bytes, edits: Sequence[tuple[int, int, bytes]]) -> bytes:
    for spot, length, piece in edits:
        at = spot % (len(data) + 1)
        data = data[:at] + piece + data[at + length :]
    return data


# --- what comes through the doors ----------------------------------------------------------------

HEADER: dict[str, Any] = {
    **PutRequest(SaveIds("r", 1, "s"), "n", 8, ShardFacts(element_size=4)).fields(),
    "op": "put",
    "digest": "60c46502cefe8b54",
    "timeout_seconds": 1.0,
    "blocks": 1,
    "block": 0,
    "level": "local",
    "ranks_on_node": 1,
    "follows": False,
}
PARSED: tuple[Callable[[Any], object], ...] = (
    *(requests.Put.parse, requests.content_of),
    lambda each: requests.put_of(each.header),
    lambda each: requests.shard_of(each.header),
    lambda each: requests.level_of(each.header),
    lambda each: requests.optional_count_of(each.header, "blocks"),
    lambda each: requests.flag_of(each.header, "follows"),
    lambda each: requests.instant_of(each.header.get("since")),
)


def read_frame(data: bytes) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.setblocking(False)
        with suppress(BlockingIOError):
            theirs.sendall(data)
        theirs.shutdown(socket.SHUT_WR)
        received = receive_frame(ours)
    for parse in PARSED:
        with suppress(CachetierError):
            parse(received)


def read_query(data: bytes) -> None:
    query = Query(data, PUT_PARAMETERS)
    for read in (query.optional, query.flag, query.seconds, lambda name: query.count(name, 0)):
        for name in PUT_PARAMETERS:
            with suppress(CachetierError):
                read(name)


def read_header(data: bytes) -> None:
    text = data.decode("latin-1")
    for read in (size_of, digest_of):
        with suppress(CachetierError):
            read(text)
    with suppress(CachetierError):
        ShardFacts.of_headers(dict.fromkeys(FACT_HEADERS.values(), text)).check(8)
    span = span_of(text, 1000)
    assert span is None or 0 <= span.start < span.end <= 1000


# --- what comes from the bucket ------------------------------------------------------------------

KINDS = (Manifest, PartDocument, PendingSeal, StoreClaim, UnflushedNote)


def read_documents(data: bytes) -> None:
    for kind in KINDS:
        with suppress(IntegrityError):
            found: Any = decode(kind, data, "key")
            assert decode(kind, encode(found), "key") == found
            for shard in getattr(found, "shards", ()):
                if isinstance(shard, ShardEntry):  # others tell nothing of frames
                    shard.stored().check(shard.size_bytes)


def documents() -> list[bytes]:
    stored = frames.shard_of(frames.frames_of(Codec.PLANES), Codec.PLANES, 4).stored
    entry = ShardEntry.of("a/b", 0, frames.CONTENT, stored)
    part = PartDocument(run="r", step=1, save_id="s", rank=0, world_size=1, shards=(entry,))
    save = UnflushedSave(step=1, save_id="s", world_size=2, ranks=(0, 1))
    note = UnflushedNote(run="r", store="0f", host="node-a", saves=(save,))
    rest = encode(note), b'{"format": 1, "store": "s"}'
    return [encode(part), *map(encode, manifests(part)), *rest]


def manifests(part: PartDocument) -> list[Manifest]:
    save = Claimant.of(SaveIds("r", 1, "s"), 1_700_000_000.0)
    claimed = claim(save, None, "nonce")
    parts = [(part, "60c46502cefe8b54")]
    return [claimed, published(save, "1", claimed, parts, at=1_700_000_001.0, nonce="other")]


def read_table(data: bytes) -> None:
    decode_table(data, frames.CONTENT.size_bytes)


def read_compressed(data: bytes) -> None:
    for element_size in (0, 2, 8):
        with suppress(IntegrityError):
            assert len(FrameDecoder().decode(data, len(frames.RAW), element_size)) == len(
                frames.RAW
            )


def read_deletions(data: bytes) -> None:
    record = DeletionRecord.of_bytes(data, WRITTEN_AT)
    assert record.acknowledged_at <= WRITTEN_AT + 1.0
    assert record.name("p/") > "p/"


def read_stamp(data: bytes) -> None:
    text = data.decode("latin-1")
    names = STORE_KEY, VERSION_KEY, PLACE_KEY, ACKNOWLEDGED_KEY
    for number in range(len(names)):
        sound = Stamp("store", 7, 1.0).as_metadata("key")
        info = ObjectInfo("key", 1, "etag", None, {**sound, names[number]: text})
        stamp = Stamp.of(replace(info, modified_at=WRITTEN_AT))
        assert stamp.acknowledged_at is not None and stamp.acknowledged_at <= WRITTEN_AT + 1.0
        assert 0 <= stamp.version < VERSION_LIMIT


WRITTEN_AT = 1_700_000_000.0
RECORDS = [DeletionRecord("store", 1.0, {"a/b": 7, "ü": 8}).as_bytes()]


# --- what lies on the node -----------------------------------------------------------------------


def read_settings(data: bytes) -> None:
    with tempfile.TemporaryDirectory(prefix="fuzz-") as directory:
        path = Path(directory, "cachetier.toml")
        path.write_bytes(data)
        found = sourced(config=path)
        assert (found.settings is None) == bool(found.problems)


def read_amounts(data: bytes) -> None:
    text = data.decode("latin-1")
    reads: tuple[Callable[[str], object], ...] = (
        *(parsed_size, parsed_span, parsers.address_of, remote_of, parsers.url_of),
        *(parsers.table_of, lambda each: parsers.capacity_of(each, 1 << 40)),
    )
    for read in reads:
        with suppress(ValueError):
            read(text)


LOG = b"\0the log\0"


@cache
def catalogs() -> tuple[bytes, ...]:
    """Return catalogs with their logs behind: of a node that was killed, of one that ended."""
    found = []
    for die in (Node.die, Node.close):
        with tempfile.TemporaryDirectory(prefix="fuzz-") as directory, unsynced() as vfs:
            cache_dir = Path(directory, "cache")
            node = Node(cache_dir, Remote(), FakeClock(), vfs=vfs)
            for number in range(6):
                node.put(SaveIds("run", number % 2, "save"), f"s{number}", bytes([number]) * 300)
            die(node)
            log = cache_dir / "catalog.db-wal"
            body = log.read_bytes() if log.exists() else b""
            found.append((cache_dir / "catalog.db").read_bytes() + LOG + body)
    return tuple(found)


def read_catalog(data: bytes) -> None:
    """Look with fsck, start, read all there is, and repair."""
    with tempfile.TemporaryDirectory(prefix="fuzz-") as directory, unsynced() as vfs:
        cache_dir = Path(directory, "cache")
        (cache_dir / "data").mkdir(parents=True)
        database, _, log = data.partition(LOG)
        (cache_dir / "catalog.db").write_bytes(database)
        (cache_dir / "catalog.db-wal").write_bytes(log)
        with default_vfs(vfs):
            for act in (_looked_at, _started, _repaired):
                with suppress(CachetierError):
                    act(cache_dir)
        shutil.rmtree(cache_dir)


def _looked_at(cache_dir: Path) -> None:
    fsck(cache_dir, [], SystemClock(), FsckOptions(data=True), capacity_bytes=1 << 30)


def _repaired(cache_dir: Path) -> None:
    fsck(cache_dir, [], SystemClock(), FsckOptions(repair=True), capacity_bytes=1 << 30)


def _started(cache_dir: Path) -> None:
    store = open_store(cache_dir, 1 << 30, FakeClock()).store
    try:
        for number in range(6):
            with suppress(CachetierError):
                store.read(
                    partial(saves.visible_shard, run="run", step=number % 2, name=f"s{number}")
                )
    finally:
        store.close()


CONTRACTS: dict[str, Contract] = {
    "frames": Contract(
        read_frame, lambda: [frame(HEADER, b"12345678"), frame({"op": "status"})], (FrameError,)
    ),
    "paths": Contract(
        target_of,
        lambda: [b"/v1/runs/r/steps/1/shards/a/b%2fc", b"/v1/runs/r/steps/7/seal"],
        (CachetierClientError,),
    ),
    "queries": Contract(
        read_query,
        lambda: [
            b"rank=0&world_size=1&overwrite=false&timeout_seconds=1.5&save_id=a%20b&ack=local"
        ],
        (CachetierError,),
    ),
    "headers": Contract(
        read_header,
        lambda: [b"bytes=0-99", b"bytes=-5", b"60c46502cefe8b54", b"4"],
        (CachetierError,),
    ),
    "documents": Contract(read_documents, documents, ()),
    "deletions": Contract(read_deletions, lambda: RECORDS, (ValueError, RecursionError)),
    "stamps": Contract(read_stamp, lambda: [b"7", b"1.0", b"store"], ()),
    "seek tables": Contract(
        read_table, lambda: [encode_table([7, 8, 9], frames.CONTENT.size_bytes)], (IntegrityError,)
    ),
    "packed frames": Contract(unpack_frames, lambda: [bytes(24)], (ValueError,)),
    "compressed frames": Contract(
        read_compressed, lambda: list(frames.frames_of(Codec.ZSTD)[2:]), ()
    ),
    "settings files": Contract(
        read_settings,
        lambda: [
            b'cache_dir = "/c"\nremote = "s3://b/p"\ncapacity = "80%"\nhttp = "127.0.0.1:0"\n'
        ],
        (),
    ),
    "amounts and addresses": Contract(
        read_amounts, lambda: [b"80%", b"1.5 GiB", b"s3://b/p", b"127.0.0.1:0", b'{"a": "1 h"}'], ()
    ),
    "requests of S3": Contract(
        s3_contracts.read_request, lambda: [*map(s3_contracts.as_lines, s3_contracts.EXAMPLES)], ()
    ),
    "signatures of S3": Contract(
        s3_contracts.read_signed, lambda: [*map(s3_contracts.as_lines, s3_contracts.EXAMPLES)], ()
    ),
    "checksums of S3": Contract(s3_contracts.read_checksums, lambda: s3_contracts.CHECKSUMS, ()),
    "aws-chunked bodies": Contract(s3_contracts.read_chunks, s3_contracts.chunks, ()),
    "documents of S3 clients": Contract(
        s3_contracts.read_documents, lambda: s3_contracts.DOCUMENTS, ()
    ),
    "catalog files": Contract(read_catalog, catalogs, (), costly=True),
}
