"""What each part of the node is told, from the settings; ``service`` puts the parts together."""

from __future__ import annotations

from cachetier.config import Settings
from cachetier.cpus import default_threads, parsed_cpus
from cachetier.drain.loop import Size
from cachetier.drain.supervisor import DrainSettings
from cachetier.model.policy import Policy
from cachetier.remote.settings import RemoteSettings

REMOTE_NAME = "durable"


def remote_settings(settings: Settings) -> RemoteSettings:
    return RemoteSettings(
        name=REMOTE_NAME,
        bucket=settings.bucket,
        prefix=settings.prefix,
        endpoint=settings.remote_endpoint,
        region=settings.remote_region,
        verify=settings.remote_verify,
        conditional_writes=settings.conditional_writes,
        spread=settings.key_layout == "spread",
    )


def drain_settings(settings: Settings, remote: RemoteSettings) -> DrainSettings:
    size = Size(
        uploads=settings.drain_workers,
        threads=settings.drain_threads or default_threads(),
        zstd_level=settings.zstd_level,
    )
    return DrainSettings(
        remote,
        settings.cache_dir,
        size,
        parsed_cpus(settings.drain_cpus),
        max_rate=settings.max_rate,
        windows=settings.windows,
        run_weights=tuple(settings.run_weights.items()),
    )


def policy_of(settings: Settings) -> Policy:
    return Policy(settings.durable_every, settings.supersede, settings.keep_local)
