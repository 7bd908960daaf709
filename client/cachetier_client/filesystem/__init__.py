"""``cachetier://`` for fsspec: steps as folders of files."""

from cachetier_client.filesystem.filesystem import CachetierFileSystem

__all__ = ["CachetierFileSystem"]
