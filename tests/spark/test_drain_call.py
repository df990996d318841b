"""A drain is one call: options, the servers behind a DNS name, tokens, metrics, and the summary."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from mrecordlog_async.options import QueueOptions
from mrecordlog_async.servers.names import Endpoint, Lookup
from mrecordlog_async.spark import delta_output, discovery, drain_metrics
from mrecordlog_async.spark.connection import ServiceRefusedError
from mrecordlog_async.spark.delta_output import DeltaWriter
from mrecordlog_async.spark.drain_call import DrainOptionError, DrainOptions, DrainSummary, drain
from mrecordlog_async.spark.drain_loop import DrainTotals
from mrecordlog_async.spark.drain_metrics import DrainLag, MetricsAddressError, metrics_served
from mrecordlog_async.spark.log_server import LogServer, Patience
from mrecordlog_async.spark.planning import everything
from tests.spark.conftest import NewService
from tests.spark.draining import Draining, columns, expected, going_on, table_rows
from tests.spark.services import ThreadedService, drain_samples, numbered

A, B = "0123456789abcdef-of-a", "fedcba9876543210-of-b"


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return tmp_path / "table"


def no_pause(seconds: float) -> None:
    """Wait for nothing."""


def test_one_call_stores_what_the_logs_held(new_service: NewService, table: Path) -> None:
    """The summary says what was stored, and what is left."""
    one, two = new_service(), new_service()
    one.append("q", numbered("q", 0, 10))
    two.append("r", numbered("r", 0, 5))
    options = DrainOptions(f"a={one.url},b={two.url}", str(table), partition_by=("date", "queue"))
    summary = drain(options, pause=no_pause)
    assert (summary.batches, summary.records, summary.rows, summary.down, summary.held) == (1, 15, 15, {}, {})
    assert summary.left == {"a": 0, "b": 0}
    assert summary.line.startswith("drained 15 records in ") and "left to drain: a 0, b 0" in summary.line
    assert table_rows(table) == expected(q=10, r=5)


def test_a_log_is_listed_as_a_whole_once(new_service: NewService, table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever looks before a drain begins, and in its batches: with many queues, a listing is megabytes."""
    services, listed, whole = {name: new_service() for name in "ab"}, list[str](), LogServer._whole

    def counted(server: LogServer, *given: Any) -> None:
        listed.append(server.name)
        whole(server, *given)

    monkeypatch.setattr(LogServer, "_whole", counted)
    for name, service in services.items():
        service.append(name, numbered(name, 0, 3))
    servers = ",".join(f"{name}={each.url}" for name, each in services.items())
    for subscribe in (None, ("a", "b")):
        listed.clear()
        drain(DrainOptions(servers, str(table), subscribe=subscribe), pause=no_pause)
        assert sorted(listed) == ["a", "b"]


def test_a_drain_that_keeps_running_ends_when_it_is_told_to(service: ThreadedService, table: Path) -> None:
    """Between two batches; what is new meanwhile is stored."""
    service.append("q", numbered("q", 0, 10))
    left = [3]

    def pause(seconds: float) -> None:
        assert seconds <= 5
        service.append("q", numbered("q", 10 * (4 - left[0]), 10 * (5 - left[0])))
        left[0] -= 1

    options = DrainOptions(service.url, str(table), every_seconds=5.0)
    assert drain(options, stopped=lambda: left[0] == 0, pause=pause).records == 30
    assert len(service.records()["q"]) == 10


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"subscribe": ("q",), "subscribe_pattern": "q"}, "not both"),
        ({"take_over": True}, "name it with --consumer"),
        ({"consumer": "lake", "truncate": False}, "set one"),
        ({"subscribe_pattern": "("}, "--subscribe-pattern"),
        ({"max_records": 0}, "max_records is 0: set it to 1 or more"),
        ({"max_records": 0, "min_batch_records": 0}, "max_records"),
        ({"max_bytes": 0}, "max_bytes"),
        ({"min_batch_records": 0}, "min_batch_records"),
        ({"every_seconds": -1.0}, "every_seconds"),
        ({"max_delay_seconds": float("nan")}, "max_delay_seconds"),
        ({"transform": lambda rows: rows}, "needs a session of Spark"),
    ],
)
def test_options_that_exclude_each_other_are_refused(table: Path, options: dict[str, Any], says: str) -> None:
    """Nothing is created."""
    with pytest.raises(DrainOptionError, match=says):
        given = DrainOptions("http://127.0.0.1:9", str(table), **options)
        given.settings()
        drain(given)
    assert not table.exists()


