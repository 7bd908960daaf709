"""The request and response models of the JSON routes, and of the OpenAPI description."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from cachetier_client.identity.names import COUNT_LIMIT
from pydantic import BaseModel, ConfigDict, Field

LevelName = Literal["memory", "local", "replicated", "durable"]
Count = Annotated[int, Field(ge=0, lt=COUNT_LIMIT, strict=True)]
Seconds = Annotated[float, Field(ge=0, le=7 * 86_400)]


class _Request(BaseModel):
    model_config = ConfigDict(extra="forbid")


class SealRequest(_Request):
    """The rank and save whose part is sealed or aborted."""

    rank: Count = 0
    world_size: Annotated[Count, Field(ge=1)] = 1
    save_id: str = "http"
    ranks_on_node: Annotated[Count, Field(ge=1)] | None = None
    overwrite: bool = False
    follows: Annotated[bool, Field(strict=True)] = False


class FlushRequest(_Request):
    """The run and step to flush; everything when ``run`` is null."""

    run: str | None = None
    step: Count | None = None
    timeout_seconds: Seconds = 60.0


class LeaveRequest(_Request):
    """How long to wait until all is durable; ``stay``: the node is left no more."""

    stay: Annotated[bool, Field(strict=True)] = False
    timeout_seconds: Seconds = 60.0


class RestoreRequest(_Request):
    """The ranks of a step to bring back; all when no ``ranks`` are named."""

    ranks: list[Count] = []
    timeout_seconds: Seconds = 60.0


class IncidentsRequest(_Request):
    """The client that asks for incidents of its runs; ``clear``: it has seen them."""

    client_id: Annotated[str, Field(min_length=1, max_length=64)]
    clear: Annotated[bool, Field(strict=True)] = True


class ForgetRequest(_Request):
    """The node whose notes are removed, by host name or store id; of every run if none is named."""

    node: str
    run: str | None = None


class TokenRequest(_Request):
    """For which principal to make a token; ``expires_seconds`` null: it never ends."""

    principal: str
    expires_seconds: Annotated[float, Field(gt=0, le=1e12)] | None = None


class PhaseRequest(_Request):
    """Whether a rank, told apart by its ``client_id``, is in a training step."""

    client_id: Annotated[str, Field(min_length=1, max_length=64)]
    busy: Annotated[bool, Field(strict=True)]


class FallbackRequest(_Request):
    """How much a client put straight to S3 since it last said so."""

    shards: Count
    size_bytes: Count


class RunsModel(BaseModel):
    runs: list[str]
    mounts: list[str]


class ShardModel(BaseModel):
    name: str
    rank: int
    size_bytes: int
    digest: str
    state: str


class StepModel(BaseModel):
    run: str
    step: int
    save_id: str
    state: str
    levels: list[str]
    ranks: list[int]
    world_size: int
    shards: int
    size_bytes: int
    dirty_bytes: int
    started_at: float
    sealed_at: float | None
    published_at: float | None
    pinned: bool = False
    checked_at: float | None = None


class StepWithShards(BaseModel):
    """The step object, its ``shards`` listed instead of counted."""

    model_config = ConfigDict(extra="allow")

    run: str
    step: int
    shards: list[ShardModel]


class Steps(BaseModel):
    """The steps, and where that was asked how many more the bucket has; null: nobody can say."""

    steps: list[StepModel]
    elsewhere: int | None = None


class Latest(BaseModel):
    """The newest step at the level, and newer ones: of this node, of remotes, of other nodes."""

    step: StepModel | None
    newer_local: int | None = None
    newer_remote: int | None = None
    unflushed: list[dict[str, Any]] | None = None


class OneStep(BaseModel):
    step: StepWithShards


class Deleted(BaseModel):
    deleted_shards: int


class CollectRequest(_Request):
    """The age of rubbish to collect; with ``dry_run`` it is only shown."""

    dry_run: Annotated[bool, Field(strict=True)] = True
    older_than_seconds: Annotated[float, Field(ge=0)] = 86_400.0


class PinModel(BaseModel):
    """A pinned step; ``local_bytes`` of it lie on this node."""

    run: str
    step: int
    pinned_at: float
    shards: int
    local_shards: int
    size_bytes: int
    local_bytes: int


class Pinned(BaseModel):
    pin: PinModel


class Unpinned(BaseModel):
    was_pinned: bool


class PinsModel(BaseModel):
    pins: list[PinModel]


class CollectionModel(BaseModel):
    """The result of a collection; ``rubbish`` lists the first 1000 of ``found``."""

    dry_run: bool
    found: int
    size_bytes: int
    objects: int
    rubbish: list[dict[str, Any]]
    left: list[dict[str, Any]]
    unanswered: list[str]


class Collected(BaseModel):
    collected: CollectionModel


class Sealed(BaseModel):
    sealed_ranks: list[int]


class Reached(BaseModel):
    level: str
    age_seconds: float


class PendingStepModel(BaseModel):
    run: str
    step: int
    shards: int
    size_bytes: int


class ComingBack(BaseModel):
    """The part of a step that is not here yet."""

    shards: int
    size_bytes: int


class Flushed(BaseModel):
    pending_shards: int
    pending_bytes: int
    pending_steps: list[PendingStepModel]


class IncidentsModel(BaseModel):
    incidents: list[dict[str, Any]]


class ReceiptModel(BaseModel):
    run: str
    step: int
    name: str
    save_id: str
    size_bytes: int
    digest: str
    level: str


class Problem(BaseModel):
    """An error; ``code`` is stable, ``hint`` says what to do next."""

    model_config = ConfigDict(extra="allow")

    type: str
    title: str
    status: int
    detail: str
    code: str
    hint: str
