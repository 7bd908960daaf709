"""Settings of a node whose cache is smaller than people may make it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from cachetier.config.settings import Settings, load


def small_node(given: Mapping[str, Any]) -> Settings:
    """Return the settings that ``given`` says; its ``capacity`` may be below the least of all."""
    others = {name: value for name, value in given.items() if name != "capacity"}
    settings = load(others)
    return replace(settings, capacity=given.get("capacity", settings.capacity))
