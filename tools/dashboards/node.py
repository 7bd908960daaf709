"""The page of one node: is my data safe, then how it flows, the remote, the cache, what fails."""

from __future__ import annotations

from tools.dashboards.node_health import CACHE, FAILING
from tools.dashboards.node_queries import NODE, RUNS, quantile, rate, state_of, with_declared
from tools.dashboards.panels import (
    BLUE,
    GREEN,
    RED,
    YELLOW,
    Dashboard,
    Panel,
    Query,
    Row,
    headline,
    variable,
)

STATES = {
    0: ("ok", GREEN),
    1: ("throttled", YELLOW),
    2: ("unreachable", RED),
    3: ("refused", RED),
    4: ("not asked", YELLOW),
}


EXPOSED = f"max(cachetier_run_exposure_seconds{{{NODE}}})"
OBJECTIVE = f"max(cachetier_exposure_objective_seconds{{{NODE}}})"

SAFE = Row(
    "Is my data safe?",
    [
        Panel(
            "Exposure against the objective",
            "The most training time that any run would lose with this node now, as a share of "
            "`exposure_objective`. At 100 % the alert CachetierExposureOverObjective follows.",
            [Query(f"({EXPOSED} or on () vector(0)) / on () {OBJECTIVE}")],
            unit="percentunit",
            kind="gauge",
            width=4,
            height=5,
            steps=((None, GREEN), (0.5, YELLOW), (1, RED)),
            at_most=1.5,
            runbook="exposure-over-objective",
        ),
        headline(
            "Everything durable in",
            "Until what is dirty now is at the durable remote, at the measured rate. "
            "`cannot tell`: nothing was sent lately, or the remote is away.",
            [Query(f'cachetier_drain_eta_seconds{{{NODE}, remote="durable"}}')],
            unit="s",
            steps=((None, BLUE),),
            when_empty="cannot tell",
        ),
        headline(
            "Not durable",
            "Acknowledged bytes that losing this node now would lose.",
            [Query(f"cachetier_dirty_bytes{{{NODE}}}")],
            unit="bytes",
            steps=((None, BLUE),),
        ),
        headline(
            "Oldest not durable",
            "How long the oldest dirty shard has waited for the remotes that are required.",
            [Query(f"cachetier_oldest_dirty_seconds{{{NODE}}}")],
            unit="s",
            steps=((None, BLUE),),
            runbook="oldest-dirty",
        ),
        headline(
            "Disk",
            "Fenced: a sync failed, so no more writes are taken until the disk is replaced.",
            [Query(f"cachetier_fenced{{{NODE}}}")],
            words={0: ("takes writes", GREEN), 1: ("FENCED", RED)},
            runbook="fenced",
        ),
        headline(
            "Damaged shards",
            "Shards whose only bytes fail their digest: they are neither served nor sent.",
            [Query(f"cachetier_quarantined_shards{{{NODE}}}")],
            steps=((None, GREEN), (1, RED)),
            runbook="damaged-shard",
        ),
        Panel(
            "Exposure of each run",
            "Training time that would be lost with this node; 0 while nothing newer than the last "
            "durable step is here. Dashed: the objective.",
            [
                Query(f"cachetier_run_exposure_seconds{{{RUNS}}}", "{{run}}"),
                Query(OBJECTIVE, "objective", dashed=True),
            ],
            unit="s",
            width=12,
            runbook="exposure-over-objective",
        ),
        Panel(
            "Since the last durable step of each run",
            "Age of the newest published checkpoint, from the begin of its save. It grows while a "
            "run computes; what matters is where it turns back.",
            [Query(f"cachetier_run_durable_age_seconds{{{RUNS}}}", "{{run}}")],
            unit="s",
            width=12,
        ),
        Panel(
            "Owed to each remote",
            "Bytes on this node that a remote is to get and does not have yet.",
            [],
            unit="bytes",
            width=12,
        ),
        Panel(
            "From the begin of a save to durable",
            "How long steps took until they were published, half of them and nearly all of them.",
            [
                Query(quantile("0.5", "durable_seconds"), "p50"),
                Query(quantile("0.99", "durable_seconds"), "p99"),
            ],
            unit="s",
            width=12,
        ),
    ],
)

FLOW = Row(
    "Flow",
    [
        Panel(
            "Bytes in and out",
            "What ranks put and the remotes verified. Where in stays above out the cache fills.",
            [
                Query(rate("put_bytes"), "put"),
                Query(rate("drained_bytes"), "drained to {{remote}}"),
                Query(rate("restored_bytes"), "restored"),
                Query(rate("range_read_bytes"), "read in ranges"),
            ],
            unit="Bps",
        ),
        Panel(
            "Put",
            "From the admission of a shard to its acknowledgement: what a rank waits for.",
            [
                Query(quantile("0.5", "put_seconds"), "p50"),
                Query(quantile("0.99", "put_seconds"), "p99"),
            ],
            unit="s",
        ),
        Panel(
            "Get",
            "From the request for a shard until its first byte can be read.",
            [
                Query(quantile("0.5", "get_seconds"), "p50"),
                Query(quantile("0.99", "get_seconds"), "p99"),
            ],
            unit="s",
        ),
        Panel(
            "Drain of a shard",
            "From the acknowledgement of a shard until it is verified at the remote.",
            [
                Query(quantile("0.5", "drain_seconds", ", remote"), "{{remote}} p50"),
                Query(quantile("0.99", "drain_seconds", ", remote"), "{{remote}} p99"),
            ],
            unit="s",
        ),
        Panel(
            "Bytes that need not be sent",
            "What compression saved, and what was copied inside the bucket.",
            [],
            unit="Bps",
        ),
        Panel(
            "Steps and shards",
            "Steps published by this node and shards verified, per second.",
            [],
            unit="ops",
        ),
    ],
)

REMOTE = Row(
    "Remote",
    [
        Panel(
            "State of the remotes",
            "As the drain finds them. Unreachable or refused: everything is kept and asked again.",
            [Query(state_of(), "{{remote}}")],
            kind="state-timeline",
            width=12,
            words=STATES,
            runbook="remote-unreachable",
        ),
        Panel(
            "Since the last progress",
            "While there is something to send. Ten minutes with a remote that is well: stalled.",
            [Query(f"cachetier_drain_last_progress_seconds{{{NODE}}}", "{{remote}}")],
            unit="s",
            width=12,
            steps=((None, GREEN), (600, RED)),
            runbook="drain-stalled",
        ),
        Panel(
            "Throttled requests",
            "Requests that the store answered with `slow down`.",
            [],
            unit="reqps",
            runbook="throttled",
        ),
        Panel(
            "Pace",
            "Writes a second that the drain allows itself. Nothing is drawn without a limit.",
            [Query(f"cachetier_drain_writes_per_second{{{NODE}}} < Inf", "{{remote}}")],
            unit="reqps",
            when_empty="no limit",
            runbook="throttled",
        ),
        Panel(
            "Requests at once",
            "How many the drain may have under way.",
            [],
        ),
    ],
)

DASHBOARD = Dashboard(
    "cachetier-node",
    "cachetier: node",
    "One node: is my data safe, how does it flow, and what is wrong.",
    [with_declared(row) for row in (SAFE, FLOW, REMOTE, CACHE, FAILING)],
    [
        variable(
            "instance", "Node", "label_values(cachetier_capacity_bytes, instance)", many=False
        ),
        variable(
            "run",
            "Run",
            'label_values(cachetier_run_exposure_seconds{instance="$instance"}, run)',
            many=True,
        ),
    ],
)
