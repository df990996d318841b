"""OpenTelemetry: what an application that has configured its SDK sees of the log and the service.

The providers of a process can be set once, so each case is its own process.
"""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest


def run(code: str, *arguments: object) -> Any:
    """Run *code* in a new process; return what it printed, as JSON."""
    command = [sys.executable, "-X", "dev", "-c", textwrap.dedent(code), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


OBSERVED = """
import asyncio, json, sys
from pathlib import Path
from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

spans, reader = InMemorySpanExporter(), InMemoryMetricReader()
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(spans))
trace.set_tracer_provider(provider)
metrics.set_meter_provider(MeterProvider([reader]))

from mrecordlog_async import LogFailedError
from mrecordlog_async.engine.commit import upkeep
from tests.cached_files import FailingSyncs
from tests.served import serving

def numbers():
    found = {}
    for resource in reader.get_metrics_data().resource_metrics:
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                for point in metric.data.data_points:
                    name = " ".join([metric.name, *[str(v) for k, v in point.attributes.items() if k == "reason"]])
                    found[name] = getattr(point, "count", None) or getattr(point, "value", None)
    return found

async def main():
    upkeep.MARK_SECONDS = 3600.0  # a mark of an idle log is a commit too
    disk = FailingSyncs()
    caller = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
    async with serving(Path(sys.argv[1]), filesystem=disk) as served:
        await served.log.create_queue("q")
        await served.call("POST", "/v1/queues/q/records", b"a", headers=caller)
        await served.call("GET", "/v1/queues/absent")
        for _ in range(3):
            await served.log.append_record("q", None, b"a")
        served.log.stats()  # the last batch is counted once nobody waits for it
        during = numbers()
        disk.failing = True
        await served.call("POST", "/v1/queues/q/records", b"a")
    after = numbers()
    rows = []
    for span in spans.get_finished_spans():
        parent = format(span.parent.span_id, "x") if span.parent else None
        rows.append([span.name, parent, dict(span.attributes), span.status.status_code.name,
                     (span.end_time - span.start_time) / 1e9])
    print(json.dumps({"spans": rows, "during": during, "after": after}))

asyncio.run(main())
"""


def test_recovery_commits_and_requests_have_spans_and_the_log_has_numbers(directory: Path) -> None:
    """With the SDK's exporters in memory. A failed batch is a span with an error; a closed log is not read any more."""
    pytest.importorskip("opentelemetry.sdk")
    seen = run(OBSERVED, directory)
    by_name: dict[str, list[Any]] = {}
    for row in seen["spans"]:
        by_name.setdefault(row[0], []).append(row)
    (recovery,) = by_name["mrecordlog.recovery"]
    assert recovery[2]["mrecordlog.directory"] == str(directory)
    commits = by_name["mrecordlog.commit"]
    assert len(commits) == 6  # the queue, four records, and the one that failed
    assert all(parent is None for _, parent, *_ in commits)
    assert [status for *_, status, _ in commits] == ["UNSET"] * 5 + ["ERROR"]
    assert all(0 < seconds < 60 and facts["mrecordlog.bytes"] > 0 for _, _, facts, _, seconds in commits[:5])
    appends = by_name["POST /v1/queues/{queue}/records"]
    assert [(row[1], row[2]["http.response.status_code"], row[3]) for row in appends] == [
        ("b7ad6b7169203331", 200, "UNSET"),
        (None, 503, "ERROR"),
    ]
    assert [row[2]["http.response.status_code"] for row in by_name["GET /v1/queues/{queue}"]] == [404]
    during, after = seen["during"], seen["after"]
    assert (during["mrecordlog.appended_records"], during["mrecordlog.queues"]) == (4, 1)
    assert (during["mrecordlog.commit.duration"], during["mrecordlog.refused failed"]) == (5, 0)
    assert during["http.server.request.duration"] >= 1
    assert "mrecordlog.queues" not in after
    # Databases of metrics refuse whole numbers for a series that has had others, and `under_way` has both.
    plain = {"appended_records", "appended_bytes", "commits", "memory_bytes", "segments", "queues", "under_way"}
    assert {name: type(during[f"mrecordlog.{name}"]) for name in plain} == dict.fromkeys(plain, float)


def test_without_a_provider_nothing_is_imported_and_nothing_is_called(directory: Path) -> None:
    """The API package may be installed, and other packages may import it."""
    code = """
    import asyncio, json, sys
    from mrecordlog_async import MultiRecordLog
    async def main():
        async with MultiRecordLog.open(sys.argv[1]) as log:
            await log.create_queue("q", exist_ok=True)
            before = "opentelemetry" in sys.modules
            hook = log._engine.writer._upkeep.on_commit
        if len(sys.argv) > 2:
            import opentelemetry.trace, opentelemetry.metrics
            async with MultiRecordLog.open(sys.argv[1]) as log:
                hook = log._engine.writer._upkeep.on_commit
        print(json.dumps([before, hook]))
    asyncio.run(main())
    """
    assert run(code, directory) == [False, None]
    pytest.importorskip("opentelemetry.trace")
    assert run(code, directory, "with the API") == [False, None]


HEADERS = """
import asyncio, json, logging, sys
from pathlib import Path
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

spans = InMemorySpanExporter()
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(spans))
trace.set_tracer_provider(provider)

from tests.served import serving

said = []
handler = logging.Handler(logging.ERROR)
handler.emit = lambda record: said.append(record.getMessage())
logging.getLogger("mrecordlog_async").addHandler(handler)
PARENT = b"traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
SENT = [b"X: 1", b"baggage: \\xff", b"tracestate: \\xe9=1", b"traceparent: \\xff-\\xff", b"baggage: a=%ff%zz", PARENT,
        PARENT + b"\\r\\nbaggage: \\xff", PARENT + b"\\r\\nX-Name: \\xff"]

async def main():
    async with serving(Path(sys.argv[1])) as served:
        for path in (b"/healthz", b"/v1/queues/%ff?x=%ff"):
            for header in SENT:
                reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
                head = b"GET %b HTTP/1.1\\r\\nHost: x\\r\\nConnection: close\\r\\n" % path
                writer.write(head + header + b"\\r\\n\\r\\n")
                await reader.read()
                writer.close()
    served_spans = [one for one in spans.get_finished_spans() if one.name.startswith("GET")]
    for one in served_spans:
        one.to_json().encode()
    print(json.dumps([len(served_spans), sum(one.parent is not None for one in served_spans), said]))

asyncio.run(main())
"""


def test_a_header_that_is_no_text_leaves_the_spans_of_all_requests(directory: Path) -> None:
    """Propagators see only headers that are UTF-8; the parent span is found next to one that is not."""
    pytest.importorskip("opentelemetry.sdk")
    assert run(HEADERS, directory) == [16, 6, []]


BROKEN = """
import asyncio, json, logging, sys
from pathlib import Path
from opentelemetry import trace
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider

class Broken(SpanProcessor):
    def on_start(self, span, parent_context=None):
        self.fail(f"begin {span.name}")

    def on_end(self, span):
        self.fail(span.name)

    def fail(self, where, *rest, **others):
        if where == sys.argv[2]:
            raise RuntimeError("no room for spans")

provider = TracerProvider()
provider.add_span_processor(Broken())
trace.set_tracer_provider(provider)
if sys.argv[2] == "find":
    provider.get_tracer = lambda *names, **others: Broken().fail("find")

from mrecordlog_async import MultiRecordLog

said = []
handler = logging.Handler(logging.ERROR)
handler.emit = lambda record: said.append(record.getMessage())
logging.getLogger("mrecordlog_async").addHandler(handler)

async def main():
    async with MultiRecordLog.open(sys.argv[1], queues=["q"]) as log:
        positions = [await log.append("q", b"a") for _ in range(3)]
        print(json.dumps([positions, log.state.value, len(said)]))

async def serve():
    from tests.served import serving
    async with serving(Path(sys.argv[1])) as served:
        await served.log.create_queue("q")
        for _ in range(3):
            response = await served.call("POST", "/v1/queues/q/records", b"a")
        print(json.dumps([response.status, served.log.next_position("q"), len(said)]))

asyncio.run(serve() if sys.argv[3:] else main())
"""


@pytest.mark.parametrize("span", ["mrecordlog.recovery", "mrecordlog.commit", "find"])
def test_an_application_whose_telemetry_raises_keeps_its_log(directory: Path, span: str) -> None:
    """What a span processor raises is logged once. The log opens, and what was stored is acknowledged."""
    pytest.importorskip("opentelemetry.sdk")
    assert run(BROKEN, directory, span) == [[0, 1, 2], "open", 1]


@pytest.mark.parametrize("when", ["", "begin "])
def test_an_application_whose_telemetry_raises_keeps_its_service(directory: Path, when: str) -> None:
    """What a span processor raises for a request is logged once. The response says that the record is stored."""
    pytest.importorskip("opentelemetry.sdk")
    span = f"{when}POST /v1/queues/{{queue}}/records"
    assert run(BROKEN, directory, span, "service") == [200, 3, 1]


def test_what_fails_for_one_request_switches_nothing_off(directory: Path) -> None:
    """The requests after it have their spans: nobody may end telemetry for the life of the process."""
    pytest.importorskip("opentelemetry.sdk")
    code = """
import asyncio, json, sys
from pathlib import Path
from opentelemetry import trace
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider

class Fails(SpanProcessor):
    ended = 0
    def on_end(self, span):
        if span.name.startswith("GET"):
            self.ended += 1
            if self.ended == 1:
                raise RuntimeError("once")

fails = Fails()
provider = TracerProvider()
provider.add_span_processor(fails)
trace.set_tracer_provider(provider)

from tests.served import serving

async def main():
    async with serving(Path(sys.argv[1])) as served:
        for _ in range(3):
            await served.call("GET", "/healthz")
    print(json.dumps(fails.ended))

asyncio.run(main())
"""
    assert run(code, directory) == 3
