"""Which paths below a folder are a trainer's steps, and which file says that one has ended.

A step is a folder (``checkpoint-500/``), or a single file (``epoch=1-step=16.ckpt``), whose name
has a step's number; or several of them. Its *marker* is the file that its framework writes last.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fnmatch import fnmatchcase

from cachetier_client.identity.presets import PRESETS
from cachetier_client.identity.step_names import StepName, find_step

# Of a folder called like the first, any of the rest ends the save. The first row that fits counts.
MARKERS = (
    ("checkpoint-*", (*PRESETS["transformers"].ends, *PRESETS["dcp"].ends)),
    ("*.ckpt", PRESETS["lightning"].ends),  # sharded
    ("*", (*PRESETS["dcp"].ends, "model.safetensors.index.json")),
)
SINGLE_FILES = ("*.ckpt", "*.pt", "*.pth", "*.safetensors")
# Beside the folders, with the name or the number of the one that has ended: DeepSpeed, Megatron.
POINTERS = ("latest", "latest_checkpointed_iteration.txt")

_UNFINISHED = re.compile(r"\.|tmp|.*\.(?:tmp|part|partial|incomplete)(?:[-_.].*)?$", re.DOTALL)


@dataclass(frozen=True, slots=True)
class SaveRules:
    """How a trainer calls its steps and what it writes last.

    Args:
        step_name: How steps are called, if not by the usual words; see ``identity/step_names.py``.
        markers: Patterns of the file that ends a save, and of single files that are one, in place
            of the table's.
    """

    step_name: StepName | None = None
    markers: tuple[str, ...] = ()

    def step_of(self, name: str) -> int | None:
        """Return the step that a folder or a file is called after, or None."""
        if self.is_unfinished(name):
            return None
        if self.step_name is not None:  # a file's suffix is not of the form
            steps = (self.step_name.step_of("", each) for each in (name, name.rpartition(".")[0]))
            return next((step for step in steps if step is not None), None)
        found = find_step([name])
        return None if found is None else found.step

    def has_word(self, name: str) -> bool:
        """Return whether more than a number, which may be a job's or a date, says its step."""
        return self.step_name is not None or not name.isdecimal()

    def is_unfinished(self, name: str) -> bool:
        """Return whether a folder or file is hidden, or called like one that is being written."""
        return _UNFINISHED.match(name) is not None

    def ends_save(self, name: str) -> bool:
        """Return whether the file ``folder/file``, or a single ``file``, ends its step's save."""
        folder, slash, last = name.rpartition("/")
        patterns = self.markers or (_markers_in(folder) if slash else SINGLE_FILES)
        return any(fnmatchcase(last, pattern) for pattern in patterns)

    def markers_in(self, folder: str) -> tuple[str, ...]:
        """Return what may end a save in a folder of this name, to be told."""
        return self.markers or _markers_in(folder)


def _markers_in(folder: str) -> tuple[str, ...]:
    return next(files for pattern, files in MARKERS if fnmatchcase(folder, pattern))
