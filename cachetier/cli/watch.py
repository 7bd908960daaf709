"""``cachetier watch``: checkpoints of trainers that only write files, taken as they end."""

from __future__ import annotations

import os
import sys
import threading
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from cachetier_client.units import counted, shown_size

from cachetier.cli.output import (
    FAILED,
    SPAN,
    AsJson,
    Url,
    complain,
    echo,
    ended_by_signal,
    print_json,
    reach,
    refuse,
    reported,
)
from cachetier.cli.shards import Rank, Run, WorldSize

if TYPE_CHECKING:
    from cachetier_client import Client, Receipt
    from cachetier_client.adopt.trainer_folder import TrainerFolder
    from cachetier_client.adopt.watcher import Outcome


Folder = Annotated[Path, typer.Argument(help="The folder that the trainer writes to.")]
SaveId = Annotated[
    str | None,
    typer.Option(
        "--save-id",
        envvar="CACHETIER_SAVE_ID",
        help="With more than one watcher: equal for all, new for every start of the job.",
    ),
]
Marker = Annotated[
    list[str] | None,
    typer.Option("--marker", help="The file that ends a save, as a pattern; may be repeated."),
]
StepForm = Annotated[
    str | None,
    typer.Option("--step-name", help="How steps are called, such as `round-{step}`."),
]
QuietCommits = Annotated[
    float | None,
    typer.Option(
        "--quiet-commits",
        metavar=SPAN,
        min=0.0,
        help="A step has ended, too, when nothing happened to it for so long.",
    ),
]
Once = Annotated[bool, typer.Option("--once", help="Take what has ended by now, and leave.")]


def watch(
    folder: Folder,
    run: Run,
    rank: Rank = None,
    world_size: WorldSize = None,
    save_id: SaveId = None,
    marker: Marker = None,
    step_name: StepForm = None,
    quiet_commits: QuietCommits = None,
    once: Once = False,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Take each step that a trainer writes as files, as soon as it has ended; until Ctrl-C.

    One watcher for each node whose files are its own, and for a shared folder one in all: --rank
    and --world-size count watchers. What is stored already is not sent again. Nothing in the folder
    is deleted or written to, but for a hidden one of links. Exit 1: a step could not be taken.

    JSON: a line for each step: `path`, `step`, `receipts`, `trouble`, `hint`, `failed`.
    """
    if not folder.is_dir():
        hint = "Name the one that the trainer writes to, or make it."
        refuse(f"there is no folder {folder}", hint, as_json=as_json)
    _check_place(rank, world_size, as_json)
    ids = {"run": run, "rank": rank, "world_size": world_size, "save_id": save_id}
    with reported(as_json), ended_by_signal():
        from cachetier.drain.priority.apply import step_aside

        found = _trainer_folder(folder, step_name, marker)
        courtesy = step_aside()
        with reach(url, patient=True) as client:
            took = ", ".join(f"{what} {how}" for what, how in courtesy.items() if how is not None)
            echo(f"Watching {found.root} for run {run}; {took}.", err=True)
            failed = _watched(found, client, ids, quiet_commits, once, as_json)
    if failed:
        raise typer.Exit(FAILED)


def _watched(
    folder: TrainerFolder,
    client: Client,
    ids: dict[str, Any],
    quiet_commits: float | None,
    once: bool,
    as_json: bool,
) -> bool:
    """Watch until the end; return whether a step that had ended is not stored."""
    from cachetier_client.adopt.watcher import Watcher

    failed = threading.Event()

    def adopt(source: str, step: int, origin: str) -> list[Receipt]:
        return client.adopt(source, step=step, origin=origin, **ids)

    def tell(outcome: Outcome) -> None:
        if outcome.failed:
            failed.set()
        _tell(outcome, as_json)

    Watcher(folder, adopt, tell, quiet_commits=quiet_commits).run(once=once)
    return failed.is_set()


def _trainer_folder(
    folder: Path, step_name: str | None, markers: list[str] | None
) -> TrainerFolder:
    from cachetier_client.adopt.rules import SaveRules
    from cachetier_client.adopt.trainer_folder import TrainerFolder
    from cachetier_client.identity.step_names import StepName

    form = StepName(step_name) if step_name else None
    return TrainerFolder(os.path.abspath(folder), SaveRules(form, tuple(markers or ())))


def _check_place(rank: int | None, world_size: int | None, as_json: bool) -> None:
    """Refuse to guess that nobody else watches: two that do would save each step in turns."""
    from cachetier_client.identity.ranks import place_of

    if place_of(os.environ).origin == "alone" and (rank is None or world_size is None):
        refuse(
            "nothing says how many watchers there are",
            "Pass --rank 0 --world-size 1 for the only one; else start them with srun, one a node, "
            "or give each its --rank.",
            as_json=as_json,
        )


def _tell(outcome: Outcome, as_json: bool) -> None:
    where = outcome.path + ("" if outcome.step is None else f" (step {outcome.step})")
    if outcome.trouble:
        complain(f"{where}: {outcome.trouble}", outcome.hint)
    if as_json:
        print_json(asdict(outcome), one_line=True)
    elif outcome.receipts:
        size = shown_size(sum(receipt.size_bytes for receipt in outcome.receipts))
        files = counted(len(outcome.receipts), "file")
        echo(f"{where}: {files}, {size}, safe on this node")
    sys.stdout.flush()
