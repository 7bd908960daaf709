"""The lower half of the page of one node: how full its cache is, and what fails."""

from __future__ import annotations

from tools.dashboards.node_queries import NODE, WINDOW, rate
from tools.dashboards.panels import BLUE, GREEN, RED, YELLOW, Panel, Query, Row

CACHE = Row(
    "Cache",
    [
        Panel(
            "Room",
            "Above the high watermark what can go is evicted, the rest never is: not durable, "
            "pinned, damaged, unwanted, or being written.",
            [
                Query(f"cachetier_used_bytes{{{NODE}}}", "used"),
                Query(f"cachetier_dirty_bytes{{{NODE}}}", "not durable"),
                Query(f"cachetier_clean_bytes{{{NODE}}}", "durable"),
                Query(f"cachetier_evictable_bytes{{{NODE}}}", "can be evicted"),
                Query(f"cachetier_local_only_bytes{{{NODE}}}", "kept by a policy"),
                Query(f"cachetier_capacity_bytes{{{NODE}}}", "capacity", dashed=True),
            ],
            unit="bytes",
            width=12,
        ),
        Panel(
            "Share of the cache that cannot be evicted",
            "At 80 % a warning; when it is all, puts wait.",
            [
                Query(
                    f"(cachetier_used_bytes{{{NODE}}} - cachetier_evictable_bytes{{{NODE}}}) "
                    f"/ cachetier_capacity_bytes{{{NODE}}}"
                )
            ],
            unit="percentunit",
            kind="gauge",
            width=4,
            steps=((None, GREEN), (0.6, YELLOW), (0.8, RED)),
            at_most=1,
            runbook="nearly-full",
        ),
        Panel(
            "Puts that wait",
            "Bytes that puts wait for room for, and puts that were turned away.",
            [
                Query(f"cachetier_waiting_puts_bytes{{{NODE}}}", "waiting bytes"),
                Query(f"increase(cachetier_backpressure_total{{{NODE}}}[{WINDOW}])", "turned away"),
            ],
            unit="bytes",
            width=8,
            names={"turned away": ("turned away", "short")},
            runbook="puts-wait",
        ),
        Panel(
            "Evicted",
            "Bytes of clean shards that made room.",
            [Query(rate("evicted_bytes"), "evicted")],
            unit="Bps",
        ),
        Panel(
            "Kept here",
            "Steps that are pinned, and local-only steps removed to make room.",
            [
                Query(f"cachetier_pinned_steps{{{NODE}}}", "pinned"),
                Query(
                    f"increase(cachetier_removed_local_only_steps_total{{{NODE}}}[{WINDOW}])",
                    "local-only removed",
                ),
            ],
        ),
        Panel(
            "Incomplete checkpoints",
            "Not sealed by all ranks, and for 30 minutes nothing more of them came.",
            [Query(f"cachetier_incomplete_steps{{{NODE}}}", "steps")],
            steps=((None, GREEN), (1, RED)),
            runbook="incomplete-checkpoint",
        ),
    ],
)

FAILING = Row(
    "What fails",
    [
        Panel(
            "Errors at the doors",
            "Requests answered with an error, by code. Codes are those of docs/protocol.md.",
            [Query(f"rate(cachetier_errors_total{{{NODE}}}[{WINDOW}]) > 0", "{{door}} {{code}}")],
            unit="reqps",
            when_empty="none",
        ),
        Panel(
            "Writes to the disk that failed",
            "A failed sync or catalog transaction fences the store; a failed write fails its put.",
            [Query(f"increase(cachetier_write_errors_total{{{NODE}}}[{WINDOW}])", "{{operation}}")],
            runbook="write-errors",
        ),
        Panel(
            "Attempts to drain that failed",
            "Each is repeated, for ever. `cachetier status` shows the last error.",
            [],
            unit="ops",
            runbook="drain-stalled",
        ),
        Panel(
            "Copies passed over by restores",
            "A restore tried the next copy, because this one was away, missing or damaged.",
            [
                Query(
                    f"increase(cachetier_restore_fallbacks_total{{{NODE}}}[{WINDOW}])",
                    "{{remote}} {{reason}}",
                )
            ],
            when_empty="none",
            runbook="damaged-copy",
        ),
        Panel(
            "Saved past this service",
            "Shards that ranks put straight to S3 as the service did not answer.",
            [Query(f"increase(cachetier_fallback_shards_total{{{NODE}}}[{WINDOW}])", "shards")],
            runbook="bypassed",
        ),
        Panel(
            "Starts",
            "Starts of the service, and of its drain after it died.",
            [
                Query(f"changes(cachetier_start_time_seconds{{{NODE}}}[30m])", "service, 30 min"),
                Query(f"increase(cachetier_drain_restarts_total{{{NODE}}}[30m])", "drain, 30 min"),
            ],
            runbook="restarting",
        ),
        Panel(
            "Scrapes that lack figures",
            "The node could not read its own catalog: its gauges are missing, and so are alerts.",
            [Query(f"increase(cachetier_scrape_errors_total{{{NODE}}}[{WINDOW}])", "{{source}}")],
            steps=((None, GREEN), (1, RED)),
            runbook="figures-missing",
        ),
        Panel(
            "Connections",
            "Open connections at both doors, and ranks that say they are in a training step.",
            [
                Query(f"cachetier_open_connections{{{NODE}}}", "connections"),
                Query(f"cachetier_training_busy{{{NODE}}}", "busy ranks"),
            ],
        ),
        Panel(
            "Held back for training",
            "Threads of the drain that waited because training was busy: 1 is one whole thread.",
            [Query(rate("drain_slowed_seconds"), "threads")],
        ),
        Panel(
            "Version",
            "What runs here.",
            [Query(f"cachetier_build_info{{{NODE}}}", "{{version}}")],
            kind="stat",
            width=8,
            steps=((None, BLUE),),
            by_name=True,
        ),
    ],
)
