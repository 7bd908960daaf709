"""Put checkpoint shards into this node's cachetier, and get them back.

    from cachetier_client import Client

    with Client() as client:
        with client.checkpoint("my-run", step) as checkpoint:
            checkpoint.put(tensor, "model/rank-0")
        newest = client.latest("my-run", level="local")
        restored = client.get_shard("my-run", newest.step, "model/rank-0")

The same calls are functions of this module, ``cachetier_client.put_shard(...)`` and so on, on one
client that the process makes at first use. ``cachetier_client.aio`` has a client to await.

Where the service is (``CACHETIER_URL``), which run this is (``CACHETIER_RUN``) and which rank come
from the environment.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from cachetier_client.errors import (
    AbortedError,
    BackgroundError,
    BackpressureError,
    BusyError,
    CachetierClientError,
    DeadlineError,
    DigestMismatchError,
    FencedError,
    FixCallError,
    ForbiddenError,
    GiveUpError,
    IncompleteError,
    IntegrityError,
    InvalidNameError,
    InvalidRequestError,
    LocalOnlyError,
    LookAtRunError,
    NotDurableError,
    NotFoundError,
    OpenForWritingError,
    PinnedError,
    ProtocolMismatchError,
    RemoteRefusedError,
    RemoteUnavailableError,
    SaveIdentityError,
    SaveSupersededError,
    SealedError,
    ServiceUnavailableError,
    SizeMismatchError,
    StagedIOError,
    StepPublishedError,
    StoppingError,
    UnflushedStepsError,
    WaitError,
    error_for,
)
from cachetier_client.trace_context import traced

if TYPE_CHECKING:
    from cachetier_client.cadence import Cadence
    from cachetier_client.checkpoints import Checkpoint
    from cachetier_client.client import Client
    from cachetier_client.default import (
        checkpoint,
        default_client,
        flush,
        get_shard,
        latest,
        put_shard,
        seal,
        steps,
        training_step,
        wait,
    )
    from cachetier_client.io.ring import Ring
    from cachetier_client.results import (
        Incident,
        LevelReached,
        PinInfo,
        Receipt,
        ShardInfo,
        StepInfo,
        UnflushedStep,
    )
    from cachetier_client.streams.reader import ShardReader
    from cachetier_client.streams.writer import ShardWriter

# Imported when first asked for: who wants only the errors, or a digest, waits for no transport.
_HOMES = {
    "Cadence": "cadence",
    "Checkpoint": "checkpoints",
    "Client": "client",
    "Incident": "results",
    "LevelReached": "results",
    "PinInfo": "results",
    "Receipt": "results",
    "Ring": "io.ring",
    "ShardInfo": "results",
    "ShardReader": "streams.reader",
    "ShardWriter": "streams.writer",
    "StepInfo": "results",
    "UnflushedStep": "results",
    "checkpoint": "default",
    "default_client": "default",
    "flush": "default",
    "get_shard": "default",
    "latest": "default",
    "put_shard": "default",
    "seal": "default",
    "steps": "default",
    "training_step": "default",
    "wait": "default",
}

__all__ = [
    "Client",
    "Checkpoint",
    "Ring",
    "ShardReader",
    "ShardWriter",
    "default_client",
    "put_shard",
    "checkpoint",
    "seal",
    "wait",
    "flush",
    "steps",
    "latest",
    "get_shard",
    "training_step",
    "traced",
    "Cadence",
    "Incident",
    "LevelReached",
    "PinInfo",
    "Receipt",
    "ShardInfo",
    "StepInfo",
    "UnflushedStep",
    "CachetierClientError",
    "WaitError",
    "BackpressureError",
    "BusyError",
    "DeadlineError",
    "NotDurableError",
    "RemoteUnavailableError",
    "ServiceUnavailableError",
    "StoppingError",
    "FixCallError",
    "DigestMismatchError",
    "ForbiddenError",
    "InvalidNameError",
    "InvalidRequestError",
    "OpenForWritingError",
    "ProtocolMismatchError",
    "SaveIdentityError",
    "SizeMismatchError",
    "LookAtRunError",
    "AbortedError",
    "IncompleteError",
    "LocalOnlyError",
    "NotFoundError",
    "PinnedError",
    "SaveSupersededError",
    "SealedError",
    "StepPublishedError",
    "UnflushedStepsError",
    "GiveUpError",
    "BackgroundError",
    "FencedError",
    "IntegrityError",
    "RemoteRefusedError",
    "StagedIOError",
    "error_for",
]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
