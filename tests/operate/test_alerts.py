"""What is in deploy/ for Prometheus: that it loads, and when each alert fires."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.operate.prometheus import DEPLOY, adapted, needs_prometheus, promtool
from tests.operate.rules import RUNBOOKS, alerts, page_of


def test_every_alert_says_how_urgent_it_is_what_to_do_and_where_to_read_on() -> None:
    for rule in alerts():
        annotations = rule["annotations"]
        assert rule["labels"]["severity"] in ("critical", "warning"), rule
        assert annotations.keys() == {"summary", "action", "runbook"}, rule
        assert annotations["runbook"] == f"docs/runbooks/{page_of(rule['alert'])}"
        assert (RUNBOOKS / page_of(rule["alert"])).is_file(), rule["alert"]


def test_every_alert_has_a_test_that_sees_it_fire() -> None:
    tests = (DEPLOY / "alerts_test.yml").read_text(encoding="utf-8")
    fired = set(re.findall(r'alertname="(\w+)"', tests))

    assert fired == {rule["alert"] for rule in alerts()}


@needs_prometheus
def test_each_alert_fires_when_it_should_and_resolves() -> None:
    assert "SUCCESS" in promtool("test", "rules", str(DEPLOY / "alerts_test.yml"))


@needs_prometheus
def test_prometheus_takes_the_configuration_and_the_rules(tmp_path: Path) -> None:
    configuration = adapted(tmp_path, ["127.0.0.1:1"], "token")

    assert "SUCCESS" in promtool("check", "config", str(configuration))
    said = promtool("check", "rules", "--lint-fatal", str(DEPLOY / "alerts.yml"))
    assert f"{len(alerts()) + 1} rules found" in said


@needs_prometheus
def test_a_rule_that_is_wrong_is_not_taken(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.yml"
    wrong.write_text("groups: [{name: g, rules: [{alert: A, expr: 'rate(x[5m'}]}]")

    with pytest.raises(AssertionError):
        promtool("check", "rules", str(wrong))
