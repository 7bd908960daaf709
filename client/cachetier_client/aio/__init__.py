"""The client for asyncio, in the extra ``async``."""

from cachetier_client.aio.client import AsyncCheckpoint, AsyncClient, AsyncShardReader

__all__ = ["AsyncCheckpoint", "AsyncClient", "AsyncShardReader"]
