"""Notes which functions of the service and the client run, in every process that imports this.

``tools.house.byte_path`` puts this folder first on ``PYTHONPATH``, so that Python imports it at the
start of the client, of ``serve`` and of the drain. One byte of a shared file says which pass runs
now. A function is written down the first time that its thread runs it in a pass.
"""

from __future__ import annotations

import mmap
import os
import re
import sys
import threading
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

_PACKAGES = tuple(f"{os.sep}{package}{os.sep}" for package in ("cachetier", "cachetier_client"))
_TESTING = f"{os.sep}cachetier{os.sep}testing{os.sep}"
_DIGITS = re.compile(r"\d+")


def _record(folder: Path) -> None:
    with (folder / "pass").open("rb") as file:
        current = mmap.mmap(file.fileno(), 1, prot=mmap.PROT_READ)
    output = os.open(
        folder / f"{os.getpid()}.calls", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
    )
    process = " ".join(sys.argv[:1])
    seen: set[tuple[int, str, CodeType]] = set()

    def note(frame: FrameType, event: str, _argument: Any) -> None:
        number = current[0]
        if event != "call" or not number:
            return
        code = frame.f_code
        thread = threading.current_thread().name
        call = (number, thread, code)
        if call in seen:
            return
        seen.add(call)
        path = code.co_filename
        if not any(package in path for package in _PACKAGES) or _TESTING in path:
            return
        if code.co_name.startswith("<"):
            return
        fields = (
            str(number),
            os.path.basename(process),
            _DIGITS.sub("#", thread),
            path,
            str(code.co_firstlineno),
            code.co_qualname,
        )
        os.write(output, ("\t".join(fields) + "\n").encode())

    threading.setprofile(note)
    sys.setprofile(note)


if "BYTE_PATH_FOLDER" in os.environ:
    _record(Path(os.environ["BYTE_PATH_FOLDER"]))
