"""Names that only the service knows; the grammar is ``cachetier_client.identity.names``."""

from __future__ import annotations

STORE_ID_NAME = "store-id"  # the file in the cache directory that says which store it is
DURABLE = "durable"  # the remote that is the system of record: no replica may be called so
PEERS_NAME = "peers"  # the replica that the nodes of the cluster are to each other


def is_hidden(run: str) -> bool:
    """Return whether ``run`` begins with a dot: a trial, such as ``.bench``, and no training."""
    return run.startswith(".")
