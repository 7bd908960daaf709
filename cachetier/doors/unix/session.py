"""One connection: reads a request, does it, answers; and leaves nothing behind when it ends.

What the connection staged lives in ``_staged`` and dies with it, so a rank that is killed in the
middle of a put leaves neither file nor reserved room.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import socket
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, TypeVar

from cachetier_client.identity import names
from cachetier_client.identity.names import SaveIds
from cachetier_client.io import digests
from cachetier_client.io.digests import BLOCK_BYTES
from cachetier_client.trace_context import FIELD as TRACEPARENT
from cachetier_client.trace_context import called_by
from cachetier_client.transport.base import PutRequest
from cachetier_client.transport.wire import (
    PROTOCOL,
    ConnectionClosedError,
    Frame,
    FrameError,
    Header,
    send_frame,
)

from cachetier import __version__
from cachetier.access.principals import Caller
from cachetier.callers import working_for
from cachetier.doors.operations import Operations, answerable
from cachetier.doors.unix import requests
from cachetier.doors.unix.frames import Frames
from cachetier.doors.unix.small_puts import Resting, SmallPuts
from cachetier.errors import CachetierError, InvalidRequestError, ProtocolMismatchError
from cachetier.ingest.admission import MustWaitError
from cachetier.ingest.ingest import Finish, RemoteStage
from cachetier.ingest.shares import ShareAwaitedError
from cachetier.local.store import Staged
from cachetier.model.shard import INLINE_BYTES
from cachetier.restore.restore import Opened
from cachetier.steps.waits import Question
from cachetier.telemetry import events
from cachetier.telemetry.events import tell

log = logging.getLogger(__name__)

STAGED_LIMIT = 64
_WITH_BODY = ("put", "commit")  # beside blocks; that of any other would take room while it waits
_OF_STAGED = ("extend", "commit", "abort")  # which name a put, and so no run
MESSAGE_LIMIT = 2_000  # messages quote what was asked
DAY_SECONDS = 86_400.0

Step = tuple[str, int]
_Request = TypeVar("_Request")
_Answer = TypeVar("_Answer")
_Operation = Callable[["Session", Frame], "Reply"]


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer; ``descriptor`` is closed once it is sent."""

    header: Header
    body: bytes = b""
    descriptor: int | None = None


@dataclass(slots=True)
class _StagedPut:
    """A put between begin and commit. ``failure`` is what went wrong in a block, told at commit."""

    shard: PutRequest
    stage: Staged | RemoteStage
    failure: CachetierError | None = None


