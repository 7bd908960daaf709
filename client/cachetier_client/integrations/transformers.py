"""transformers' Trainer: ``output_dir`` stays local, and each ``checkpoint-N`` becomes step N.

    trainer = Trainer(..., callbacks=[CachetierCallback("cachetier://my-run")])
    trainer.train(resume_from_checkpoint=restore_latest(output_dir, "my-run"))

Needs the extra ``transformers``: docs/install.md.

Source: docs/frameworks.md, "transformers".
"""

from __future__ import annotations

import logging
import os
import re
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any, get_args

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from cachetier_client.calls.runs import PUT_SECONDS
from cachetier_client.client import Client
from cachetier_client.errors import CachetierClientError, InvalidRequestError
from cachetier_client.identity.addresses import SCHEME, parse
from cachetier_client.identity.names import checked_run
from cachetier_client.integrations.step_folders import LATEST, FolderSaves, is_address, load_folder
from cachetier_client.results import Level

_FOLDER = re.compile(rf"{PREFIX_CHECKPOINT_DIR}-(\d+)", re.ASCII)

log = logging.getLogger(__name__)


class CachetierCallback(TrainerCallback):  # type: ignore[misc]
    """Makes each checkpoint of a Trainer a step, all files of all ranks, while training goes on.

    A save waits for the one before; what went wrong with that is raised then, on all ranks, or at
    the end of training. While training lasts, folders beyond ``save_total_limit`` are removed here
    and not by the Trainer (whose argument is None meanwhile): none before its step is durable.

    Args:
        run: ``cachetier://my-run``, or the run's name.
        client: Default: the process's own.
        removable_at: The level a step must have before its folder goes. ``local`` spares the disk
            while the remote is away, and leaves the step with this node's cache alone.
        timeout_seconds: For each call on the service, waits for room included.
    """

    def __init__(
        self,
        run: str,
        *,
        client: Client | None = None,
        removable_at: Level = "durable",
        timeout_seconds: float = PUT_SECONDS,
    ) -> None:
        found = parse(run)
        if found.path or removable_at not in get_args(Level):
            raise InvalidRequestError(
                f"CachetierCallback({run!r}, removable_at={removable_at!r})",
                hint=f"Name a run, {SCHEME}://my-run, and a level: {', '.join(get_args(Level))}.",
            )
        self._saves = _Checkpoints(checked_run(found.run), client, removable_at, timeout_seconds)

    def on_init_end(
        self, args: TrainingArguments, _state: TrainerState, _control: TrainerControl, **_: Any
    ) -> None:
        """Refuse an ``output_dir`` that the Trainer would take for a folder named ``cachetier:``.

        Raises:
            InvalidRequestError: It is an address.
        """
        if is_address(args.output_dir):
            with suppress(OSError):  # the Trainer has made it
                os.removedirs(args.output_dir)
            raise InvalidRequestError(
                f"output_dir={args.output_dir!r}: the Trainer takes this for a local folder",
                hint="Set output_dir to a local folder; the callback makes its checkpoints steps.",
            )

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, _control: TrainerControl, **_: Any
    ) -> None:
        """Take over rotation, and save what training resumes from if the run has not got it.

        Raises:
            InvalidRequestError: A search of hyperparameters, which trains many times.
        """
        if state.is_hyper_param_search:
            raise InvalidRequestError(
                "a search of hyperparameters writes the folders of many trials",
                hint="Leave CachetierCallback out of the search, and train the best trial with it.",
            )
        self._saves.take_over(args, state)

    def on_save(
        self, _args: TrainingArguments, state: TrainerState, _control: TrainerControl, **_: Any
    ) -> None:
        """Save the folder that was just written.

        Raises:
            InvalidRequestError: It is not where the Trainer writes it.
            AgreementError, CachetierClientError: See ``FolderSaves.begin``.
        """
        if not self._saves.take(state.global_step):
            raise InvalidRequestError(
                f"no rank has {self._saves.folder(state.global_step) / TRAINER_STATE_NAME}",
                hint="Leave the names of checkpoints as the Trainer makes them.",
            )

    def on_train_end(
        self, _args: TrainingArguments, state: TrainerState, _control: TrainerControl, **_: Any
    ) -> None:
        """Wait until all is safe; save what was written without ``on_save``, as at a SIGTERM."""
        if state.global_step not in self._saves.taken:
            self._saves.take(state.global_step)
        self._saves.hand_back()


