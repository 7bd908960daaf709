"""Names that only the service knows; the grammar is ``cachetier_client.identity.names``."""

from __future__ import annotations

DURABLE = "durable"  # the remote that is the system of record: no replica may be called so


def is_hidden(run: str) -> bool:
    """Return whether ``run`` begins with a dot: a trial, such as ``.bench``, and no training."""
    return run.startswith(".")
