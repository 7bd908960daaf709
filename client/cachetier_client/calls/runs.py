"""The calls about runs and whole steps."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import Any, SupportsIndex

from cachetier_client import cadence as rules
from cachetier_client.cadence import Cadence, Figure
from cachetier_client.calls.caller import ServiceCalls, understood
from cachetier_client.calls.unflushed import is_ignored, verdict
from cachetier_client.errors import ForbiddenError
from cachetier_client.identity.names import checked_name, checked_run, checked_step
from cachetier_client.results import (
    Level,
    LevelReached,
    ObjectListed,
    PinInfo,
    StepInfo,
    StillComing,
    UnflushedStep,
)
from cachetier_client.transport.base import Reply

PUT_SECONDS = 60.0
LOOK_SECONDS = 30.0
COLLECT_SECONDS = 300.0
RESTORE_SECONDS = 600.0
DAY_SECONDS = 86_400.0
_NEWER = "the newest step of run %s at level %s is %s; this node can restore %d, which is newer"
_ELSEWHERE = (
    "the newest step of run %s that is whole on this node is %s; step %d, which is newer, is at a "
    "remote alone: latest(level='durable') names it"
)

log = logging.getLogger(__name__)


class RunCalls:
    """The part of ``Client`` that is about runs and steps rather than shards."""

    def __init__(self, caller: ServiceCalls) -> None:
        self._caller = caller

    def runs(self, *, timeout_seconds: float = LOOK_SECONDS) -> list[str]:
        """Return the names of the runs this node knows."""
        with self._caller.calling("runs"), understood():
            return [str(run) for run in self._ask("runs", {}, timeout_seconds)["runs"]]

    def mounts(self, *, timeout_seconds: float = LOOK_SECONDS) -> list[str]:
        """Return the names of the node's mounts of the S3 door that this caller may read."""
        with self._caller.calling("runs"), understood():
            return [str(name) for name in self._ask("runs", {}, timeout_seconds).get("mounts", ())]

    def objects(
        self, mount: str, prefix: str = "", *, timeout_seconds: float = LOOK_SECONDS
    ) -> Iterator[ObjectListed]:
        """Yield the objects of a mount whose keys go on with ``prefix`` behind the mount's own.

        They come page by page, in the order of their keys; ``timeout_seconds`` is for each page.
        Only the service's socket has this.
        """
        fields: dict[str, Any] = {"run": checked_run(mount), "prefix": prefix, "after": ""}
        while fields["after"] is not None:
            with self._caller.calling("objects"), understood():
                page = self._ask("objects", fields, timeout_seconds)
                found = [ObjectListed.from_reply(described) for described in page["objects"]]
            yield from found
            fields["after"] = page["next_after"]

    def steps(
        self,
        run: str | None = None,
        level: Level | None = None,
        *,
        timeout_seconds: float = LOOK_SECONDS,
    ) -> list[StepInfo]:
        """Return a run's steps, ascending: those restorable at ``level``, or all known here."""
        with self._caller.calling("steps", run=run), understood():
            fields = {"run": self._caller.run_of(run), "level": level}
            listed = self._ask("steps", fields, timeout_seconds)["steps"]
            return [StepInfo.from_reply(described) for described in listed]

    def steps_elsewhere(
        self, run: str | None = None, *, timeout_seconds: float = LOOK_SECONDS
    ) -> int | None:
        """Return how many steps of a run S3 has of which this node has nothing.

        None while S3 cannot be asked. ``steps(run, "durable")`` looks at each.
        """
        with self._caller.calling("steps", run=run), understood():
            fields = {"run": self._caller.run_of(run), "level": "local", "count_elsewhere": True}
            count = self._ask("steps", fields, timeout_seconds)["elsewhere"]
            return None if count is None else int(count)

    def branches(
        self,
        run: str | None = None,
        level: Level | None = None,
        *,
        timeout_seconds: float = LOOK_SECONDS,
    ) -> list[StepInfo]:
        """Return what is saved in a run under other paths than its steps', by path.

        The ``run`` of each is that of the branch, by which every other call takes it; levels are as
        for ``steps``. See docs/fsspec.md.
        """
        with self._caller.calling("branches", run=run), understood():
            fields = {"run": self._caller.run_of(run), "level": level}
            listed = self._ask("branches", fields, timeout_seconds)["steps"]
            return [StepInfo.from_reply(described) for described in listed]

    def latest(
        self,
        run: str | None = None,
        level: Level = "durable",
        *,
        strict: bool = False,
        timeout_seconds: float = LOOK_SECONDS,
    ) -> StepInfo | None:
        """Return the newest step that can be restored at ``level``, or None.

        ``durable`` is the bucket's truth, the same on every node; ``local`` is this node's alone.
        If this node can restore a newer one, ``newer_local`` names it, and so does the log at level
        info, which tells of it even where None is returned. At ``local`` a warning in the log names
        a newer one whose bytes are at a remote alone. Several ranks resume from what
        ``cachetier_client.torch.latest_common_step`` finds.

        A newer step that other nodes acknowledged, and that is not durable yet, is named in the log
        at level warning; ``strict`` refuses to go without one that is whole. At ``local`` no bucket
        is asked for such steps.

        Raises:
            UnflushedStepsError: ``strict``, and there is such a step.
            RemoteUnavailableError: ``strict``, nothing was found, and nobody can say whether
                another node holds a step.
        """
        with self._caller.calling("latest", run=run), understood():
            fields = {"run": self._caller.run_of(run), "level": level}
            reply = self._ask("latest", fields, timeout_seconds)
            described, newer_local = reply["step"], reply.get("newer_local")
            found = None if described is None else StepInfo.from_reply(described)
            listed = reply.get("unflushed", []) if level != "local" else []
            newer = None if listed is None else list(map(UnflushedStep.from_reply, listed))
            has_step, ignored = found is not None, is_ignored()
            refused = verdict(fields["run"], newer, found=has_step, ignored=ignored)
            if strict and refused is not None:
                raise refused
            if (there := reply.get("newer_remote")) is not None:
                log.warning(_ELSEWHERE, fields["run"], found.step if found else None, int(there))
            if newer_local is None:
                return found
            here = int(newer_local)
            log.info(_NEWER, fields["run"], level, found.step if found else None, here)
            return None if found is None else replace(found, newer_local=here)

    def unflushed(
        self, run: str | None = None, *, timeout_seconds: float = LOOK_SECONDS
    ) -> list[UnflushedStep]:
        """Return the steps of a run that other nodes hold, newer than what is durable.

        Each node says so in a note in the bucket; this node's own steps are in ``steps``.

        Raises:
            RemoteError: The bucket cannot be asked.
        """
        with self._caller.calling("unflushed", run=run), understood():
            fields = {"run": self._caller.run_of(run)}
            listed = self._ask("unflushed", fields, timeout_seconds)["unflushed"]
            return [UnflushedStep.from_reply(described) for described in listed]

    def forget(
        self, node: str, run: str | None = None, *, timeout_seconds: float = LOOK_SECONDS
    ) -> list[UnflushedStep]:
        """Remove what a node that will not return said of its steps; return those given up.

        Args:
            node: Its host name, or the id of its cache directory.
            run: Only of this run.

        Raises:
            NotFoundError: It holds nothing, as far as anybody knows.
        """
        with self._caller.calling("forget", run=run), understood():
            fields = {"node": node, "run": None if run is None else checked_run(run)}
            forgotten = self._ask("forget", fields, timeout_seconds)["forgotten"]
            return [UnflushedStep.from_reply(described) for described in forgotten]

    def step(
        self, run: str | None, step: SupportsIndex, *, timeout_seconds: float = LOOK_SECONDS
    ) -> StepInfo:
        """Return one step with its shards.

        Raises:
            NotFoundError: There is none.
        """
        with self._caller.calling("step", run=run, step=step), understood():
            fields = {"run": self._caller.run_of(run), "step": checked_step(step)}
            return StepInfo.from_reply(self._ask("step", fields, timeout_seconds)["step"])

    def wait(
        self,
        run: str | None,
        step: SupportsIndex,
        level: Level = "durable",
        timeout_seconds: float = PUT_SECONDS,
        *,
        name: str | None = None,
    ) -> LevelReached:
        """Wait until a step, or one shard of it, has reached ``level``.

        Raises:
            NotDurableError: Not in time; wait again.
            IntegrityError, AbortedError, SaveSupersededError: It never will.
            LocalOnlyError: A policy keeps it on the node; ``flush`` sends it after all.
        """
        with self._caller.calling("wait", run=run, step=step, name=name):
            shard = None if name is None else checked_name(name)
            where = (self._caller.run_of(run), checked_step(step), shard)
            return self._caller.wait(*where, level, timeout_seconds)

    def flush(
        self,
        run: str | None = None,
        step: SupportsIndex | None = None,
        timeout_seconds: float = PUT_SECONDS,
    ) -> None:
        """Hurry the drain, and wait until nothing is dirty: of a step, of a run, or of all (None).

        A step that is named is sent even where a policy of the service keeps it on the node. Of a
        step on several nodes every node must be asked, for instance by one rank on each.

        Raises:
            NotDurableError: Something still is; the message names the steps.
            NotFoundError: Neither the node nor the bucket knows the run or step that was named.
        """
        with self._caller.calling("flush", run=run, step=step):
            which_run = None if run is None else checked_run(run)
            which_step = None if step is None else checked_step(step)
            self._caller.flush(which_run, which_step, timeout_seconds)

    def leave(self, timeout_seconds: float = PUT_SECONDS) -> None:
        """Have the node take no more puts, and wait until all that it has is durable.

        It is left, and drains on, when the time is over too: until ``stay``, or its next start.

        Raises:
            NotDurableError: Something is not, or a put is still under way; the message names it.
            ForbiddenError: Only an admin may.
        """
        with self._caller.calling("leave"):
            self._caller.leave(timeout_seconds, stay=False)

    def stay(self, *, timeout_seconds: float = LOOK_SECONDS) -> None:
        """Have a node that is being left take puts again.

        Raises:
            ForbiddenError: Only an admin may.
        """
        with self._caller.calling("leave"):
            self._caller.leave(timeout_seconds, stay=True)

    def restore_step(
        self,
        run: str | None,
        step: SupportsIndex,
        *,
        ranks: Collection[int] = (),
        timeout_seconds: float = RESTORE_SECONDS,
    ) -> StillComing:
        """Bring a step back to this node, so that later reads use this disk.

        What is here stays; the rest comes from the nearest remote that has it, verified. It goes on
        after this call, and a second call waits for the same.

        Args:
            run: None: the client's.
            step: Training step.
            ranks: Only what these put; none: all.
            timeout_seconds: How long to wait for it.

        Returns:
            What is still to come: nothing (0 shards) once all is here.

        Raises:
            NotFoundError: No remote has published it.
            InvalidRequestError: The cache is too small for it, or none of ``ranks`` put anything.
            BackpressureError: There was no room for a shard.
            IntegrityError: A shard has no good copy.
        """
        with self._caller.calling("restore_step", run=run, step=step):
            what = self._caller.run_of(run), checked_step(step), sorted(ranks)
            return self._caller.restore_step(*what, timeout_seconds)

    def delete_step(
        self, run: str | None, step: SupportsIndex, *, timeout_seconds: float = LOOK_SECONDS
    ) -> int:
        """Delete a step, here at once and remotely in the background; return how many shards."""
        with self._caller.calling("delete_step", run=run, step=step), understood():
            fields = {"run": self._caller.run_of(run), "step": checked_step(step)}
            return int(self._ask("delete_step", fields, timeout_seconds)["deleted_shards"])

    def pin(
        self, run: str | None, step: SupportsIndex, *, timeout_seconds: float = LOOK_SECONDS
    ) -> PinInfo:
        """Keep what is on the node of a step there, and let nobody delete it, until ``unpin``.

        Raises:
            NotFoundError: The node knows no such step.
        """
        with self._caller.calling("pin", run=run, step=step), understood():
            fields = {"run": self._caller.run_of(run), "step": checked_step(step)}
            return PinInfo.from_reply(self._ask("pin", fields, timeout_seconds)["pin"])

    def unpin(
        self, run: str | None, step: SupportsIndex, *, timeout_seconds: float = LOOK_SECONDS
    ) -> bool:
        """Let a step go again; return whether it was pinned."""
        with self._caller.calling("unpin", run=run, step=step), understood():
            fields = {"run": self._caller.run_of(run), "step": checked_step(step)}
            return bool(self._ask("unpin", fields, timeout_seconds)["was_pinned"])

    def pins(self, *, timeout_seconds: float = LOOK_SECONDS) -> list[PinInfo]:
        """Return the pinned steps of the node, by run and step."""
        with self._caller.calling("pins"), understood():
            return [PinInfo.from_reply(p) for p in self._ask("pins", {}, timeout_seconds)["pins"]]

    def collect(
        self,
        *,
        dry_run: bool = True,
        older_than_seconds: float = DAY_SECONDS,
        timeout_seconds: float = COLLECT_SECONDS,
    ) -> dict[str, Any]:
        """Say what nobody needs any more, or with ``dry_run=False`` remove it.

        Returns:
            What ``cachetier prune --json`` prints; see docs/recovery.md.
        """
        with self._caller.calling("collect"), understood():
            fields = {"dry_run": dry_run, "older_than_seconds": older_than_seconds}
            return dict(self._ask("collect", fields, timeout_seconds)["collected"])

    def cadence(  # noqa: PLR0913 - figures, each by its name
        self,
        run: str | None = None,
        *,
        blocked_seconds: float | None = None,
        durable_seconds: float | None = None,
        step_seconds: float | None = None,
        mtbf_seconds: float | None = None,
        nodes: int | None = None,
        failures_per_node_day: float = rules.FAILURES_PER_NODE_DAY,
        overhead_cap: float = rules.OVERHEAD_CAP,
        timeout_seconds: float = LOOK_SECONDS,
    ) -> Cadence:
        """Return how often a run should save, by what this node has seen of its saves.

        Args:
            run: Default: the client's.
            blocked_seconds: What a save costs training. Default: as this client has measured it in
                saves that the main thread made, else as long as a save takes.
            durable_seconds: From the start of a save until its step is durable.
            step_seconds: A training step.
            mtbf_seconds: Between two failures of the job. Default: by ``nodes`` (those of the last
                save) and ``failures_per_node_day``.
            nodes, failures_per_node_day: See ``mtbf_seconds``.
            overhead_cap: The largest share of its time that training may be blocked.
            timeout_seconds: For each question to the service.

        Raises:
            InvalidRequestError: A figure was neither passed nor measured; says which to pass.

        Source: docs/planning.md.
        """
        with self._caller.calling("cadence", run=run):
            which_run = self._caller.run_of(run)
            steps = self.steps(which_run, timeout_seconds=timeout_seconds)
            seen = [seconds for saved, seconds in self._caller.blocked if saved == which_run]
            blocked = _given(blocked_seconds) or rules.measured_blocked(seen, steps)
            durable = _given(durable_seconds) or rules.measured_durable(steps)
            if durable is None:
                durable = rules.measured_durable(steps, self._drain_rate(timeout_seconds))
            mtbf = _given(mtbf_seconds) or rules.expected_mtbf(steps, nodes, failures_per_node_day)
            step = _given(step_seconds) or rules.measured_step(steps, blocked)
            return rules.cadence_of(blocked, durable, mtbf, step, overhead_cap=overhead_cap)

    def _drain_rate(self, timeout_seconds: float) -> float | None:
        try:
            rate = self.status(timeout_seconds=timeout_seconds)["drain"]["rate_bytes_per_second"]
        except ForbiddenError:  # a principal of some runs is not told of the node
            return None
        return None if rate is None else float(rate)

    def status(self, *, timeout_seconds: float = LOOK_SECONDS) -> dict[str, Any]:
        """Return what ``cachetier status`` shows; this call raises no background failure."""
        with self._caller.calling("status", tells=False), understood():
            return dict(self._ask("status", {}, timeout_seconds)["status"])

    def _ask(self, op: str, fields: dict[str, Any], timeout_seconds: float) -> Reply:
        return self._caller.transport.call(op, fields, self._caller.deadline(timeout_seconds))


def _given(seconds: float | None) -> Figure | None:
    return None if seconds is None else Figure(seconds)