@pytest.mark.parametrize(
    ("given", "rule"),
    [
        ({}, "*"),
        ({"subscribe_pattern": ".*"}, "*"),
        ({"subscribe_pattern": r"orders-.*-v1\.0"}, "orders-*-v1.0"),
        ({"subscribe_pattern": r"orders-\d+"}, None),
        ({"subscribe_pattern": r"a\*.*"}, None),
        ({"subscribe_pattern": "a|b.*"}, None),
        ({"subscribe_pattern": "orders"}, None),
        ({"subscribe": ("orders",)}, None),
    ],
)
def test_a_rule_covers_exactly_what_is_drained(given: dict[str, Any], rule: str | None) -> None:
    """A consumer on a queue that nobody reads would keep its records for ever."""
    assert DrainOptions("http://h:1", "t", **given).rule() == rule


def test_only_what_is_subscribed_is_drained(service: ThreadedService, table: Path) -> None:
    """By names, or by a pattern for the whole name."""
    for queue in ("a", "ab", "b"):
        service.append(queue, numbered(queue, 0, 2))
    assert drain(DrainOptions(service.url, str(table), subscribe=("a",)), pause=no_pause).records == 2
    assert drain(DrainOptions(service.url, str(table), subscribe_pattern="a."), pause=no_pause).records == 2
    assert len(service.records()["b"]) == 2


def test_a_consumer_acknowledges(service: ThreadedService, table: Path) -> None:
    """The rule, the attach and the acknowledgement are the call's."""
    service.call(service.log.create_queue("q", options=QueueOptions(keep="until_acknowledged")))
    service.append("q", numbered("q", 0, 10))
    assert drain(DrainOptions(service.url, str(table), consumer="lake"), pause=no_pause).records == 10
    assert service.positions("q") == (10, 10)


class Elsewhere:
    """Stands for a session whose tasks run on other machines: none may be begun."""

    conf: ClassVar = {"spark.master": "spark://host:7077"}

    def range(self, *bounds: int) -> None:
        pytest.fail("a task ran elsewhere")


def test_a_local_output_of_tasks_elsewhere_is_refused(service: ThreadedService, table: Path) -> None:
    """Each machine would store its part on its own disk, and the log would be truncated."""
    service.append("q", numbered("q", 0, 10))
    session: Any = Elsewhere()
    with pytest.raises(DrainOptionError, match="add --shared-paths"):
        drain(DrainOptions(service.url, str(table)), session, pause=no_pause)
    assert not table.exists()


# What is left.


def full(*arguments: object) -> None:
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize(
    ("more", "looks", "left"),
    [
        ({}, 0, {}),
        ({"every_seconds": 1.0, "min_batch_records": 1_000}, 2, {"a": 10}),
        ({"every_seconds": 1.0, "max_records": 4}, 1, {"a": 6}),
        ({"truncate": False}, 9, {"a": 0}),
    ],
    ids=["no look", "waits for more", "limited", "not truncated"],
)
def test_what_is_left_is_what_is_not_stored(
    service: ThreadedService, table: Path, more: dict[str, Any], looks: int, left: dict[str, int]
) -> None:
    """A drain that stops before it has stored a record does not say that the record is durable."""
    service.append("q", numbered("q", 0, 10))
    steps = iter(range(looks))
    summary = drain(
        DrainOptions(f"a={service.url}", str(table), **more), stopped=lambda: next(steps, None) is None, pause=no_pause
    )
    assert summary.left == left and sum(left.values()) == (10 - summary.records if left else 0)
    assert f"left to drain: {'unknown' if not left else 'a ' + str(left['a'])}" in summary.line


