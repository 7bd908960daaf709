"""What was promised, held against what is there. Knows nothing of how cachetier works inside.

Called once faults have stopped and the tier has settled. A call that ended *ok* was done, one that
*failed* was not, of one *unknown* either may be true, but whole.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from cachetier_client.bucket_format.documents import Manifest, ManifestState
from cachetier_client.errors import CachetierClientError

from cachetier.errors import RemoteError
from tests.soak.bucket import MANIFEST, BareBucket, is_pack
from tests.soak.history import Event, Part, SaveHistory, StepHistory, Steps
from tests.soak.nodes import Node
from tests.soak.payloads import checksum

READERS = 2
# Events of the log that come with a traceback though nothing is wrong with cachetier.
ANNOUNCED: frozenset[str] = frozenset()


class Judge:
    """Gathers what is wrong; ``failures`` is empty where every promise was kept."""

    def __init__(self, bucket: BareBucket, nodes: Mapping[str, Node]) -> None:
        self.failures: list[str] = []
        self.read_bytes = 0
        self._bucket = bucket
        self._nodes = nodes

    def require(self, condition: object, message: str) -> None:
        if not condition:
            self.failures.append(message)

    # --- steps, from the bucket alone ------------------------------------------------------------

    def steps(self, steps: Steps) -> None:
        """Judge every step by what is in the bucket."""
        with ThreadPoolExecutor(READERS) as pool:
            for _ in pool.map(
                lambda item: self._step(item[0][0], item[0][1], item[1]), list(steps.items())
            ):
                pass

    def _step(self, run: str, number: int, step: StepHistory) -> None:
        where = f"{run}/{number}"
        manifest = self._bucket.manifest(run, number)
        state = None if manifest is None else manifest.state
        if state is ManifestState.DELETED or (state is None and step.maybe_deleted):
            self.require(step.maybe_deleted or step.excused, f"{where}: nobody deleted it")
            return
        self.require(not step.deleted, f"{where}: deleted, and yet {state or 'absent'}")
        if manifest is not None and state is ManifestState.PUBLISHED:
            self._published(where, manifest, step)
            return
        if not step.excused:
            owed = step.whole_saves
            self.require(not owed, f"{where}: save {owed} is whole, and yet {state or 'absent'}")

    def _published(self, where: str, manifest: Manifest, step: StepHistory) -> None:
        """What is published is one save's, whole, and its bytes are those that were put last."""
        save = step.saves.get(manifest.save_id)
        if save is None:
            self.require(False, f"{where}: published as {manifest.save_id}, which nobody saved")
            return
        for rank in range(save.world):
            part = save.parts.get(rank, Part())
            self.require(part.maybe_sealed, f"{where}: published, but rank {rank} never sealed")
            listed = {shard.name for shard in manifest.shards if shard.rank == rank}
            acked = {name for name, puts in part.puts.items() if any(put.ok for put in puts)}
            missing, extra = acked - listed, listed - part.puts.keys()
            self.require(not missing, f"{where}: acknowledged {sorted(missing)} is not published")
            self.require(not extra, f"{where}: published {sorted(extra)}, which nobody put")
        for shard in manifest.shards:
            puts = save.parts.get(shard.rank, Part()).puts.get(shard.name, [])
            try:
                body = self._bucket.shard(manifest, shard)
            except RemoteError as error:
                self.require(step.vanished, f"{where} {shard.name}: not in the bucket: {error}")
                continue
            self.read_bytes += len(body)
            self._bytes(f"{where} {shard.name} in the bucket", body, _valid(puts))

    def _bytes(self, where: str, body: bytes | memoryview, puts: Iterable[Event]) -> None:
        sums = {put.sum for put in puts}
        found = checksum(body)
        self.require(found in sums, f"{where}: {len(body)} bytes {found} are none of {sums}")

    # --- steps, by the nodes ---------------------------------------------------------------------

    def acknowledged(self, steps: Steps) -> None:
        """Read back what no manifest lists: each acknowledged shard of the one save of a step."""
        for (run, number), step in steps.items():
            if step.maybe_deleted or len(step.saves) != 1 or step.excused:
                continue
            if self._bucket.published(run, number) is None:
                (save,) = step.saves.values()
                self._acknowledged(run, number, save)

    def _acknowledged(self, run: str, number: int, save: SaveHistory) -> None:
        for part in save.parts.values():
            aborted = any(abort.possible for abort in part.aborts)
            for name, puts in part.puts.items():
                last = [put for put in puts if put.ok]
                if last and not aborted:
                    self.read(self._nodes[last[-1].node], run, number, name, _valid(puts))

    def elsewhere(self, reader: Node, steps: Steps, most: int) -> None:
        """Read shards of published steps from a node that never had them."""
        left = most
        for (run, number), step in steps.items():
            manifest = None if step.maybe_deleted else self._bucket.published(run, number)
            save = step.saves.get(manifest.save_id) if manifest is not None else None
            if manifest is None or save is None or step.vanished:
                continue
            for shard in manifest.shards[:2]:
                puts = save.parts.get(shard.rank, Part()).puts.get(shard.name, [])
                self.read(reader, run, number, shard.name, _valid(puts))
                left -= 1
            if left <= 0:
                return

    def read(self, node: Node, run: str, number: int, name: str, puts: list[Event]) -> None:
        where = f"{run}/{number} {name} by node {node.name}"
        try:
            with node.client() as client:
                body = client.get_shard(run, number, name, timeout_seconds=60)
        except CachetierClientError as error:
            self.require(False, f"{where}: acknowledged, and yet {error.code}: {error}")
            return
        self.read_bytes += len(body)
        self._bytes(where, body, puts)

    def reads(self, steps: Steps, reads: Iterable[Event]) -> None:
        """Judge what was read while everything went on: bytes of some put, never others."""
        for read in reads:
            step = steps[read.run, read.step]
            begun = [put for put in step.attempts(read.name) if put.began < (read.ended or 0)]
            where = f"{read.run}/{read.step} {read.name} by node {read.node}"
            if read.ok:
                sums = {put.sum for put in begun}
                self.require(read.sum in sums, f"{where}: read {read.sum}, none of {sums}")
            damaged = read.code == "integrity" and not step.excused
            self.require(not damaged, f"{where}: no copy has the bytes")

    # --- what must not be there ------------------------------------------------------------------

    def strays(self, steps: Steps, runs: Iterable[str]) -> None:
        """Find objects in the bucket that no save of these runs can have put."""
        allowed = {
            key
            for (run, number), step in steps.items()
            for key in self._bucket.may_hold(run, number, step)
        }
        for run in runs:
            strays = [k for k in self._bucket.keys(run) if k not in allowed and not is_pack(k)]
            self.require(not strays, f"objects that nobody put: {strays[:5]} ({len(strays)})")

    def nothing_left(
        self, run: str, kept: Iterable[int] = (), forgotten: Iterable[str] = ()
    ) -> None:
        """Of a run whose steps were deleted only the tombstones are left.

        What a node's disk forgot stays, under the prefixes ``forgotten``: no node knows its save.
        """
        prefixes = [f"{self._bucket.layout.run_prefix(run)}{step}/" for step in kept]
        excused = (*prefixes, *forgotten)
        left = [key for key in self._bucket.keys(run) if not key.startswith(excused)]
        left = [key for key in left if not key.endswith(MANIFEST)]
        self.require(not left, f"left of deleted steps: {left[:5]} ({len(left)})")
        for step in _numbers(self._bucket, run):
            if step not in kept:
                there = self._bucket.published(run, step) is not None
                self.require(not there, f"{run}/{step}: deleted, and yet published")

    def uploads(self, forgotten: Iterable[str] = ()) -> None:
        """Find unfinished uploads, but for those under prefixes that a node's disk forgot.

        Nobody knows them any more: a rule of the bucket ends them, after days.
        """
        excused = tuple(forgotten)
        found = [each for each in self._bucket.uploads() if not each[0].startswith(excused)]
        self.require(not found, f"unfinished uploads: {[k for k, _ in found[:5]]} ({len(found)})")

    def logs(self, offsets: dict[Path, int]) -> None:
        """Look for tracebacks in what the services logged since ``offsets``, which move on."""
        for node in self._nodes.values():
            with node.log.open("rb") as file:
                file.seek(offsets.get(node.log, 0))
                lines = file.read().splitlines()
                offsets[node.log] = file.tell()
            for line in lines:
                told = _traceback(line)
                self.require(not told, f"node {node.name} logged a traceback: {told[-600:]}")


def _valid(puts: list[Event]) -> list[Event]:
    """Return the puts of a name whose bytes may be there: the last acknowledged, and later ones."""
    possible = [put for put in puts if put.possible]
    acked = [index for index, put in enumerate(possible) if put.ok]
    return possible[acked[-1] :] if acked else possible


def _numbers(bucket: BareBucket, run: str) -> list[int]:
    prefix = bucket.layout.run_prefix(run)
    keys = [key for key in bucket.keys(run) if key.endswith(MANIFEST)]
    return [int(key.removeprefix(prefix).split("/")[0]) for key in keys]


def _traceback(line: bytes) -> str:
    """Return the traceback that a line of the log has, if it is not one of the announced."""
    try:
        entry = json.loads(line)
    except ValueError:
        return line.decode(errors="replace") if b"Traceback" in line else ""
    if entry.get("event") in ANNOUNCED:
        return ""
    return f"{entry.get('event')}: {entry['exception']}" if "exception" in entry else ""