class Session:
    """Serves one connection until the peer closes it."""

    def __init__(
        self,
        sock: socket.socket,
        operations: Operations,
        frames: Frames,
        caller: Caller,
        small_puts: SmallPuts,
    ) -> None:
        self._sock = sock
        self._small_puts = small_puts
        self._caller = caller
        self._frames = frames
        self._node = operations
        self._client_id = ""
        self._greeted = False
        self._staged: dict[int, _StagedPut] = {}
        self._next_staging = 1

    def serve(self) -> None:
        """Answer requests until the connection closes; then drop what was staged."""
        try:
            with working_for(self._sock, self._caller):
                resting = Resting(self._sock, self._frames, self._begin_small)
                while True:
                    self._frames.rests(putting=bool(self._staged))
                    if self._greeted and not self._staged:  # else what comes is more of those puts
                        self._small_puts.rest(resting)
                    self._serve_one(self._frames.next(greeted=self._greeted))
        except ConnectionClosedError:
            pass
        except FrameError as error:
            with contextlib.suppress(OSError):
                self._answer_error(
                    ProtocolMismatchError(f"{error}; this service speaks {PROTOCOL}")
                )
        except OSError:
            pass  # the peer is gone
        finally:
            self._sock.close()
            self._frames.let_go()
            self._node.phases.leave(self._rank, via=self)
            self._drop_staged()

    def _drop_staged(self) -> None:
        while self._staged:
            _, put = self._staged.popitem()
            try:
                self._node.ingest.abort(put.stage)
            except Exception as error:  # the others must not stay behind with this one
                tell(log, events.STAGED_LEFT, error=error)

    def _serve_one(self, frame: Frame, begun: _Operation | None = None) -> None:
        """Do and answer what ``frame`` asks for, by ``begun`` if it is begun already."""
        if frame.descriptor is not None:
            os.close(frame.descriptor)  # no request carries one
        if frame.header.get("op") == "block":
            self._block(frame)
            return
        try:
            with called_by(frame.header.get(TRACEPARENT)):
                reply = self._dispatch(frame, begun)
        except CachetierError as error:
            self._answer_error(error)
        except ConnectionClosedError:  # while it waited
            raise
        except Exception as error:  # the socket is not touched in there: an OSError is the disk's
            operation = str(frame.header.get("op"))[:60]
            self._answer_error(answerable(error, "unix", operation))
        else:
            self._answer(reply)

    def _answer(self, reply: Reply) -> None:
        header: Header = {"ok": True, **reply.header}
        try:
            waiting = self._node.incidents.pending(self._client_id)
            if waiting and "incidents" not in header:
                header["incidents"] = waiting
            send_frame(self._sock, header, reply.body, reply.descriptor)
        finally:
            if reply.descriptor is not None:
                os.close(reply.descriptor)

    def _answer_error(self, error: CachetierError) -> None:
        described: Header = {
            "code": error.code,
            "message": error.message[:MESSAGE_LIMIT],
            "hint": error.hint,
            **error.context,
        }
        if error.retry_after_seconds is not None:
            described["retry_after_seconds"] = error.retry_after_seconds
        self._node.failed("unix", error.code)
        send_frame(self._sock, {"ok": False, "error": described})

    def _dispatch(self, frame: Frame, operation: _Operation | None = None) -> Reply:
        name = frame.header.get("op")
        if operation is None and isinstance(name, str):
            operation = _OPERATIONS.get(name)
        if operation is None:
            raise InvalidRequestError(f"unknown operation {name!r}")
        if not self._greeted and name != "hello":
            raise ProtocolMismatchError("the first request of a connection must be hello")
        if name == "hello":
            return operation(self, frame)
        run, what = self._subject(str(name), frame.header)
        with self._node.access.doing(self._caller, str(name), run, **what):
            if frame.body and name not in _WITH_BODY:
                raise InvalidRequestError(f"{name} takes no body")
            return operation(self, frame)

    def _subject(self, operation: str, header: Header) -> tuple[str | None, dict[str, object]]:
        """Return the run that a request acts on, and what else of it the audit log has."""
        staging = header.get("staging") if operation in _OF_STAGED else None
        put = self._staged.get(staging) if isinstance(staging, int) else None
        if put is not None:
            return put.shard.ids.run, {"step": put.shard.ids.step, "name": put.shard.name}
        run = header.get("run")
        what = {field: header.get(field) for field in ("step", "name", "node")}
        return None if run is None else names.checked_run(run), what

    # --- hello -----------------------------------------------------------------------------------

    def _hello(self, header: Header) -> Reply:
        if self._greeted:
            raise InvalidRequestError("the connection has said hello already")
        spoken = header.get("protocol")
        if spoken != PROTOCOL:
            raise ProtocolMismatchError(
                f"the client speaks protocol {spoken!r}, this service speaks {PROTOCOL}"
            )
        self._greeted = True
        client_id = header.get("client_id")
        if isinstance(client_id, str) and 0 < len(client_id) <= 64:
            self._client_id = self._caller.own(client_id)
            self._node.incidents.listen(self._client_id, requests.instant_of(header.get("since")))
        return Reply(
            {
                "protocol": PROTOCOL,
                "service": __version__,
                "store_id": self._node.store_id,
                "inline_bytes": INLINE_BYTES,
                "block_bytes": BLOCK_BYTES,
                **self._node.greeting,
            }
        )

    # --- puts ------------------------------------------------------------------------------------

    def _put(self, request: requests.Put) -> Reply:
        finish = self._in_share(request.timeout_seconds, partial(self._begin_put, request))
        return Reply(finish().as_reply())

    def _begin_put(self, request: requests.Put, timeout_seconds: float | None) -> Finish:
        self._node.refuse_when_leaving()
        shard = request.shard
        self._node.incidents.used(self._client_id, shard.ids.run)
        what = shard.ids, shard.name, request.body, request.digest, timeout_seconds
        return self._node.ingest.begin_inline(*what, facts=shard.facts)

    def _begin_small(self, frame: Frame) -> Callable[[], None]:
        """Begin a small put; what is returned ends and answers it.

        Raises:
            MustWaitError: It has to wait for something first.
        """
        try:
            with called_by(frame.header.get(TRACEPARENT)):
                run, _ = self._subject("put", frame.header)
                self._node.access.check(self._caller, "put", run)
                finish = self._begin_put(requests.Put.parse(frame), None)
        except MustWaitError:
            raise
        except Exception as error:
            return partial(self._serve_one, frame, _raising(error))
        return partial(self._serve_one, frame, lambda _s, _f: Reply(finish().as_reply()))

    def _begin(self, header: Header) -> Reply:
        shard, timeout_seconds = requests.put_of(header), requests.timeout_of(header)
        self._node.refuse_when_leaving()
        self._node.incidents.used(self._client_id, shard.ids.run)
        if len(self._staged) >= STAGED_LIMIT:
            raise InvalidRequestError(f"{STAGED_LIMIT} puts are staged on this connection already")
        what = shard.ids, shard.name, shard.size_bytes
        begin = partial(self._node.ingest.begin, *what, memory=shard.memory)
        stage = self._in_share(timeout_seconds, begin)
        staging, self._next_staging = self._next_staging, self._next_staging + 1
        self._staged[staging] = _StagedPut(shard, stage)
        if not isinstance(stage, Staged):
            return Reply({"staging": staging, "plane": "stream", "reserved_bytes": 0})
        # Sending closes the service's only writable descriptor: from here on only the rank can
        # write.
        descriptor, stage.writer = stage.writer, None
        reserved = stage.reserved_bytes
        return Reply(
            {"staging": staging, "plane": "descriptor", "reserved_bytes": reserved},
            descriptor=descriptor,
        )

    def _extend(self, header: Header) -> Reply:
        stage = self._staged_put(header.get("staging")).stage
        if not isinstance(stage, Staged):
            raise InvalidRequestError("a shard that streams to the remote reserves no room")
        total_bytes = requests.count_of(header, "reserved_bytes")
        extend = partial(self._node.ingest.extend, stage, total_bytes)
        return Reply({"reserved_bytes": self._in_share(requests.timeout_of(header), extend)})

    def _in_share(self, timeout_seconds: float, put: Callable[[float], _Answer]) -> _Answer:
        """Do ``put``, with the seconds left, once its share has room for it."""
        ends_at = time.monotonic() + timeout_seconds
        while True:
            try:
                return put(max(0.0, ends_at - time.monotonic()))
            except ShareAwaitedError as awaited:
                self._answer_to(awaited.room, max(0.0, ends_at - time.monotonic()))

    def _block(self, frame: Frame) -> None:
        """Take a block of a streamed put; it has no reply, so failures wait for the commit."""
        staging = frame.header.get("staging")
        put = self._staged.get(staging) if isinstance(staging, int) else None
        if put is None or put.failure is not None:
            return
        try:
            if isinstance(put.stage, Staged):
                raise InvalidRequestError("this put has a descriptor: write the file instead")
            put.stage.write(frame.body)
        except CachetierError as error:
            put.failure = error

    def _commit(self, frame: Frame) -> Reply:
        """End a put; what is declared is read once the put is known, which ends with it anyhow."""
        put = self._staged_put(frame.header.get("staging"), end=True)
        try:
            if put.failure is not None:
                raise put.failure
            content = requests.content_of(frame)
        except CachetierError:
            self._node.ingest.abort(put.stage)
            raise
        what = put.shard.ids, put.shard.name, content, put.shard.facts
        receipt = self._node.ingest.commit(put.stage, *what)
        return Reply(receipt.as_reply())

    def _abort(self, header: Header) -> Reply:
        self._node.ingest.abort(self._staged_put(header.get("staging"), end=True).stage)
        return Reply({})

    def _staged_put(self, staging: object, *, end: bool = False) -> _StagedPut:
        """Return what is staged as ``staging``; with ``end`` it is staged no longer."""
        put = None
        if isinstance(staging, int):
            put = self._staged.pop(staging, None) if end else self._staged.get(staging)
        if put is None:
            raise InvalidRequestError(
                f"nothing is staged as {staging!r}; it may be committed or aborted already",
                hint="Begin the put again.",
            )
        return put

    # --- reads -----------------------------------------------------------------------------------

    def _open(self, header: Header) -> Reply:
        """Open a shard; unless it is to be restored, ``blocks`` says how many of it are wanted.

        With ``follow`` it may be given out while it arrives.
        """
        shard, timeout_seconds = requests.shard_of(header), requests.timeout_of(header)
        blocks, restore = requests.optional_count_of(header, "blocks"), self._node.restore
        whole = restore.follow if header.get("follow") is True else restore.open
        if header.get("restore") is not False:
            return _opened_reply(whole(*shard, timeout_seconds))
        return _opened_reply(restore.open_part(*shard, blocks or 0, timeout_seconds, whole))

    def _arrived(self, header: Header) -> Reply:
        """Say which blocks are there, a byte for each eight, the first in the lowest bit."""
        shard, timeout_seconds = requests.shard_of(header), requests.timeout_of(header)
        version, known = (requests.count_of(header, field) for field in ("version", "known"))
        there = self._node.restore.arrived(*shard, version, known, timeout_seconds)
        bits = sum(1 << block for block in there)
        return Reply({}, bits.to_bytes(bits.bit_length() // 8 + 1, "little"))

    def _read_block(self, header: Header) -> Reply:
        """Give one block of a shard that is only remote; of any other what ``open`` gives.

        ``blocks`` says how many of it are wanted in all.
        """
        shard, timeout_seconds = requests.shard_of(header), requests.timeout_of(header)
        block = requests.count_of(header, "block")
        blocks = requests.optional_count_of(header, "blocks")
        wanted = 1 if blocks is None else blocks
        opened = self._node.restore.open_part(*shard, wanted, timeout_seconds)
        if opened.remote is None:
            return _opened_reply(opened)
        if block >= len(opened.shard.content.block_digests):
            name = opened.shard.name
            raise InvalidRequestError(f"shard {name} has no block {block}", name=name)
        return Reply(_opened_header(opened), bytes(opened.remote.read(block)))

    def _verify(self, header: Header) -> Reply:
        return Reply({"sound": self._node.restore.verify(*requests.shard_of(header))})

    # --- whole steps -----------------------------------------------------------------------------

    def _seal(self, header: Header) -> Reply:
        ids, follows = requests.ids_of(header), requests.flag_of(header, "follows")
        ranks_on_node = requests.optional_count_of(header, "ranks_on_node")
        self._node.refuse_when_stopping()
        self._node.incidents.used(self._client_id, ids.run)
        sealed = self._node.checkpoints.seal(ids, ranks_on_node, follows=follows)
        return Reply({"sealed_ranks": sealed})

    def _abort_rank(self, ids: SaveIds) -> Reply:
        self._node.incidents.used(self._client_id, ids.run)
        self._node.checkpoints.abort_rank(ids)
        return Reply({})

    def _wait(self, header: Header) -> Reply:
        step, level = requests.step_of(header), requests.level_of(header)
        name = None if header.get("name") is None else requests.name_of(header)
        timeout_seconds = requests.timeout_of(header)
        reached = self._node.checkpoints.level_reached(*step, name, level)
        return Reply(
            {"level": str(level), "age_seconds": self._answer_to(reached, timeout_seconds)}
        )

    def _flush(self, header: Header) -> Reply:
        run, step = header.get("run"), header.get("step")
        drained = self._node.checkpoints.drained(
            None if run is None else names.checked_run(run),
            None if step is None else names.checked_step(step),
        )
        return Reply(self._answer_to(drained, requests.timeout_of(header)).as_json())

    def _leave(self, header: Header) -> Reply:
        left = self._node.leave(requests.flag_of(header, "stay"))
        return Reply(self._answer_to(left, requests.timeout_of(header)).as_json())

    def _answer_to(self, question: Question[_Answer], timeout_seconds: float) -> _Answer:
        """Wait for an answer, and for no longer than the peer does."""
        answer = self._node.waits.ask(question, timeout_seconds)
        if not _answered_before_it_hung_up(self._sock, answer):
            raise ConnectionClosedError("the client closed the connection while it waited")
        return answer.result()

    def _restore_step(self, header: Header) -> Reply:
        self._node.refuse_when_stopping()
        wanted = (*requests.step_of(header), requests.ranks_of(header))
        restored = self._node.whole_steps.restored(*wanted)
        return Reply(asdict(self._answer_to(restored, requests.timeout_of(header))))

    def _delete_step(self, step: Step) -> Reply:
        self._node.refuse_when_stopping()
        return Reply({"deleted_shards": self._node.checkpoints.delete_step(*step)})

    # --- to look at the node ---------------------------------------------------------------------

    def _runs(self, _header: Header) -> Reply:
        sees = self._caller.principal.sees
        runs = [run for run in self._node.checkpoints.runs() if sees(run)]
        return Reply({"runs": runs, "mounts": self._node.s3.seen_by(self._caller)})

    def _steps(self, header: Header) -> Reply:
        level = None if header.get("level") is None else requests.level_of(header)
        run = names.checked_run(header.get("run"))
        count = requests.flag_of(header, "count_elsewhere")
        return Reply(self._node.checkpoints.listed(run, level, count_elsewhere=count))

    def _branches(self, header: Header) -> Reply:
        level = None if header.get("level") is None else requests.level_of(header)
        views = self._node.checkpoints.branches(names.checked_run(header.get("run")), level)
        return Reply({"steps": [view.as_json() for view in views]})

    def _latest(self, header: Header) -> Reply:
        run, level = names.checked_run(header.get("run")), requests.level_of(header)
        return Reply(self._node.checkpoints.newest(run, level).as_json())

    def _step(self, step: Step) -> Reply:
        view, shards = self._node.checkpoints.step(*step)
        return Reply({"step": {**view.as_json(), "shards": [shard.as_json() for shard in shards]}})

    def _incidents(self, header: Header) -> Reply:
        clear = header.get("clear", True) is True
        found = self._node.incidents.take(self._client_id, clear=clear)
        return Reply({"incidents": [asdict(incident) for incident in found]})

    def _whoami(self, _header: Header) -> Reply:
        return Reply({"caller": self._node.access.described(self._caller)})

    # --- to keep house ---------------------------------------------------------------------------

    def _pin(self, step: Step) -> Reply:
        self._node.refuse_when_stopping()
        return Reply({"pin": asdict(self._node.checkpoints.pin(*step))})

    def _unpin(self, step: Step) -> Reply:
        self._node.refuse_when_stopping()
        return Reply({"was_pinned": self._node.checkpoints.unpin(*step)})

    def _pins(self, _header: Header) -> Reply:
        sees, found = self._caller.principal.sees, self._node.checkpoints.pins()
        return Reply({"pins": [asdict(pin) for pin in found if sees(pin.run)]})

    def _collect(self, header: Header) -> Reply:
        self._node.refuse_when_stopping()
        older_than_seconds = requests.seconds_of(header, "older_than_seconds", DAY_SECONDS)
        dry_run = requests.flag_of(header, "dry_run", otherwise=True)
        found = self._node.garbage.collect(older_than_seconds, dry_run=dry_run)
        return Reply({"collected": found.as_json()})

    # --- tokens ----------------------------------------------------------------------------------

    def _token_create(self, header: Header) -> Reply:
        lasts_seconds = requests.lasting(header)
        return Reply(self._node.access.create_token(header.get("principal"), lasts_seconds))

    def _s3_key_create(self, header: Header) -> Reply:
        wanted = header.get("principal"), header.get("mount"), requests.lasting(header)
        return Reply(self._node.s3.create_key(self._node.access, self._caller, *wanted))

    def _token_list(self, _header: Header) -> Reply:
        return Reply({"tokens": [each.as_json() for each in self._node.access.tokens.list()]})

    def _token_revoke(self, header: Header) -> Reply:
        self._node.access.tokens.revoke(str(header.get("id")))
        return Reply({})

    def _link_create(self, _header: Header) -> Reply:
        sessions, base = self._node.access.sessions, self._node.http_url()
        return Reply(sessions.create_link(self._caller, base))

    # --- what clients report ---------------------------------------------------------------------

    def _phase(self, header: Header) -> Reply:
        busy = requests.flag_of(header, "busy", otherwise=None)
        self._node.phases.report(self._rank, busy=busy, via=self)
        return Reply({})

    def _fallback(self, header: Header) -> Reply:
        shards = requests.count_of(header, "shards")
        self._node.fell_back(shards, requests.count_of(header, "size_bytes"))
        return Reply({})

    @property
    def _rank(self) -> str:
        """The identity that tells this client from others."""
        return self._client_id or self._caller.own(f"connection-{id(self)}")


def _answered_before_it_hung_up(connection: socket.socket, answer: Future[Any]) -> bool:
    """Return once ``answer`` is there; False, and it is cancelled, if the peer has gone first."""
    there = os.eventfd(0, os.EFD_CLOEXEC)
    try:
        answer.add_done_callback(lambda _answer: os.eventfd_write(there, 1))
        poll = select.poll()
        poll.register(there, select.POLLIN)
        poll.register(connection, select.POLLRDHUP)
        poll.poll()
        answer.cancel()
        os.eventfd_read(there)  # by now it was written, or will be at once: not after the close
        return not answer.cancelled()
    finally:
        os.close(there)


def _opened_reply(opened: Opened) -> Reply:
    header = _opened_header(opened)
    if opened.body is not None:
        return Reply(header, opened.body)
    return Reply(header, digests.pack(opened.shard.content.block_digests), opened.descriptor)


def _opened_header(opened: Opened) -> Header:
    content = opened.shard.content
    return {
        "size_bytes": content.size_bytes,
        "digest": digests.to_hex(content.digest),
        "source": opened.source,
        "inline": opened.body is not None,
        **({"arriving": opened.shard.version} if opened.arriving else {}),
        **({"checked_at": opened.stale.checked_at} if opened.stale else {}),
    }


def _raising(error: Exception) -> _Operation:
    def operation(_session: Session, _frame: Frame) -> Reply:
        raise error

    return operation


def _on(
    parse: Callable[[Frame], _Request], handle: Callable[[Session, _Request], Reply]
) -> _Operation:
    """Return an operation whose frame ``parse`` reads, and whose request ``handle`` answers."""
    return lambda session, frame: handle(session, parse(frame))


def _header(frame: Frame) -> Header:
    """Return the few fields that a handler reads itself."""
    return frame.header


def _step(frame: Frame) -> Step:
    return requests.step_of(frame.header)


_OPERATIONS: dict[str, _Operation] = {
    "hello": _on(_header, Session._hello),
    "put": _on(requests.Put.parse, Session._put),
    "begin": _on(_header, Session._begin),
    "extend": _on(_header, Session._extend),
    "commit": Session._commit,
    "abort": _on(_header, Session._abort),
    "open": _on(_header, Session._open),
    "arrived": _on(_header, Session._arrived),
    "read_block": _on(_header, Session._read_block),
    "verify": _on(_header, Session._verify),
    "seal": _on(_header, Session._seal),
    "abort_rank": _on(lambda frame: requests.ids_of(frame.header), Session._abort_rank),
    "wait": _on(_header, Session._wait),
    "flush": _on(_header, Session._flush),
    "restore_step": _on(_header, Session._restore_step),
    "delete_step": _on(_step, Session._delete_step),
    "runs": _on(_header, Session._runs),
    "objects": _on(_header, lambda session, header: Reply(session._node.s3.listed(header))),
    "steps": _on(_header, Session._steps),
    "branches": _on(_header, Session._branches),
    "latest": _on(_header, Session._latest),
    "unflushed": _on(_header, lambda s, h: Reply(s._node.checkpoints.unflushed.listed(h))),
    "step": _on(_step, Session._step),
    "status": _on(_header, lambda s, _h: Reply({"status": s._node.status()})),
    "incidents": _on(_header, Session._incidents),
    "whoami": _on(_header, Session._whoami),
    "pin": _on(_step, Session._pin),
    "unpin": _on(_step, Session._unpin),
    "pins": _on(_header, Session._pins),
    "collect": _on(_header, Session._collect),
    "leave": _on(_header, Session._leave),
    "forget": _on(_header, lambda s, h: Reply(s._node.checkpoints.unflushed.forgotten(h))),
    "link_create": _on(_header, Session._link_create),
    "token_create": _on(_header, Session._token_create),
    "s3_key_create": _on(_header, Session._s3_key_create),
    "s3_settle": _on(_header, lambda session, header: Reply(session._node.settle(header))),
    "token_list": _on(_header, Session._token_list),
    "token_revoke": _on(_header, Session._token_revoke),
    "phase": _on(_header, Session._phase),
    "fallback": _on(_header, Session._fallback),
}
