"""What the service reports about itself: schema, metrics, statistics."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from mrecordlog_async import LogFullError
from mrecordlog_async.protocol import bulk_schemas, schemas
from mrecordlog_async.service.options import ServiceOptions
from mrecordlog_async.service.routes.openapi import TABLE, document
from tests.served import Served, serving


def test_the_schema_lists_exactly_the_routes() -> None:
    """Every route of the application is in the schema, with its method, and nothing else is."""
    served = {(route.method, route.path) for route in TABLE}
    assert served == {(method.upper(), path) for path, methods in document()["paths"].items() for method in methods}


def test_every_reference_of_the_schema_is_defined() -> None:
    """Generators of clients can follow it."""
    schemas = document()["components"]["schemas"]

    def references(node: Any) -> set[str]:
        if isinstance(node, dict):
            found = {node["$ref"].rpartition("/")[2]} if "$ref" in node else set()
            return found.union(*map(references, node.values()))
        return set().union(*map(references, node)) if isinstance(node, list) else set()

    assert references(document()) <= schemas.keys()
    assert {"Problem", "PlanRequest", "AppendResponse"} <= schemas.keys()


async def test_responses_are_what_the_schema_says(served: Served) -> None:
    """Each JSON response decodes as the type that the schema gives it, without members that the type does not know."""
    await served.log.append_record("q", None, b"a")
    responses: list[tuple[str, str, Any, type[msgspec.Struct]]] = [
        ("GET", "/v1/queues", None, schemas.QueuesResponse),
        ("GET", "/v1/queues/q", None, schemas.QueueResponse),
        ("PUT", "/v1/queues/r", None, schemas.CreateResponse),
        ("POST", "/v1/queues/q/records", b"b", schemas.AppendResponse),
        ("GET", "/v1/queues/q/records?limit=1", None, schemas.RecordResponse),
        ("POST", "/v1/positions", {"time": "2026-01-01T00:00:00Z"}, bulk_schemas.PositionsResponse),
        ("POST", "/v1/plan", {}, bulk_schemas.PlanResponse),
        ("POST", "/v1/truncate", {"queues": [{"queue": "q", "position": 0}]}, bulk_schemas.TruncateManyResponse),
        ("POST", "/v1/queues/q/truncate", {"position": 0}, schemas.TruncateResponse),
        ("GET", "/healthz", None, schemas.HealthResponse),
        ("GET", "/readyz", None, schemas.ReadyResponse),
        ("GET", "/v1/stats", None, schemas.StatsResponse),
        ("GET", "/v1/queues/nope", None, schemas.Problem),
    ]
    for method, path, body, kind in responses:
        response = await served.call(method, path, body)
        decoded: Any = msgspec.json.decode(response.body, type=kind)
        known = {field.encode_name for field in msgspec.structs.fields(kind)}
        assert kind is schemas.Problem or response.json().keys() <= known, path
        assert decoded is not None


def test_every_property_of_the_schema_is_described() -> None:
    """The sentence is the one in the docstring of its type; no description has sections."""
    components: dict[str, Any] = document()["components"]["schemas"]
    for name, component in components.items():
        assert "Attributes" not in component["description"], name
        for member, described in component.get("properties", {}).items():
            assert described.get("description"), (name, member)


async def test_the_schema_has_every_status_of_a_body(served: Served) -> None:
    """Each route that takes one may refuse it: encoded, too large or too slow, or because others fill the memory."""
    await served.log.create_consumer("q", "c")
    for path, methods in document()["paths"].items():
        for method, described in methods.items():
            if "requestBody" not in described:
                continue
            assert described["responses"].keys() >= {"408", "413", "415", "429"}, path
            target = path.format(queue="q", consumer="c")
            refused = await served.call(method.upper(), target, b"{}", headers={"Content-Encoding": "br"})
            assert refused.status == 415, path


async def test_a_body_that_may_be_left_out_is_not_required(served: Served) -> None:
    """Where every member has a default, a request without a body is as good as one with `{}`."""
    for path, methods in document()["paths"].items():
        for method, described in methods.items():
            if "requestBody" in described and not path.endswith("/records"):  # without a body, an append adds a record
                status = (await served.call(method.upper(), path.format(queue="q", consumer="c"))).status
                assert described["requestBody"]["required"] == (status == 400), (method, path, status)


@pytest.mark.parametrize(
    ("call", "method", "path", "body"),
    [
        ("delete_queue", "DELETE", "/v1/queues/{queue}", None),
        ("truncate", "POST", "/v1/queues/{queue}/truncate", {"position": 0}),
        ("truncate", "POST", "/v1/truncate", {"queues": [{"queue": "q", "position": 0}]}),
        ("delete_consumer", "DELETE", "/v1/queues/{queue}/consumers/{consumer}", None),
    ],
)
async def test_the_schema_says_that_what_frees_space_needs_some(
    served: Served, monkeypatch: pytest.MonkeyPatch, call: str, method: str, path: str, body: Any
) -> None:
    """Once the reserve is used up, a full disk refuses these requests too."""
    await served.log.append("q", b"a")
    monkeypatch.setattr(served.log, call, AsyncMock(side_effect=LogFullError("space")))
    assert (await served.call(method, path.format(queue="q", consumer="c"), body)).status == 507
    assert "507" in document()["paths"][path][method.lower()]["responses"]


async def test_openapi_is_served(served: Served) -> None:
    """It is JSON, at the path where tools expect it."""
    assert (await served.call("GET", "/openapi.json")).json() == msgspec.json.decode(msgspec.json.encode(document()))


async def test_metrics_are_what_prometheus_reads(directory: Path) -> None:
    """Names, types and values parse; per-queue series exist only if the options ask for them."""
    for per_queue in (False, True):
        async with serving(directory, ServiceOptions(metrics_per_queue=per_queue)) as served:
            await served.log.create_queue("q", exist_ok=True)
            await served.call("POST", "/v1/queues/q/records", b"abc")
            await served.call("GET", "/v1/queues/nope")
            families = {
                family.name: family
                for family in text_string_to_metric_families((await served.call("GET", "/metrics")).body.decode())
            }
        samples = {
            (sample.name, *sample.labels.values()): sample.value
            for family in families.values()
            for sample in family.samples
        }
        assert samples["mrecordlog_appended_records_total",] == 1
        assert samples["mrecordlog_appended_bytes_total",] == 3
        assert samples["mrecordlog_state", "open"] == 1
        assert samples["mrecordlog_http_problems_total", "404"] == 1
        assert samples["mrecordlog_append_seconds_count",] == samples["mrecordlog_append_seconds_bucket", "+Inf"] > 0
        assert families["mrecordlog_commits"].type == "counter"
        assert (("mrecordlog_queue_records", "q") in samples) is per_queue


@pytest.mark.parametrize("options", [{"body_bytes": 0}, {"body_bytes": 2, "bodies_bytes": 1}, {"tails": 0}])
def test_limits_that_make_no_sense_are_refused(options: dict[str, int]) -> None:
    """A limit is above 0, and a limit for all is not below the limit for one."""
    with pytest.raises(ValueError, match=r"must be at least|is below body_bytes"):
        ServiceOptions(**options)  # type: ignore[arg-type]  # all of these are whole numbers
