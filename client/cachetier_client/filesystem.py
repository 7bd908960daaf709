"""``cachetier://`` for fsspec."""

from __future__ import annotations

from fsspec import AbstractFileSystem


class CachetierFileSystem(AbstractFileSystem):  # type: ignore[misc]
    """To be written."""
