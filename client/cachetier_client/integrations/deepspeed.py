"""DeepSpeed: a checkpoint engine whose files are shards of steps.

    engine, *_ = deepspeed.initialize(...)
    use_cachetier(engine, "my-run", decoupled=True)
    tag = restore_latest("checkpoints", "my-run")  # the newest step that every rank can restore
    if tag:
        engine.load_checkpoint("checkpoints", tag)
    ...
    engine.save_checkpoint("checkpoints")

DeepSpeed looks for files in a local folder before it loads them. There the files are one line each,
which names the shard; the bytes are in cachetier alone. ``restore_latest`` writes such a folder.
"""

from __future__ import annotations

import atexit
import copy
import io
import logging
import os
import weakref
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any, cast

import torch
from deepspeed.runtime.checkpoint_engine.checkpoint_engine import (
    CheckpointCommitInfo,
    CheckpointEngine,
)

from cachetier_client.checkpoints import Checkpoint
from cachetier_client.client import Client
from cachetier_client.default import default_client
from cachetier_client.errors import InvalidNameError, InvalidRequestError
from cachetier_client.identity.addresses import SCHEME, parse
from cachetier_client.identity.step_names import StepName
from cachetier_client.integrations.folders import write_whole
from cachetier_client.step_files import whole_step
from cachetier_client.torch.agreement import RestorableLevel, latest_common_step

TAG = StepName("global_step{step}")
SAVE_SECONDS = 600.0
_LATEST = "latest"
_MARK = f"{SCHEME}://".encode()

logger = logging.getLogger(__name__)


def use_cachetier(
    engine: Any,
    run: str | None = None,
    *,
    decoupled: bool = False,
    timeout_seconds: float = SAVE_SECONDS,
    client: Client | None = None,
) -> CachetierCheckpointEngine:
    """Let an engine save to, and load from, a run.

    Args:
        engine: What ``deepspeed.initialize`` returned.
        run: Default: ``CACHETIER_RUN``.
        decoupled: Write while training goes on, until the optimizer's next step, which waits for it
            and raises what went wrong.
        timeout_seconds: Of each call on the service.
        client: Default: the process's own.
    """
    buffers = {buffer.data_ptr() for buffer in engine.module.buffers()} if decoupled else None
    used = CachetierCheckpointEngine(run, buffers, timeout_seconds, client or default_client())
    engine.checkpoint_engine = used
    return used


def restore_latest(
    load_dir: str | os.PathLike[str],
    run: str | None = None,
    *,
    level: RestorableLevel = "any",
    client: Client | None = None,
) -> str | None:
    """Write the folder that ``load_checkpoint`` looks into, for the newest common step.

    Called on all ranks. No checkpoint's bytes are read.

    Returns:
        The tag; None if there is no step that every rank can restore.
    """
    client = client or default_client()
    step = latest_common_step(run, level=level, client=client, strict=True)
    if step is None:
        return None
    info = whole_step(client, run, step)
    tag = TAG.of(info.run, step)
    for shard in info.shards:
        _place(Path(load_dir) / tag / shard.name, info.run, step, shard.name)
    write_whole(Path(load_dir) / _LATEST, tag)
    return tag


