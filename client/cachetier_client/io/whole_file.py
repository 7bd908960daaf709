"""Write the file that a caller named: a regular one as a whole, anything else in place.

A rename would replace a device, a FIFO or a link by a regular file of that name. So only a regular
file, or a name that is not taken, gets its bytes by one; links are followed to it.
"""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

_OF_PROCESSES = ("/dev/", "/proc/")  # a link from there to a regular file is an open descriptor


@contextmanager
def whole_file(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Yield where to write the bytes of ``path``.

    A regular file appears whole when the context ends without an error, with the mode of the one
    that it replaces; else it stays as it was. It is not synced. A device, a FIFO or
    ``/dev/stdout`` is opened and written; what it took before an error cannot be taken back.

    Raises:
        OSError: It cannot be written.
    """
    mode = None
    with suppress(FileNotFoundError):
        mode = os.stat(path).st_mode
    is_open = os.path.abspath(path).startswith(_OF_PROCESSES)
    if mode is not None and (is_open or not stat.S_ISREG(mode)):
        with open(path, "wb") as out:
            yield out
        return
    target = Path(os.path.realpath(path))
    temporary = target.with_name(f".{target.name[:64]}.{secrets.token_hex(4)}")
    try:
        with open(temporary, "xb") as out:
            if mode is not None:
                os.fchmod(out.fileno(), stat.S_IMODE(mode))
            yield out
        os.replace(temporary, target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
