"""The alerts and the dashboard in examples/deploy ask for series that the service and the drain have."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from mrecordlog_async.servers.names import Endpoint
from mrecordlog_async.spark.drain_loop import DrainTotals
from mrecordlog_async.spark.drain_metrics import DrainLag, render
from mrecordlog_async.spark.log_server import LogServer
from mrecordlog_async.spark.planning import everything
from mrecordlog_async.spark.state import DrainState
from tests.deep.prometheus import configuration, needs_promtool
from tests.served import Served

promql_parser = pytest.importorskip("promql_parser")

DEPLOY = Path(__file__).parents[3] / "examples" / "deploy"


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


def drain_metrics(url: str) -> str:
    """Return the metrics of a drain that has not stored anything yet."""
    lag = DrainLag(lambda: [Endpoint(url, name="a")], lambda each: LogServer(each.name, each), DrainState, everything)
    try:
        return render(DrainTotals(last_commit=0.0), lag.measure()).decode()
    finally:
        lag.close()


async def test_every_query_selects_series_that_service_and_drain_have(served: Served) -> None:
    """A renamed metric, label or reason breaks this before it silences an alert."""
    await served.log.append_record("q", None, b"a")
    async with served.log.consumer("q", "billing") as consumer:
        await consumer.acknowledge(0)
    await served.call("GET", "/v1/queues/absent")
    text = (await served.call("GET", "/metrics")).body.decode()
    text += await asyncio.to_thread(drain_metrics, served.url)
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
            assert set(grouped.split(", ")) - {"instance", "job"} <= set(labels[name]), query


def test_the_scrape_job_and_the_alerts_belong_together() -> None:
    """The job's name occurs in the rules, the rules' file in the configuration, and the token comes from a file."""
    config = yaml.safe_load((DEPLOY / "prometheus.yml").read_text())
    service, drain = config["scrape_configs"]
    assert list(service["authorization"]) == ["credentials_file"]
    named = {m.value for rule in rules() for _, ms in selectors(rule["expr"]) for m in ms if m.name == "job"}
    assert named == {service["job_name"], drain["job_name"]}
    assert [Path(file).name for file in config["rule_files"]] == ["mrecordlog.rules.yml"]
    assert all({"alert", "expr", "labels", "annotations"} <= set(rule) for rule in rules())


@needs_promtool
def test_every_alert_fires_after_its_time_and_not_before(tmp_path: Path) -> None:
    """Prometheus itself evaluates the rules, over the minutes and hours that they wait."""
    cases = Path(__file__).with_name("alerts.yml").read_text()
    groups = yaml.safe_load((DEPLOY / "mrecordlog.rules.yml").read_text())["groups"]
    for rule in (rule for group in groups for rule in group["rules"]):
        assert f"alertname: {rule['alert']}\n" in cases, rule["alert"]
        del rule["annotations"]  # every case would repeat them
    (tmp_path / "rules.yml").write_text(yaml.safe_dump({"groups": groups}))
    (tmp_path / "cases.yml").write_text(cases.replace("RULES", str(tmp_path / "rules.yml")))
    promtool("test", "rules", str(tmp_path / "cases.yml"))


@needs_promtool
@pytest.mark.parametrize("alert", ["MrecordlogDiskNearLimit", "MrecordlogAppendsRefused"])
def test_an_alert_of_a_full_disk_names_the_consumer_that_holds_most(tmp_path: Path, alert: str) -> None:
    """The person who is woken reads whom to look for; a service without consumers is named alone."""
    (rule,) = (dict(rule) for rule in rules() if rule["alert"] == alert)
    rule["annotations"].pop("runbook")
    (tmp_path / "rules.yml").write_text(yaml.safe_dump({"groups": [{"name": "one", "rules": [rule]}]}))
    values = {
        'mrecordlog_append_rejected_total{instance="INSTANCE", reason="disk"}': "0+60x30",
        'mrecordlog_disk_used_bytes{instance="INSTANCE"}': "90x30",
        'mrecordlog_disk_limit_bytes{instance="INSTANCE"}': "100x30",
    }
    waiting = {
        'mrecordlog_consumer_waiting_bytes{instance="a", queue="orders", consumer="lake"}': "7x30",
        'mrecordlog_consumer_waiting_bytes{instance="a", queue="orders", consumer="audit"}': "5x30",
        'mrecordlog_consumer_waiting_bytes{instance="other", queue="q", consumer="far"}': "99x30",
    }
    series = [(name.replace("INSTANCE", each), kept) for each in "ab" for name, kept in values.items()]
    begins = {
        "MrecordlogDiskNearLimit": "{} uses 90% of its disk limit",
        "MrecordlogAppendsRefused": "{} refuses appends: disk",
    }[alert]
    labels = {"severity": rule["labels"]["severity"]} | (
        {"reason": "disk"} if alert == "MrecordlogAppendsRefused" else {}
    )
    expected = [
        {
            "exp_labels": {"instance": "a"} | labels,
            "exp_annotations": {"summary": begins.format("a") + "; consumer lake of orders holds the most"},
        },
        {"exp_labels": {"instance": "b"} | labels, "exp_annotations": {"summary": begins.format("b")}},
    ]
    case = {
        "interval": "1m",
        "input_series": [{"series": name, "values": kept} for name, kept in [*series, *waiting.items()]],
        "alert_rule_test": [{"eval_time": "15m", "alertname": alert, "exp_alerts": expected}],
    }
    (tmp_path / "cases.yml").write_text(
        yaml.safe_dump({"rule_files": [str(tmp_path / "rules.yml")], "tests": [case]}, width=1000)
    )
    promtool("test", "rules", str(tmp_path / "cases.yml"))


@needs_promtool
def test_prometheus_takes_the_shipped_files(tmp_path: Path) -> None:
    """The scrape job, the rules, and the templates in their sentences."""
    (tmp_path / "token").write_text("token")
    (tmp_path / "prometheus.yml").write_text(configuration(tmp_path, [8080], 9108))
    promtool("check", "config", str(tmp_path / "prometheus.yml"))


def promtool(*arguments: str) -> None:
    done = subprocess.run(["promtool", *arguments], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_has_its_runbook_and_every_runbook_its_alert() -> None:
    """Somebody who is woken finds what to do at the address in the alert."""
    page = (DEPLOY.parents[1] / "docs" / "operations.md").read_text()
    page = page.partition("\n## Alerts\n")[2].partition("\n## ")[0]
    sections = re.findall(r"^### (\w+)\n\n`(\w+)`\. .*(?:\n.+)*\n\n(?:1\. |\|)", page, re.MULTILINE)
    assert sections == [(rule["alert"], rule["labels"]["severity"]) for rule in rules()]
    assert len(sections) == page.count("\n### ")
    for rule in rules():
        assert rule["annotations"]["runbook"] == f"docs/operations.md#{rule['alert'].lower()}"


@pytest.mark.parametrize("file", ["kubernetes.yaml", "kubernetes-several.yaml"])
def test_prometheus_scrapes_one_port_of_each_pod_of_a_service(file: str) -> None:
    """Its role pod finds every container, even one that ran before the service and has no port: that is always down."""
    text = (DEPLOY / "prometheus.yml").read_text()
    commented = text[text.index("# kubernetes_sd_configs") :].partition("\n\n")[0]
    config = yaml.safe_load("\n".join(line.strip().removeprefix("# ") for line in commented.splitlines()))
    scraped = []
    for found in yaml.safe_load_all((DEPLOY / file).read_text()):
        if found["kind"] not in ("StatefulSet", "Deployment"):
            continue
        template = found["spec"]["template"]
        for container in [*template["spec"]["initContainers"], *template["spec"]["containers"]]:
            for port in container.get("ports", [{}]):
                labels = {
                    "__meta_kubernetes_pod_label_app": template["metadata"]["labels"]["app"],
                    "__meta_kubernetes_pod_container_port_name": port.get("name", ""),
                }
                if all(kept(labels, rule) for rule in config["relabel_configs"]):
                    scraped.append((container["name"], port.get("containerPort")))
    assert scraped == [("mrecordlog", 8080)]


def kept(labels: dict[str, str], rule: dict[str, Any]) -> bool:
    assert rule["action"] == "keep"
    (source,) = rule["source_labels"]
    return re.fullmatch(rule["regex"], labels[source]) is not None
