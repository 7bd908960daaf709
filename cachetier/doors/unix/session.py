"""One connection: reads a request, does it, answers; and leaves nothing behind when it ends.

What the connection staged lives in ``_staged`` and dies with it, so a rank that is killed in the
middle of a put leaves neither file nor reserved room.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
from collections.abc import Callable
from dataclasses import asdict, dataclass

from cachetier_client.io import digests
from cachetier_client.transport.wire import (
    PROTOCOL,
    ConnectionClosedError,
    Frame,
    FrameError,
    Header,
    receive_frame,
    send_frame,
)

from cachetier import __version__
from cachetier.doors.operations import Operations
from cachetier.doors.unix import headers, plain_operations
from cachetier.errors import CachetierError, InvalidRequestError, ProtocolMismatchError
from cachetier.ingest.ingest import RemoteStage
from cachetier.local.store import Staged
from cachetier.model.shard import BLOCK_BYTES, INLINE_BYTES, SaveIds
from cachetier.restore.restore import Opened
from cachetier.telemetry import events, trace_context
from cachetier.telemetry.events import tell
from cachetier.telemetry.trace_context import called_by

log = logging.getLogger(__name__)

STAGED_LIMIT = 64
MESSAGE_LIMIT = 2_000  # messages quote what was asked


@dataclass(slots=True)
class _Put:
    """A put between begin and commit. ``failure`` is what went wrong in a block, told at commit."""

    ids: SaveIds
    name: str
    stage: Staged | RemoteStage
    element_size: int = 0
    failure: CachetierError | None = None


@dataclass(frozen=True, slots=True)
class _Reply:
    header: Header
    body: bytes = b""
    descriptor: int | None = None


class Session:
    """Serves one connection until the peer closes it."""

    def __init__(self, sock: socket.socket, operations: Operations) -> None:
        self._sock = sock
        self._node = operations
        self._client_id = ""
        self._greeted = False
        self._staged: dict[int, _Put] = {}
        self._next_staging = 1

    def serve(self) -> None:
        """Answer requests until the connection closes; then drop what was staged."""
        try:
            while True:
                self._serve_one(receive_frame(self._sock))
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
            self._node.phases.leave(self._rank, via=self)
            self._drop_staged()

    def _drop_staged(self) -> None:
        while self._staged:
            _, put = self._staged.popitem()
            try:
                self._node.ingest.abort(put.stage)
            except Exception as error:  # the others must not stay behind with this one
                tell(log, events.STAGED_LEFT, error=error)

    def _serve_one(self, frame: Frame) -> None:
        if frame.descriptor is not None:
            os.close(frame.descriptor)  # no request carries one
        if frame.header.get("op") == "block":
            self._block(frame)
            return
        try:
            with called_by(frame.header.get(trace_context.FIELD)):
                reply = self._dispatch(frame)
        except CachetierError as error:
            self._answer_error(error)
        except Exception as error:  # the socket is not touched in there: an OSError is the disk's
            operation = str(frame.header.get("op"))[:60]
            tell(log, events.REQUEST_FAILED, door="unix", operation=operation, error=error)
            self._answer_error(CachetierError("the service failed on this request"))
        else:
            self._answer(reply)

    def _answer(self, reply: _Reply) -> None:
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

    def _dispatch(self, frame: Frame) -> _Reply:
        op = frame.header.get("op")
        name = op if isinstance(op, str) else ""
        operation, plain = _OPERATIONS.get(name), plain_operations.BY_NAME.get(name)
        if operation is None and plain is None:
            raise InvalidRequestError(f"unknown operation {op!r}")
        if not self._greeted and op != "hello":
            raise ProtocolMismatchError("the first request of a connection must be hello")
        if plain is not None:
            return _Reply(plain(self._node, frame.header))
        assert operation is not None
        return operation(self, frame)

    # --- hello -----------------------------------------------------------------------------------

    def _hello(self, frame: Frame) -> _Reply:
        spoken = frame.header.get("protocol")
        if spoken != PROTOCOL:
            raise ProtocolMismatchError(
                f"the client speaks protocol {spoken!r}, this service speaks {PROTOCOL}"
            )
        self._greeted = True
        client_id, since = frame.header.get("client_id"), frame.header.get("since")
        if isinstance(client_id, str) and 0 < len(client_id) <= 64:
            self._client_id = client_id
            self._node.incidents.listen(client_id, headers.instant_of(since))
        return _Reply(
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

    def _ids(self, frame: Frame) -> SaveIds:
        ids = headers.ids_of(frame.header)
        self._node.incidents.used(self._client_id, ids.run)
        return ids

    def _put(self, frame: Frame) -> _Reply:
        self._node.refuse_when_leaving()
        ids, name = self._ids(frame), headers.name_of(frame.header)
        if headers.count_of(frame.header, "size_bytes") != len(frame.body):
            raise InvalidRequestError("size_bytes is not the size of the body", name=name)
        digest, timeout = headers.digest_of(frame.header), headers.timeout_of(frame.header)
        receipt = self._node.ingest.put_inline(
            ids,
            name,
            bytes(frame.body),
            digest,
            timeout,
            element_size=headers.element_size_of(frame.header),
        )
        return _Reply(headers.receipt_header(receipt))

    def _begin(self, frame: Frame) -> _Reply:
        self._node.refuse_when_leaving()
        ids, name = self._ids(frame), headers.name_of(frame.header)
        if len(self._staged) >= STAGED_LIMIT:
            raise InvalidRequestError(f"{STAGED_LIMIT} puts are staged on this connection already")
        size_bytes = headers.optional_count_of(frame.header, "size_bytes")
        timeout = headers.timeout_of(frame.header)
        element_size = headers.element_size_of(frame.header)
        stage = self._node.ingest.begin(ids, name, size_bytes, timeout)
        staging, self._next_staging = self._next_staging, self._next_staging + 1
        self._staged[staging] = _Put(ids, name, stage, element_size)
        if not isinstance(stage, Staged):
            return _Reply({"staging": staging, "plane": "stream", "reserved_bytes": 0})
        # Sending closes the service's only writable descriptor: from here on only the rank can
        # write.
        descriptor, stage.writer = stage.writer, None
        reserved = stage.reserved_bytes
        return _Reply(
            {"staging": staging, "plane": "descriptor", "reserved_bytes": reserved},
            descriptor=descriptor,
        )

    def _extend(self, frame: Frame) -> _Reply:
        put = self._find_put(frame)
        if not isinstance(put.stage, Staged):
            raise InvalidRequestError("a shard that streams to the remote reserves no room")
        total = headers.count_of(frame.header, "reserved_bytes")
        timeout = headers.timeout_of(frame.header)
        reserved = self._node.ingest.extend(put.stage, total, timeout)
        return _Reply({"reserved_bytes": reserved})

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

    def _commit(self, frame: Frame) -> _Reply:
        put = self._find_put(frame)
        del self._staged[frame.header["staging"]]
        try:
            if put.failure is not None:
                raise put.failure
            content = headers.content_of(frame.header, frame.body, put.element_size)
        except CachetierError:
            self._node.ingest.abort(put.stage)
            raise
        receipt = self._node.ingest.commit(put.stage, put.ids, put.name, content)
        return _Reply(headers.receipt_header(receipt))

    def _abort(self, frame: Frame) -> _Reply:
        put = self._find_put(frame)
        del self._staged[frame.header["staging"]]
        self._node.ingest.abort(put.stage)
        return _Reply({})

    def _find_put(self, frame: Frame) -> _Put:
        staging = frame.header.get("staging")
        put = self._staged.get(staging) if isinstance(staging, int) else None
        if put is None:
            raise InvalidRequestError(
                f"nothing is staged as {staging!r}; it may be committed or aborted already",
                hint="Begin the put again.",
            )
        return put

    # --- reads -----------------------------------------------------------------------------------

    def _open(self, frame: Frame) -> _Reply:
        run, step = headers.step_of(frame.header)
        name, timeout = headers.name_of(frame.header), headers.timeout_of(frame.header)
        if frame.header.get("restore", True) is not False:
            opened = self._node.restore.open(run, step, name, timeout)
        else:
            blocks = headers.optional_count_of(frame.header, "blocks") or 0
            opened = self._node.restore.open_part(run, step, name, blocks, timeout)
        return _opened(opened)

    def _read_block(self, frame: Frame) -> _Reply:
        """Give one block of a shard that is only remote; of any other what ``open`` gives."""
        run, step = headers.step_of(frame.header)
        name, timeout = headers.name_of(frame.header), headers.timeout_of(frame.header)
        number = headers.count_of(frame.header, "block")
        blocks = headers.optional_count_of(frame.header, "blocks")
        counted = 1 if blocks is None else blocks
        opened = self._node.restore.open_part(run, step, name, counted, timeout)
        if opened.remote is None:
            return _opened(opened)
        if number >= len(opened.shard.content.block_digests):
            raise InvalidRequestError(f"shard {name} has no block {number}", name=name)
        return _Reply(headers.opened_header(opened), bytes(opened.remote.read(number)))

    def _verify(self, frame: Frame) -> _Reply:
        run, step = headers.step_of(frame.header)
        return _Reply(
            {"sound": self._node.restore.verify(run, step, headers.name_of(frame.header))}
        )

    # --- whole steps -----------------------------------------------------------------------------

    def _seal(self, frame: Frame) -> _Reply:
        self._node.refuse_when_stopping()
        ranks_on_node = headers.optional_count_of(frame.header, "ranks_on_node")
        follows = headers.flag_of(frame.header, "follows")
        sealed = self._node.checkpoints.seal(self._ids(frame), ranks_on_node, follows=follows)
        return _Reply({"sealed_ranks": sealed})

    def _abort_rank(self, frame: Frame) -> _Reply:
        self._node.checkpoints.abort_rank(self._ids(frame))
        return _Reply({})

    def _wait(self, frame: Frame) -> _Reply:
        run, step = headers.step_of(frame.header)
        name = None if frame.header.get("name") is None else headers.name_of(frame.header)
        level, timeout = headers.level_of(frame.header), headers.timeout_of(frame.header)
        age = self._node.checkpoints.wait(run, step, name, level, timeout)
        return _Reply({"level": str(level), "age_seconds": age})

    def _flush(self, frame: Frame) -> _Reply:
        run, step = headers.optional_step_of(frame.header)
        timeout_seconds = headers.timeout_of(frame.header)
        return _Reply(self._node.checkpoints.flush(run, step, timeout_seconds).as_json())

    def _phase(self, frame: Frame) -> _Reply:
        self._node.phases.report(self._rank, busy=headers.busy_of(frame.header), via=self)
        return _Reply({})

    def _fallback(self, frame: Frame) -> _Reply:
        shards = headers.count_of(frame.header, "shards")
        self._node.fell_back(shards, headers.count_of(frame.header, "size_bytes"))
        return _Reply({})

    @property
    def _rank(self) -> str:
        """What tells this client from others."""
        return self._client_id or f"connection-{id(self)}"

    def _incidents(self, frame: Frame) -> _Reply:
        clear = frame.header.get("clear", True) is True
        found = self._node.incidents.take(self._client_id, clear=clear)
        return _Reply({"incidents": [asdict(incident) for incident in found]})


def _opened(opened: Opened) -> _Reply:
    header = headers.opened_header(opened)
    if opened.body is not None:
        return _Reply(header, opened.body)
    return _Reply(header, digests.pack(opened.shard.content.block_digests), opened.descriptor)


_OPERATIONS: dict[str, Callable[[Session, Frame], _Reply]] = {
    "hello": Session._hello,
    "put": Session._put,
    "begin": Session._begin,
    "extend": Session._extend,
    "commit": Session._commit,
    "abort": Session._abort,
    "open": Session._open,
    "read_block": Session._read_block,
    "verify": Session._verify,
    "seal": Session._seal,
    "abort_rank": Session._abort_rank,
    "wait": Session._wait,
    "flush": Session._flush,
    "phase": Session._phase,
    "fallback": Session._fallback,
    "incidents": Session._incidents,
}