def restore_latest(
    output_dir: str | os.PathLike[str], run: str, *, client: Client | None = None
) -> str | None:
    """Restore the newest step that every rank can have as the Trainer's folder in ``output_dir``.

    To be called on all ranks, after ``TrainingArguments`` was made, which starts torch.distributed.

    Returns:
        The folder, for ``resume_from_checkpoint``; None if there is no step.

    Raises:
        AgreementError: See ``load_folder``.
    """
    return _restored(f"{SCHEME}://{run}/{LATEST}", output_dir, client)


def _restored(
    address: str, output_dir: str | os.PathLike[str], client: Client | None = None
) -> str | None:
    folder = load_folder(address, output_dir, folder_name=name_of("{step}"), client=client)
    return None if folder is None else str(folder)


class CachetierTrainerMixin:
    """Has ``train`` take addresses: ``class MyTrainer(CachetierTrainerMixin, Trainer): ...``."""

    args: TrainingArguments

    def train(self, resume_from_checkpoint: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Train, from ``cachetier://my-run/latest`` for instance; else as the Trainer does."""
        if isinstance(resume_from_checkpoint, str) and is_address(resume_from_checkpoint):
            resume_from_checkpoint = _restored(resume_from_checkpoint, self.args.output_dir)
        return super().train(resume_from_checkpoint, *args, **kwargs)  # type: ignore[misc]


class _Checkpoints(FolderSaves):
    """The Trainer's folders: saves them, and removes those beyond the limit when it may."""

    def __init__(
        self, run: str, client: Client | None, removable_at: Level, put_seconds: float
    ) -> None:
        super().__init__(run, client=client, put_seconds=put_seconds)
        self.taken: set[int] = set()
        self._removable_at = removable_at
        self._limit: int | None = None
        self._held: list[int] = []
        self._args: Any = None  # until training begins
        self._state: Any = None

    def take_over(self, args: TrainingArguments, state: TrainerState) -> None:
        self._args, self._state = args, state
        self.round_seconds = float(args.ddp_timeout)
        self.taken = set()
        if args.save_total_limit is not None:
            self._limit, args.save_total_limit = args.save_total_limit, None
        step = state.global_step
        if step and not any(self._agreed(lambda: self._has(step))):
            self.take(step)
        self.taken.add(step)

    def hand_back(self) -> None:
        self.finish()
        self.saved(self._state.global_step)  # what is durable by now goes, too
        self._args.save_total_limit = self._limit
        if self._held:
            log.warning(
                "checkpoints %s stay in %s beyond save_total_limit=%s: they are not %s",
                self._held,
                self._args.output_dir,
                self._limit,
                self._removable_at,
            )

    def take(self, step: int) -> bool:
        self.taken.add(step)
        return self.begin(self.folder(step), step, marker=TRAINER_STATE_NAME)

    def folder(self, step: int) -> Path:
        return Path(self._args.output_dir) / name_of(step)

    def saved(self, step: int) -> None:
        """Remove folders beyond the limit, among those up to this step: a newer one is growing."""
        if self._limit is None or self._limit <= 0 or not self._args.should_save:
            return
        root = Path(self._args.output_dir)
        steps = sorted(each for each in _steps_in(root) if each <= step)
        # Read after the listing: a newer best one is then newer than all of these.
        best = self._state.best_model_checkpoint
        surplus = surplus_of(steps, self._limit, None if best is None else Path(best).name)
        self._held = surplus
        if not surplus:
            return
        try:
            infos = self.client.steps(self.run, self._removable_at)
        except CachetierClientError as error:
            log.warning("checkpoints %s stay for now: %s", surplus, error)
            return
        removable = {info.step for info in infos}
        for each in removable.intersection(surplus):
            shutil.rmtree(self.folder(each), ignore_errors=True)
        self._held = [each for each in surplus if each not in removable]

    def _has(self, step: int) -> bool:
        return any(info.step == step and info.levels for info in self.client.steps(self.run))


def surplus_of(steps: list[int], limit: int, best: str | None) -> list[int]:
    """Return which of some steps, ascending, go by a limit: as the Trainer, neither last nor best.

    Args:
        steps: Those there are.
        limit: How many may stay.
        best: The name of the best one's folder.
    """
    kept = [each for each in steps if each in steps[-1:] or name_of(each) == best]
    others = [each for each in steps if each not in kept]
    return others[: max(0, len(steps) - max(limit, len(kept)))]


def name_of(step: int | str) -> str:
    """Return what the Trainer calls a step's folder."""
    return f"{PREFIX_CHECKPOINT_DIR}-{step}"


def _steps_in(root: Path) -> list[int]:
    matches = (_FOLDER.fullmatch(path.name) for path in root.iterdir())
    return [int(match[1]) for match in matches if match]