class CachetierCheckpointEngine(CheckpointEngine):  # type: ignore[misc]  # it has no types
    """Saves each of DeepSpeed's checkpoints as one step; the step's number is that of its tag.

    What DeepSpeed writes elsewhere than into the checkpoint's folder (``save_16bit_model``) goes to
    a local file, as it would without this engine.
    """

    def __init__(
        self, run: str | None, buffers: set[int] | None, timeout_seconds: float, client: Client
    ) -> None:
        super().__init__()
        self.name = type(self).__name__
        self._run = run
        self._buffers = buffers
        self._timeout_seconds = timeout_seconds
        self._client = client
        self._info: CheckpointCommitInfo | None = None
        self._part: Checkpoint | None = None
        self._under_way: list[Future[None]] = []
        self._writer = ThreadPoolExecutor(1, "cachetier-deepspeed")
        atexit.register(_commit_at_exit, weakref.ref(self))

    def is_decoupled(self) -> bool:
        return self._buffers is not None

    def get_commit_info(self) -> CheckpointCommitInfo | None:
        return self._info

    def create(self, info: CheckpointCommitInfo) -> None:
        """Begin a checkpoint; one that was not committed is, if it is decoupled, else aborted."""
        if self.is_decoupled():
            self.cleanup()
        elif self._part is not None:
            self._part.abort()
        self._part, self._info = None, info

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        """Make a folder. That of a checkpoint, which every rank makes, begins its step.

        Raises:
            InvalidNameError: The tag names no step.
        """
        os.makedirs(path, exist_ok=exist_ok)
        if self._part is None and self._is_in_checkpoint(path):
            assert self._info is not None
            self._part = self._client.checkpoint(
                self._run,
                _step_of(self._info.tag),
                overwrite=True,
                timeout_seconds=self._timeout_seconds,
            )

    def save(self, state_dict: Any, path: str) -> None:
        """Put a file of this rank; decoupled, what only a step of the optimizer changes is later.

        Raises:
            CachetierClientError: The file is not safe, and nothing of this rank's part is kept.
        """
        if not self._is_in_checkpoint(path):
            torch.save(state_dict, path)
            return
        if self._part is None:
            raise InvalidRequestError(
                f"the checkpoint of {path} was not begun", hint="Call engine.save_checkpoint."
            )
        part, place = self._part, Path(path).absolute()
        name = place.relative_to(self._folder()).as_posix()
        if self._buffers is not None:
            held = _held(state_dict, self._buffers)
            self._under_way.append(self._writer.submit(_put, part, name, held, place))
            return
        try:
            _put(part, name, state_dict, place)
        except BaseException:
            part.abort()
            raise

    def commit(self, info: CheckpointCommitInfo) -> bool:  # noqa: ARG002 - that of ``create``
        """Seal this rank's part; decoupled, wait until it is written.

        Raises:
            CachetierClientError: It is not safe, and nothing of it is kept.
        """
        part, under_way = self._part, self._under_way
        self._part, self._under_way, self._info = None, [], None
        try:
            for each in under_way:
                each.result()
            if part is not None:
                part.seal()
        except BaseException:
            for each in under_way:
                each.exception()  # none may write any more
            if part is not None:
                part.abort()
            raise
        return True

    def load(self, path: str, map_location: Any = None) -> Any:
        """Return what a file has, whether cachetier has it or the folder itself.

        Raises:
            NotFoundError: The step is gone.
        """
        with open(path, "rb") as file:
            line = file.read(2048) if file.read(len(_MARK)) == _MARK else b""
        if not line:
            return torch.load(path, map_location=map_location, weights_only=False)
        at = parse((_MARK + line).decode().strip())
        step, name = int(at.path[0]), "/".join(at.path[1:])
        with self._client.open_shard(at.run, step, name, "rb", restore=True) as source:
            stream = cast("io.RawIOBase", source)
            return torch.load(
                io.BufferedReader(stream), map_location=map_location, weights_only=False
            )

    def cleanup(self) -> None:
        """Commit what was not, and name it in ``latest``: training ended before its next step."""
        info = self._info
        if info is None:
            return
        try:
            self.commit(info)
        except BaseException:
            logger.exception("the checkpoint %s of %s was not saved", info.tag, info.save_dir)
            raise
        if info.save_latest and int(os.environ.get("RANK", "0")) == 0:
            write_whole(Path(info.save_dir) / _LATEST, info.tag)

    def _is_in_checkpoint(self, path: str) -> bool:
        return self._info is not None and Path(path).absolute().is_relative_to(self._folder())

    def _folder(self) -> Path:
        assert self._info is not None
        return Path(self._info.save_dir).absolute() / str(self._info.tag)


def _step_of(tag: str) -> int:
    step = TAG.step_of("", tag)
    if step is None:
        raise InvalidNameError(
            f"the tag {tag!r} names no step", hint=f"Tags are called like {TAG.of('', 1000)!r}."
        )
    return step


def _commit_at_exit(engine: weakref.ref[CachetierCheckpointEngine]) -> None:
    there = engine()
    if there is not None and there.is_decoupled():
        there.cleanup()


def _put(part: Checkpoint, name: str, state: Any, place: Path) -> None:
    with part.open(name) as stream:
        torch.save(state, cast("IO[bytes]", stream))
    _place(place, part.run, part.step, name)


def _held(state: Any, buffers: set[int]) -> Any:
    """Return a copy that shares its tensors, except buffers, which a forward changes."""
    if isinstance(state, torch.Tensor):
        return state.clone() if state.data_ptr() in buffers else state
    if isinstance(state, dict):
        held = {key: _held(value, buffers) for key, value in state.items()}
        return held if type(state) is dict else _with(state, held)
    if type(state) in (list, tuple):
        return type(state)(_held(each, buffers) for each in state)
    return copy.deepcopy(state)


def _with(state: dict[Any, Any], held: dict[Any, Any]) -> dict[Any, Any]:
    like = copy.copy(state)
    like.update(held)
    return like


def _place(path: Path, run: str, step: int, name: str) -> None:
    write_whole(path, f"{SCHEME}://{run}/{step}/{name}\n")
