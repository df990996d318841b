"""The alerts and the dashboard in examples/deploy ask for series that the service has."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from tests.serving import Served

promql_parser = pytest.importorskip("promql_parser")

DEPLOY = Path(__file__).parents[2] / "examples" / "deploy"


def selectors(query: str) -> Iterator[tuple[str, list[Any]]]:
    """Yield the name and the matchers of each series that *query* selects. Raises ValueError for an invalid query."""
    todo: list[Any] = [promql_parser.parse(query)]
    while todo:
        node = todo.pop()
        if isinstance(node, promql_parser.VectorSelector):
            yield str(node.name), list(node.matchers.matchers)
            continue
        inner = ("expr", "lhs", "rhs", "vector_selector")
        todo += [getattr(node, name) for name in inner if hasattr(node, name)] + list(getattr(node, "args", []))


def rules() -> list[dict[str, Any]]:
    found = yaml.safe_load((DEPLOY / "mrecordlog.rules.yml").read_text())
    return [rule for group in found["groups"] for rule in group["rules"]]


def queries() -> list[str]:
    """Return every query of the alerts and of the dashboard, with Grafana's variables filled in."""
    dashboard = json.loads((DEPLOY / "grafana-dashboard.json").read_text())
    shown = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    filled = [query.replace("$__rate_interval", "1m").replace("$instance", ".+") for query in shown]
    return [rule["expr"] for rule in rules()] + filled


async def test_every_query_selects_series_that_the_service_has(served: Served) -> None:
    """A renamed metric, label or reason breaks this before it silences an alert."""
    await served.log.append_record("q", None, b"a")
    await served.log.create_consumer("q", "billing")
    await served.call("GET", "/v1/queues/absent")
    text = (await served.call("GET", "/metrics")).body.decode()
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    labels: dict[str, dict[str, set[str]]] = {"up": {}}
    for sample in samples:
        known = labels.setdefault(sample.name, {})
        for label, value in sample.labels.items():
            known.setdefault(label, set()).add(value)
    found = [(query, name, matchers) for query in queries() for name, matchers in selectors(query)]
    assert len(found) > 40
    for query, name, matchers in found:
        assert name in labels, query
        for matcher in matchers:
            if matcher.name not in ("instance", "job"):  # Prometheus adds these
                assert set(matcher.value.split("|")) <= labels[name][matcher.name], query
        for grouped in re.findall(r"by \(([^)]*)\)", query):
            assert set(grouped.split(", ")) - {"instance"} <= set(labels[name]), query


def test_the_scrape_job_and_the_alerts_belong_together() -> None:
    """The job's name occurs in the rules, the rules' file in the configuration, and the token comes from a file."""
    config = yaml.safe_load((DEPLOY / "prometheus.yml").read_text())
    (job,) = config["scrape_configs"]
    assert list(job["authorization"]) == ["credentials_file"]
    named = {m.value for rule in rules() for _, ms in selectors(rule["expr"]) for m in ms if m.name == "job"}
    assert named == {job["job_name"]}
    assert [Path(file).name for file in config["rule_files"]] == ["mrecordlog.rules.yml"]
    assert all({"alert", "expr", "labels", "annotations"} <= set(rule) for rule in rules())