def test_what_a_full_disk_has_not_taken_is_left(
    service: ThreadedService, table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch that fails stores nothing."""
    service.append("q", numbered("q", 0, 10))
    monkeypatch.setattr(delta_output, "write_rows", full)
    steps = iter(range(2))
    options = DrainOptions(f"a={service.url}", str(table), every_seconds=1.0)
    assert drain(options, stopped=lambda: next(steps, None) is None, pause=no_pause).left == {"a": 10}


def test_what_is_left_of_a_server_that_is_down_is_unknown(new_service: NewService, table: Path) -> None:
    """And of one whose log is held back."""
    one, two = new_service(), new_service()
    servers = f"a={one.url},b={two.url}"
    for service in (one, two):
        service.append("q", numbered("q", 0, 10))
    drain(DrainOptions(servers, str(table)), pause=no_pause)
    two.replace_by_nothing()
    summary = drain(DrainOptions(servers, str(table)), pause=no_pause)
    assert summary.left == {"a": 0, "b": None} and "left to drain: a 0, b unknown" in summary.line
    two.stop()
    summary = drain(DrainOptions(servers, str(table), skip_down=True), pause=no_pause)
    assert summary.left == {"a": 0, "b": None}
    two.start()


# Tokens.


def test_each_server_gets_its_own_token_and_nothing_shows_it(
    new_service: NewService, table: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """No file, message, log line or text of an object has a token; a wrong one names its server."""
    a, b = new_service(A), new_service(B)
    a.append("q", numbered("q", 0, 10))
    b.append("r", numbered("r", 0, 10))
    said: list[str] = []
    servers = f"a={a.url},b={b.url}"
    with caplog.at_level(logging.DEBUG):
        wrong = DrainOptions(servers, str(table), tokens={"": A})
        with pytest.raises(ServiceRefusedError, match=r"server 'b' returned.* 401: .*--token-file b=FILE") as told:
            drain(wrong, report=said.append, pause=no_pause)
        options = DrainOptions(servers, str(table), tokens={"": A, "b": B}, storage_options={"KEY": A})
        with going_on():
            assert drain(options, report=said.append, pause=no_pause).records == 20
    task = LogServer("a", Endpoint(a.url), A).task("log", [])
    writer = Draining({}, table).output.writer
    assert isinstance(writer, DeltaWriter)
    shown = [
        *said,
        str(told.value),
        repr(told.value),
        caplog.text,
        repr(wrong),
        repr(options),
        repr(task),
        repr(writer),
    ]
    kept = [path.read_bytes() for path in table.rglob("*") if path.is_file()]
    for token in (A, B):
        assert not any(token in text for text in shown)
        assert not any(token.encode() in content for content in kept)


# DNS names.


def test_a_dns_name_stands_for_all_of_its_services(
    new_service: NewService, table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is called what it calls itself, with the token of the name; one that moves is followed."""
    one, two = new_service(A, name="wal-0"), new_service(A, name="wal-1")
    found = [Endpoint(each.url, origin="wal") for each in (one, two)]
    now = [100.0]

    def look_up(lookup: Lookup) -> Sequence[Endpoint]:
        assert lookup.host == "wal"
        return list(found)

    monkeypatch.setattr(discovery, "look_up", look_up)
    monkeypatch.setattr(discovery, "_clock", lambda: now[0])
    one.append("q", numbered("q", 0, 10))
    two.append("r", numbered("r", 0, 10))
    options = DrainOptions("wal=dns+http://wal:8080", str(table), tokens={"wal": A}, every_seconds=1.0)
    rounds = [0]

    def pause(seconds: float) -> None:
        rounds[0] += 1
        assert rounds[0] < 100, "it is not followed"
        if rounds[0] == 1:
            two.stop()
            two.port = 0
            two.start()
            found[1] = Endpoint(two.url, origin="wal")
            two.append("r", numbered("r", 10, 20))
        now[0] += 11.0

    def stopped() -> bool:
        return rounds[0] > 3 and two.positions("r") == (20, 20)

    drain(options, stopped=stopped, pause=pause)
    assert table_rows(table) == expected(q=10, r=20)
    assert {server for (server,) in columns(table, "server")} == {"wal-0", "wal-1"}


def test_a_dns_name_that_is_not_found_is_down(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that ends fails, unless it skips what is down."""

    def look_up(lookup: Lookup) -> Sequence[Endpoint]:
        raise OSError("no such name")

    monkeypatch.setattr(discovery, "look_up", look_up)
    with pytest.raises(Exception, match="no such name"):
        drain(DrainOptions("wal=dns+http://wal:8080", str(table)), pause=no_pause)
    skipping = drain(DrainOptions("wal=dns+http://wal:8080", str(table), skip_down=True), pause=no_pause)
    assert "no such name" in skipping.down["wal"] and "NOT drained: server 'wal' was down" in skipping.line


# Metrics.


def test_metrics_say_what_is_not_stored(new_service: NewService, table: Path) -> None:
    """Even of queues that the drain has not met, and of records that other consumers keep in the log."""
    service, other = new_service(), new_service()
    service.call(service.log.create_queue("q", options=QueueOptions(keep="until_acknowledged")))
    service.call(service.log.create_consumer("q", "slow"))
    service.append("q", numbered("q", 0, 50))
    process = Draining({"a": service, "b": other}, table, consumer="lake")
    lag = DrainLag(
        lambda: process.servers,
        lambda endpoint: LogServer(endpoint.name, endpoint, patience=Patience(5.0, 1)),
        lambda: process.drain.state,
        everything,
    )
    with metrics_served("0", process.drain.totals, lag) as url:
        assert url is not None
        found = drain_samples(url)
        assert (found["rows_total", ""], found["lag_records", "a"], found["lag_records", "b"]) == (0, 50, 0)
        assert ("last_commit_timestamp_seconds", "") not in found
        process.all()
        service.append("new", numbered("new", 0, 3))
        service.append("q", numbered("q", 50, 60))
        found = drain_samples(url)
        assert (found["rows_total", ""], found["batches_total", ""], found["bytes_total", ""]) == (50, 1, 190)
        assert service.positions("q")[0] == 0
        assert found["lag_records", "a"] == 13 and 0 <= found["lag_seconds", "a"] < 3_600
        assert (found["lag_seconds", "b"], found["server_up", "a"], found["server_up", "b"]) == (0, 1, 1)
        other.stop()
        found = drain_samples(url)
        assert (found["lag_records", "a"], found["server_up", "a"], found["server_up", "b"]) == (13, 1, 0)
        assert ("lag_records", "b") not in found
        other.start()
        with pytest.raises(HTTPError, match="404") as refused:
            urlopen(url.replace("metrics", "other"))
        refused.value.close()


@pytest.mark.parametrize("address", ["h:x", "1:99999", "", "256.256.256.256:1"])
def test_an_address_for_metrics_that_cannot_be_used_is_refused(
    service: ThreadedService, table: Path, address: str
) -> None:
    """The sentence names the option."""
    with pytest.raises(MetricsAddressError, match="--metrics"):
        drain(DrainOptions(service.url, str(table), metrics=address))


def test_metrics_are_served_while_a_drain_runs(service: ThreadedService, table: Path) -> None:
    """The address is reported."""
    service.append("q", numbered("q", 0, 10))
    said: list[str] = []
    seen: list[float] = []

    def stopped() -> bool:
        if not seen and said[-1].startswith("metrics: "):
            seen.append(drain_samples(said[-1].removeprefix("metrics: "))["lag_records", "default"])
        return False

    drain(DrainOptions(service.url, str(table), metrics="0"), report=said.append, stopped=stopped, pause=no_pause)
    assert seen == [10] and any(drain_metrics.LOOPBACK in line for line in said)


def test_a_summary_says_how_many_rows_a_function_left() -> None:
    """Fewer rows than records are the user's choice, and are shown."""
    summary = DrainSummary(1, 100, 40, 2.0, {"a": 3}, {}, {"b": "it went back"})
    assert summary.line.startswith("drained 100 records into 40 rows in 2.0 s (50 records/s), durable in the output")
    assert "left to drain: a 3" in summary.line and "NOT drained: server 'b': it went back" in summary.line
    assert DrainTotals().rows == 0


def test_a_drain_in_this_process_needs_no_spark(service: ThreadedService, table: Path) -> None:
    """Neither pyspark nor Java."""
    service.append("q", numbered("q", 0, 10))
    program = (
        "import sys; sys.modules['pyspark'] = None\n"
        "from mrecordlog_async.spark.drain_call import DrainOptions, drain\n"
        "print(drain(DrainOptions(*sys.argv[1:])).line)"
    )
    command = [sys.executable, "-c", program, service.url, str(table)]
    said = subprocess.run(command, check=True, capture_output=True, text=True)
    assert said.stdout.startswith("drained 10 records")
    assert table_rows(table) == expected(q=10)
