"""The page of all nodes and their runs: which run is exposed, and which nodes hold it up."""

from __future__ import annotations

from tools.dashboards.node_queries import WINDOW
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

NODES = 'instance=~"$instance"'
RUNS = f'{NODES}, run=~"$run"'
OBJECTIVE = f"min(cachetier_exposure_objective_seconds{{{NODES}}})"


def total(metric: str) -> str:
    return f"sum(rate(cachetier_{metric}_total{{{NODES}}}[{WINDOW}]))"


def quantile(share: str, metric: str) -> str:
    per = f"sum by (le) (rate(cachetier_{metric}_bucket{{{NODES}}}[{WINDOW}]))"
    return f"histogram_quantile({share}, {per})"


def nodes_in(state: str) -> str:
    found = f'cachetier_remote_state{{{NODES}, remote="durable", state=~"{state}"}} == 1'
    return f"count({found}) or on () vector(0)"


SAFE = Row(
    "Is the training safe?",
    [
        headline(
            "Runs over the objective",
            "Runs that would lose more training time than `exposure_objective` with some node now.",
            [
                Query(
                    "count(count by (run) (cachetier_run_exposure_seconds"
                    f"{{{NODES}}} > on (job, instance) group_left () "
                    "cachetier_exposure_objective_seconds)) or on () vector(0)"
                )
            ],
            steps=((None, GREEN), (1, RED)),
            runbook="exposure-over-objective",
        ),
        headline(
            "Worst exposure",
            "The most training time that any run would lose with the worst node.",
            [Query(f"max(cachetier_run_exposure_seconds{{{NODES}}}) or on () vector(0)")],
            unit="s",
            steps=((None, BLUE),),
            runbook="exposure-over-objective",
        ),
        headline(
            "Not durable",
            "Acknowledged bytes that are only on their nodes.",
            [Query(f"sum(cachetier_dirty_bytes{{{NODES}}})")],
            unit="bytes",
            steps=((None, BLUE),),
        ),
        headline(
            "Everything durable in",
            "The slowest node, at its measured rate; nodes that cannot tell are left out.",
            [Query(f'max(cachetier_drain_eta_seconds{{{NODES}, remote="durable"}})')],
            unit="s",
            steps=((None, BLUE),),
            when_empty="cannot tell",
        ),
        headline(
            "Nodes up",
            "Targets that answer Prometheus, of all.",
            [
                Query('sum(up{job="cachetier"})', "up"),
                Query('count(up{job="cachetier"})', "of"),
            ],
            steps=((None, BLUE),),
            runbook="down",
        ),
        headline(
            "Damaged shards",
            "Shards whose only bytes fail their digest, on all nodes.",
            [Query(f"sum(cachetier_quarantined_shards{{{NODES}}})")],
            steps=((None, GREEN), (1, RED)),
            runbook="damaged-shard",
        ),
        Panel(
            "Exposure of each run",
            "The worst node of each run. Dashed: the smallest objective of any node.",
            [
                Query(f"max by (run) (cachetier_run_exposure_seconds{{{RUNS}}})", "{{run}}"),
                Query(OBJECTIVE, "objective", dashed=True),
            ],
            unit="s",
            width=12,
            height=8,
            runbook="exposure-over-objective",
        ),
        Panel(
            "Runs",
            "For each run: the worst exposure, the age of its newest durable step as the node that "
            "knows best has it, and what is not durable yet on all nodes.",
            [
                Query(f"max by (run) (cachetier_run_exposure_seconds{{{RUNS}}})"),
                Query(f"min by (run) (cachetier_run_durable_age_seconds{{{RUNS}}})"),
                Query(f"sum by (run) (cachetier_run_dirty_bytes{{{RUNS}}})"),
                Query(f"count by (run) (cachetier_run_dirty_bytes{{{RUNS}}})"),
            ],
            kind="table",
            width=12,
            height=8,
            names={
                "run": ("run", "string"),
                "Value #A": ("exposure", "s"),
                "Value #B": ("since durable", "s"),
                "Value #C": ("not durable", "bytes"),
                "Value #D": ("nodes", "short"),
            },
            runbook="exposure-over-objective",
        ),
    ],
)

