"""A trace of each checkpoint, if ``OTEL_TRACES_EXPORTER=otlp`` asks for it.

Off, nothing of OpenTelemetry's SDK is imported. On, the events of the log are also made into spans:
see ``spans``. Traces are a convenience: where they cannot be sent, nothing waits for them.

Source: docs/logs.md, "Traces".
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from cachetier.errors import ConfigError
from cachetier.telemetry import log_format

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter

VARIABLE = "OTEL_TRACES_EXPORTER"
PARENTS_NAME = "traces.json"
CLOSE_SECONDS = 3.0


def open_tracing(
    store_id: str, directory: Path, *, exporter: SpanExporter | None = None
) -> Callable[[], None]:
    """Begin to trace, if the environment asks for it; return what ends it and sends the rest.

    Args:
        store_id: Which node this is, to tell its spans from those of others in the same trace.
        directory: Where is kept, over a restart, which trace a save belongs to.
        exporter: Where spans go; by OTLP over HTTP to where the environment says without it.

    Raises:
        ConfigError: OpenTelemetry is not installed, or its variables make no sense.
    """
    if "otlp" not in os.environ.get(VARIABLE, "").split(","):
        return lambda: None
    try:
        from cachetier.telemetry.spans import SaveSpans, provider_for

        provider = provider_for(store_id, exporter)
    except ImportError as error:
        raise ConfigError(
            f"{VARIABLE}=otlp, and OpenTelemetry is not installed: {error}",
            hint=f"Install the extra `otel`, as docs/install.md says, or unset {VARIABLE}.",
        ) from error
    except ValueError as error:
        raise ConfigError(
            f"OpenTelemetry refuses its settings: {error}",
            hint=f"Correct the OTEL_* variables of the environment, or unset {VARIABLE}.",
        ) from error
    spans = SaveSpans(provider, store_id, directory / PARENTS_NAME)
    stop_listening = log_format.listen(spans, logging.DEBUG)

    def close() -> None:
        stop_listening()
        # A collector that does not answer must not hold up the stop of the service.
        ending = threading.Thread(target=provider.shutdown, name="trace-end", daemon=True)
        ending.start()
        ending.join(CLOSE_SECONDS)

    return close
