"""Golden cache directories: one of everything, as a kill left it, by the code of each schema.

``python -m tests.crash.golden_directory`` writes the one of the schema of today, before a migration
is released; one that is there is never written again. Each is a tar, so that git keeps the
attributes of data files.
"""

from __future__ import annotations

import io
import os
import tarfile
import tempfile
from pathlib import Path

from cachetier_client.bucket_format.uploads import UploadedPart
from cachetier_client.identity.names import SaveIds

from cachetier.local.catalog import saves, schema, shards, uploads
from cachetier.local.catalog.rows import IncidentRecord, UploadRecord
from cachetier.local.files.data_files import IDENTITY_ATTRIBUTE
from tests.fakes.fake_clock import FakeClock
from tests.fakes.memory_store import MemoryObjectStore
from tests.stateful.fake_drain import REMOTE
from tests.stateful.node import Node

GOLDEN = Path(__file__).with_name("golden")
RUN, SMALL, LARGE, IN_PARTS = "run", 300, 70_000, 150_000
PART_BYTES = 65_536
MARK = f"SCHILY.xattr.{IDENTITY_ATTRIBUTE}"

# What lies in every golden directory: (step, name) to the state of the shard.
SHARDS = {
    (1, "a"): "evicted",
    (1, "b/c"): "clean",
    (2, "a"): "dirty",
    (2, "b/c"): "dirty",
    (3, "a"): "dirty",
    (3, "b/c"): "dirty",
    (4, "b/c"): "quarantined",
}
SIZES = {"a": SMALL, "b/c": LARGE}


def ids(step: int, rank: int = 0) -> SaveIds:
    return SaveIds(RUN, step, f"save-{step}", rank, 2)


def body(step: int, name: str) -> bytes:
    """Return the bytes of a shard: they follow from its address, and compress well."""
    line = f"{step}/{name} ".encode()
    size_bytes = IN_PARTS if (step, name) == (3, "b/c") else SIZES[name]
    return (line * (size_bytes // len(line) + 1))[:size_bytes]


def build(cache_dir: Path) -> None:
    """Make a cache directory with one of everything, the last of it in the log alone.

    Step 1 is published, and pinned once a shard was evicted; 2 is sealed; 3 is open, with an upload
    half done; 4 has a damaged shard, and its incident; 5 was saved twice and deleted.
    """
    node = Node(cache_dir, MemoryObjectStore(minimum_part_bytes=1), FakeClock())
    node.store.configure_replicas({"near": False})
    for step in (1, 5):
        _save(node, step)
    node.drain.drain_all()
    node.checkpoints.delete_step(RUN, 5)
    node.evict(next(row for row in node.rows() if (row.step, row.name) == (1, "a")))
    node.store.write(saves.pin, RUN, 1, 10.0)
    node.close()
    node = Node(cache_dir, MemoryObjectStore(minimum_part_bytes=1), FakeClock())
    _save(node, 2)
    for rank, name in enumerate(SIZES):
        node.put(ids(3, rank), name, body(3, name))
    node.put(ids(4, 1), "b/c", body(4, "b/c"))
    versions = {(row.step, row.name): row.version for row in node.rows()}
    upload, damaged = versions[3, "b/c"], versions[4, "b/c"]
    part = UploadedPart(1, "an-etag", PART_BYTES, 7, 0, PART_BYTES)
    node.store.write(uploads.begin_upload, upload, REMOTE, UploadRecord("an-upload", PART_BYTES))
    node.store.write(uploads.record_parts, upload, REMOTE, [part])
    incident = IncidentRecord("integrity", "damaged", "save it again", RUN, 4, "b/c", 1)
    node.store.write(shards.record_damage, damaged, incident, 20.0)
    node.die()


def _save(node: Node, step: int) -> None:
    for rank, name in enumerate(SIZES):
        node.put(ids(step, rank), name, body(step, name))
        node.checkpoints.seal(ids(step, rank), 2)


def pack(cache_dir: Path, golden: Path) -> None:
    with tarfile.open(golden, "x:xz", format=tarfile.PAX_FORMAT, preset=9) as tar:
        for path in sorted(cache_dir.rglob("*")):
            if not path.is_file() or path.name.endswith("-shm"):
                continue
            entry = tarfile.TarInfo(str(path.relative_to(cache_dir)))
            entry.size = path.stat().st_size
            if IDENTITY_ATTRIBUTE in os.listxattr(path):
                entry.pax_headers = {MARK: os.getxattr(path, IDENTITY_ATTRIBUTE).decode()}
            tar.addfile(entry, io.BytesIO(path.read_bytes()))


def unpack(golden: Path, cache_dir: Path) -> None:
    with tarfile.open(golden) as tar:
        for entry in tar:
            path = cache_dir / entry.name
            path.parent.mkdir(parents=True, exist_ok=True)
            content = tar.extractfile(entry)
            assert content is not None
            path.write_bytes(content.read())
            if MARK in entry.pax_headers:
                os.setxattr(path, IDENTITY_ATTRIBUTE, entry.pax_headers[MARK].encode())


def main() -> None:
    with tempfile.TemporaryDirectory(dir=GOLDEN) as place:
        build(Path(place) / "cache")
        pack(Path(place) / "cache", GOLDEN / f"schema-{schema.VERSION}.tar.xz")


if __name__ == "__main__":
    main()