FIRING = Row(
    "What is wrong",
    [
        Panel(
            "Alerts",
            "What fires now. Each has a runbook of the same name.",
            [Query('ALERTS{alertname=~"Cachetier.*", alertstate="firing"}')],
            kind="table",
            width=12,
            when_empty="none",
        ),
        Panel(
            "Nodes by the state of the durable remote",
            "As the requests of each node find it; nobody asked it lately: not asked.",
            [
                Query(nodes_in("ok"), "ok"),
                Query(nodes_in("throttled"), "throttled"),
                Query(nodes_in("unreachable"), "unreachable"),
                Query(nodes_in("refused"), "refused"),
                Query(nodes_in("unasked"), "not asked"),
            ],
            width=12,
            runbook="remote-unreachable",
        ),
        Panel(
            "Nodes that need a person",
            "Fenced: the disk failed. Full: puts wait for room. Incomplete: a checkpoint that "
            "not all ranks sealed. Blind: the node cannot read its catalog.",
            [
                Query(f"sum(cachetier_fenced{{{NODES}}})", "fenced"),
                Query(f"count(cachetier_waiting_puts_bytes{{{NODES}}} > 0) or vector(0)", "full"),
                Query(
                    f"count(cachetier_incomplete_steps{{{NODES}}} > 0) or vector(0)", "incomplete"
                ),
                Query(
                    "count(sum by (instance) "
                    f"(increase(cachetier_scrape_errors_total{{{NODES}}}[5m])) > 0) or vector(0)",
                    "blind",
                ),
            ],
            kind="stat",
            width=8,
            steps=((None, GREEN), (1, RED)),
        ),
        Panel(
            "Errors at the doors",
            "Requests answered with an error, by code, on all nodes.",
            [
                Query(
                    f"sum by (code) (rate(cachetier_errors_total{{{NODES}}}[{WINDOW}])) > 0",
                    "{{code}}",
                )
            ],
            unit="reqps",
            when_empty="none",
        ),
        Panel(
            "Restarts and shards that went past a service",
            "Starts of services in 30 minutes, and shards that ranks put straight to S3.",
            [
                Query(
                    f"sum(changes(cachetier_start_time_seconds{{{NODES}}}[30m]))",
                    "starts, 30 min",
                ),
                Query(
                    f"sum(increase(cachetier_fallback_shards_total{{{NODES}}}[{WINDOW}]))",
                    "shards past a service",
                ),
            ],
            runbook="restarting",
        ),
    ],
)

FLOW = Row(
    "Flow",
    [
        Panel(
            "Bytes in and out",
            "What ranks put and the durable remotes verified, on all nodes.",
            [
                Query(total("put_bytes"), "put"),
                Query(
                    f"sum by (remote) (rate(cachetier_drained_bytes_total{{{NODES}}}[{WINDOW}]))",
                    "drained to {{remote}}",
                ),
                Query(total("restored_bytes"), "restored"),
            ],
            unit="Bps",
        ),
        Panel(
            "Put",
            "From the admission of a shard to its acknowledgement, on all nodes.",
            [
                Query(quantile("0.5", "put_seconds"), "p50"),
                Query(quantile("0.99", "put_seconds"), "p99"),
            ],
            unit="s",
        ),
        Panel(
            "From the begin of a save to durable",
            "How long steps took until they were published.",
            [
                Query(quantile("0.5", "durable_seconds"), "p50"),
                Query(quantile("0.99", "durable_seconds"), "p99"),
            ],
            unit="s",
        ),
        Panel(
            "Throttled requests",
            "Requests that the stores answered with `slow down`, on all nodes.",
            [
                Query(
                    f"sum by (remote) (rate(cachetier_throttled_total{{{NODES}}}[{WINDOW}]))",
                    "{{remote}}",
                )
            ],
            unit="reqps",
            runbook="throttled",
        ),
        Panel(
            "Owed to each remote",
            "Bytes that a remote is to get and does not have yet, on all nodes.",
            [Query(f"sum by (remote) (cachetier_remote_pending_bytes{{{NODES}}})", "{{remote}}")],
            unit="bytes",
        ),
        Panel(
            "Versions",
            "Nodes by what they run.",
            [Query(f"count by (version) (cachetier_build_info{{{NODES}}})", "{{version}}")],
        ),
    ],
)

WORST = Row(
    "The ten worst nodes",
    [
        Panel(
            "By exposure",
            "Nodes whose loss would cost most training time.",
            [
                Query(
                    f"topk(10, max by (instance) (cachetier_run_exposure_seconds{{{NODES}}}))",
                    "{{instance}}",
                )
            ],
            unit="s",
        ),
        Panel(
            "By share of the cache that cannot be evicted",
            "Nodes that will be full first.",
            [
                Query(
                    f"topk(10, (cachetier_used_bytes{{{NODES}}} - on (job, instance) "
                    "cachetier_evictable_bytes) / on (job, instance) cachetier_capacity_bytes)",
                    "{{instance}}",
                )
            ],
            unit="percentunit",
            steps=((None, GREEN), (0.6, YELLOW), (0.8, RED)),
            runbook="nearly-full",
        ),
        Panel(
            "By the oldest shard that waits",
            "Nodes whose drain is furthest behind.",
            [Query(f"topk(10, cachetier_oldest_dirty_seconds{{{NODES}}})", "{{instance}}")],
            unit="s",
            runbook="oldest-dirty",
        ),
    ],
)

DASHBOARD = Dashboard(
    "cachetier-fleet",
    "cachetier: fleet and runs",
    "All nodes: which run is exposed, which nodes hold it up, and what is wrong.",
    [SAFE, FIRING, FLOW, WORST],
    [
        variable(
            "instance", "Nodes", "label_values(cachetier_capacity_bytes, instance)", many=True
        ),
        variable(
            "run",
            "Run",
            'label_values(cachetier_run_exposure_seconds{instance=~"$instance"}, run)',
            many=True,
        ),
    ],
)
