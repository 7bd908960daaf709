"""The remotes that the settings name: the durable one and the replicas."""

from __future__ import annotations

from cachetier.config.settings import Settings
from cachetier.model.names import DURABLE
from cachetier.remote.settings import RemoteSettings


def remote_settings(settings: Settings) -> RemoteSettings:
    return RemoteSettings(
        name=DURABLE,
        bucket=settings.bucket,
        prefix=settings.prefix,
        endpoint=settings.remote_endpoint,
        region=settings.remote_region,
        verify=settings.remote_verify,
        conditional_writes=settings.conditional_writes,
        spread=settings.key_layout == "spread",
        at_rest=settings.at_rest,
        addressing_style=settings.remote_addressing_style,
    )


def replica_settings(settings: Settings) -> list[RemoteSettings]:
    """Return the replicas in the order of the settings, which is that of nearness."""
    return [
        RemoteSettings(
            name=name,
            bucket=replica.bucket,
            prefix=replica.prefix,
            endpoint=replica.endpoint,
            region=replica.region,
            verify=replica.verify,
            conditional_writes=replica.conditional_writes,
            spread=replica.key_layout == "spread",
            role="replica",
            required=replica.required,
            profile=replica.profile,
            at_rest=replica.at_rest,
            addressing_style=replica.addressing_style,
        )
        for name, replica in settings.replicas.items()
    ]


def all_remotes(settings: Settings) -> list[RemoteSettings]:
    """Return the durable remote, and then the replicas."""
    return [remote_settings(settings), *replica_settings(settings)]
