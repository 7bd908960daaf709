"""Hard links that keep a finished step's files from a rotation until they are copied.

A trainer may delete a checkpoint before its turn has come. Links in a hidden folder beside it keep
the bytes. A link is nothing but a second name: it is never acknowledged, only what was copied from
it is, and who writes to the file by its first name changes what the link shows. So each copy is
checked as any other.

The links of a step are made in a folder of another name first: what is under its own is all there.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Sequence

from cachetier_client.adopt.sources import SourceFile

FOLDER = ".cachetier-watch"
_UNFINISHED = "making-"


class Bridge:
    """The links below one watched folder."""

    def __init__(self, root: str) -> None:
        self._root = root
        self.folder = os.path.join(root, FOLDER)

    def hold(self, path: str, key: str, files: Sequence[SourceFile]) -> str | None:
        """Link a step's files; return where they are then, or None where links cannot be made.

        Args:
            path: The step's folder or file, below the watched folder.
            key: Names the links for ``release``; the same key, the same files.
            files: What is in it.

        Raises:
            FileNotFoundError: One of them is gone.
        """
        held = os.path.join(self.folder, key)
        making = os.path.join(self.folder, _UNFINISHED + key)
        if os.path.exists(held):
            return os.path.join(held, path)
        try:
            for file in files:
                below = os.path.relpath(file.path, self._root)
                os.makedirs(os.path.dirname(os.path.join(making, below)), exist_ok=True)
                os.link(file.path, os.path.join(making, below), follow_symlinks=False)
            os.rename(making, held)
        except FileNotFoundError:
            self.release(key)
            raise
        except OSError:  # not on this file system, or not on this disk any more
            self.release(key)
            return None
        return os.path.join(held, path)

    def release(self, key: str) -> None:
        """Remove the links of a step, if there are any; of a removal cut short no half is kept."""
        going = os.path.join(self.folder, _UNFINISHED + key)
        with contextlib.suppress(OSError):
            os.rename(os.path.join(self.folder, key), going)
        shutil.rmtree(going, ignore_errors=True)

    def kept(self) -> list[str]:
        """Return the folders of links that an earlier process left, oldest first.

        What it did not finish is removed.
        """
        try:
            keys = sorted(os.listdir(self.folder), key=self._made_at)
        except FileNotFoundError:
            return []
        for key in keys:
            if key.startswith(_UNFINISHED):
                shutil.rmtree(os.path.join(self.folder, key), ignore_errors=True)
        return [key for key in keys if not key.startswith(_UNFINISHED)]

    def _made_at(self, key: str) -> int:
        return os.stat(os.path.join(self.folder, key)).st_mtime_ns

    def close(self) -> None:
        """Remove the hidden folder, if nothing is held any more."""
        with contextlib.suppress(OSError):
            os.rmdir(self.folder)
