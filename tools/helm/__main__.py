"""``make helm``: what real Helm makes of the chart, held against the API's schemas, and kept.

Runs in an environment of its own (.venv/helm) where Helm's own Go SDK lies, with the schemas of
Kubernetes and the models of the Prometheus operator. Each ``<case>.values.yml`` below
``tests/acceptance/helm`` is rendered to the ``<case>.rendered.yml`` beside it, whose first line
names the chart by its digest: so the tests that run everywhere know a stale one.
"""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import helm_python as helm
import kubernetes_validate
import yaml
from cloudcoil.models.prometheus_operator import v1 as operator
from helm_python import HelmError
from helm_python._native import helm_sdk_version

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy" / "helm" / "cachetier"
CASES = ROOT / "tests" / "acceptance" / "helm"
MANIFESTS = sorted((ROOT / "deploy").glob("kubernetes*.yml"))
KUBERNETES = ("1.27", "1.30", "1.34", "1.37")  # from Chart.yaml's kubeVersion to the newest known
OPERATORS = {"PodMonitor": operator.PodMonitor, "PrometheusRule": operator.PrometheusRule}
HEAD = "# Helm {version} rendered this from the chart of digest {digest}: `make helm`.\n"


def main() -> int:
    """Render each case; return 1 with every complaint there is."""
    parser = argparse.ArgumentParser(prog="make helm", description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare, and write nothing")
    parser.add_argument("--digest", required=True, help="of the chart, by tools.helm.chart")
    options = parser.parse_args()
    complaints: list[str] = []
    head = HEAD.format(version=helm_sdk_version(), digest=options.digest)
    for values in sorted(CASES.glob("*.values.yml")):
        given = helm.values_from_yaml(values.read_text(encoding="utf-8"))
        released = {key: value for key, value in given.items() if key != "leaveJob"}
        complaints += [f"{values.name}: {each}" for each in linted(released)]
        text = head + rendered(given)
        complaints += [f"{values.name}: {each}" for each in invalid(text)]
        kept = values.with_name(values.name.replace(".values.", ".rendered."))
        if options.check:
            complaints += differences(kept, text)
        else:
            kept.write_text(text, encoding="utf-8")
    for manifest in MANIFESTS:
        text = manifest.read_text(encoding="utf-8")
        complaints += [f"{manifest.name}: {each}" for each in invalid(text)]
    complaints += not_refused()
    sys.stderr.write("".join(f"Error: {each}\n" for each in complaints))
    print(f"Helm {helm_sdk_version()}: {len(complaints)} complaints")  # noqa: T201
    return 1 if complaints else 0


def linted(values: dict[str, Any]) -> Iterator[str]:
    """Yield what ``helm lint --strict`` says; it knows no ``generateName``, so not of the Job."""
    report = helm.lint(CHART, values, strict=True)
    yield from (f"lint: {each}" for each in report["errors"])
    yield from (f"lint: {each['error']}" for each in report["messages"] if each["severity"] > 1)


def rendered(values: dict[str, Any]) -> str:
    """Return the objects of the chart as ``helm template`` prints them."""
    with helm.Chart.load(CHART) as chart:
        chart.validate_schema(values)
        files = chart.render(values, name="cachetier", namespace="training")
    texts = [text.strip() for name, text in sorted(files.items()) if name.endswith(".yaml")]
    return "".join(f"---\n{text}\n" for text in texts if text)


def invalid(text: str) -> Iterator[str]:
    """Yield what the schemas have against the objects of a file."""
    for document in yaml.safe_load_all(text):
        kind = document["kind"]
        try:
            if kind in OPERATORS:
                OPERATORS[kind].model_validate(document)
            else:
                for version in KUBERNETES:
                    kubernetes_validate.validate(document, version, strict=True)
        except (ValueError, kubernetes_validate.ValidationError) as error:
            named = document["metadata"]
            yield f"{kind} {named.get('name', named.get('generateName'))}: {error}"


def differences(kept: Path, text: str) -> Iterator[str]:
    """Yield how what is committed is not what Helm renders."""
    before = kept.read_text(encoding="utf-8") if kept.exists() else ""
    if before != text:
        lines = difflib.unified_diff(before.splitlines(), text.splitlines(), lineterm="", n=1)
        yield f"{kept.name} is another: run `make helm`\n" + "\n".join(lines)


def not_refused() -> Iterator[str]:
    """Yield wrong values that Helm takes, or refuses without the word that helps."""
    for values, word in yaml.safe_load((CASES / "refused.yml").read_text(encoding="utf-8")):
        try:
            rendered(values)
            yield f"{values} is not refused"
        except HelmError as error:
            if word not in str(error):
                yield f"{values} is refused without a word of {word}: {error}"


if __name__ == "__main__":
    sys.exit(main())
