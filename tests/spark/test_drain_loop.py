"""A drain moves every record into its table once, whatever happens to logs, servers and other drains."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from mrecordlog_async.options import QueueOptions
from mrecordlog_async.servers.names import Endpoint
from mrecordlog_async.spark import drain_loop, surveying
from mrecordlog_async.spark.connection import ServerDownError, ServiceConnection, ServiceRefusedError
from mrecordlog_async.spark.consuming import ConsumerHolder, ConsumerNotOursError
from mrecordlog_async.spark.drain_loop import Drain
from mrecordlog_async.spark.log_server import LogServer, ReadTask
from mrecordlog_async.spark.losses import ForgetError, ServersHeldError, UnreadLossError
from mrecordlog_async.spark.output import BatchFailedError, OutputRefusedError, RowWriter, WrittenFile
from mrecordlog_async.spark.runners import in_process
from mrecordlog_async.spark.server_set import ServerSet
from mrecordlog_async.spark.surveying import DrainSettings
from tests.serving import free_port
from tests.spark.conftest import NewService
from tests.spark.draining import Draining, columns, drain_all, expected, going_on, table_rows
from tests.spark.services import ThreadedService, numbered


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return tmp_path / "table"


def feed(service: ThreadedService, queue: str, start: int, stop: int) -> None:
    service.append(queue, numbered(queue, start, stop))


# Exactly once.


def test_rows_are_in_the_table_once_and_the_log_is_empty(service: ThreadedService, table: Path) -> None:
    """Every acknowledged record is in the table exactly once."""
    feed(service, "a", 0, 10)
    feed(service, "b", 0, 300)
    assert drain_all({"s": service}, table) == 310
    feed(service, "a", 10, 20)
    assert drain_all({"s": service}, table) == 10
    assert table_rows(table) == expected(a=20, b=300)
    assert not any(service.records().values())
    assert {server for (server,) in columns(table, "server")} == {"s"}


def test_limits_cut_batches(service: ThreadedService, table: Path) -> None:
    """A batch has at most as many records as its limit, and the next ones have the rest."""
    for queue in "abc":
        feed(service, queue, 0, 100)
    process = Draining({"s": service}, table, records=60)
    batches = []
    while records := process.step():
        batches.append(records)
    assert sum(batches) == 300 and max(batches) <= 60 + 3
    assert table_rows(table) == expected(a=100, b=100, c=100)


def test_the_limit_is_shared_by_servers(new_service: NewService, table: Path) -> None:
    """Limits count for the whole batch, and no server waits until another one is empty."""
    services = {"a": new_service(), "b": new_service()}
    for service in services.values():
        feed(service, "q", 0, 200)
    process = Draining(services, table, records=50)
    assert process.step() <= 52 and process.step() <= 52
    assert {server for (server,) in columns(table, "server")} == {"a", "b"}


def test_a_server_with_a_large_backlog_delays_no_other(new_service: NewService, table: Path) -> None:
    """Even if a batch has room for one server alone: each is the first one in turn."""
    services = {"a": new_service(), "b": new_service()}
    feed(services["a"], "q", 0, 30)
    feed(services["b"], "r", 0, 3)
    process = Draining(services, table, records=1)
    for _ in range(8):
        assert process.step() == 1
    assert [row for row in table_rows(table) if row[0] == "r"] == expected(r=3)


def test_without_truncate_the_log_keeps_its_records(service: ThreadedService, table: Path) -> None:
    """`--no-truncate` stores records without deleting them from the log, and once."""
    feed(service, "q", 0, 10)
    assert drain_all({"s": service}, table, truncate=False) == 10
    assert drain_all({"s": service}, table, truncate=False) == 0
    assert len(service.records()["q"]) == 10


def test_only_subscribed_queues_are_read(service: ThreadedService, table: Path) -> None:
    """Others keep their records, and are read from their first one when they are subscribed."""
    feed(service, "a", 0, 10)
    feed(service, "b", 0, 10)
    assert drain_all({"s": service}, table, includes=lambda name: name == "a") == 10
    assert len(service.records()["b"]) == 10
    assert drain_all({"s": service}, table) == 10


def test_a_batch_waits_for_records(service: ThreadedService, table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a least number, a batch waits until it has that many, or the first of them has waited long enough."""
    now = [100.0]
    for module in (drain_loop, surveying):
        monkeypatch.setattr(module, "_clock", lambda: now[0])
    process = Draining({"s": service}, table, min_records=20, max_delay_seconds=60)
    feed(service, "q", 0, 10)
    assert process.step() == 0
    feed(service, "q", 10, 20)
    assert process.step() == 20
    feed(service, "q", 20, 25)
    assert process.step() == 0
    now[0] += 61
    assert process.step() == 5


def test_a_gap_is_no_backlog(service: ThreadedService, table: Path) -> None:
    """A batch waits for its least number of records, whatever positions are missing."""
    feed(service, "q", 0, 100)
    process = Draining({"s": service}, table, min_records=50, max_delay_seconds=600, truncate=False)
    assert process.step() == 100
    service.append("q", numbered("q", 150, 151), 150)
    assert process.step() == 0
    feed(service, "q", 151, 200)
    assert process.step() == 50


def test_a_run_ends_with_what_the_logs_held_at_its_start(service: ThreadedService, table: Path) -> None:
    """A producer that appends while the run lasts does not keep it alive."""
    feed(service, "q", 0, 10)

    def appending(tasks: Sequence[ReadTask], writer: RowWriter) -> list[WrittenFile]:
        feed(service, "q", 10, 20)
        feed(service, "new", 0, 5)
        return in_process(tasks, writer)

    process = Draining({"s": service}, table, run=appending)
    process.drain.follow(None, lambda: False, no_pause)
    assert table_rows(table) == expected(q=10)


def no_pause(seconds: float) -> None:
    """Wait for nothing."""


def test_a_run_does_not_end_with_an_outdated_plan(
    service: ThreadedService, table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A queue that changes between listing and plan is planned again, although the plan has nothing of it."""
    feed(service, "q", 0, 10)
    plan = LogServer.plan

    def outdated(self: LogServer, *arguments: Any) -> list[Any]:
        monkeypatch.setattr(LogServer, "plan", plan)
        service.truncate("q", 3)
        return plan(self, *arguments)

    monkeypatch.setattr(LogServer, "plan", outdated)
    Draining({"s": service}, table).drain.follow(None, lambda: False, no_pause)
    assert table_rows(table) == expected(q=10)[4:]


# A server that lists its log and cannot be read.


class Unreadable:
    """Runs tasks; those of some servers fail. tried: the servers of each batch."""

    def __init__(self, *servers: str) -> None:
        self.servers, self.tried = set(servers), list[list[str]]()

    def __call__(self, tasks: Sequence[ReadTask], writer: RowWriter) -> list[WrittenFile]:
        self.tried.append(sorted({each.server for each in tasks}))
        for each in tasks:
            if each.server in self.servers:
                raise BatchFailedError(f"server {each.server!r}: its disk is broken")
        return in_process(tasks, writer)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time of the drain, in seconds."""
    now = [100.0]
    for module in (drain_loop, surveying):
        monkeypatch.setattr(module, "_clock", lambda: now[0])
    return now


def test_a_server_that_cannot_be_read_does_not_stop_the_others(
    new_service: NewService, table: Path, clock: list[float]
) -> None:
    """It is found by batches of one server, tried again now and then, and read on once that works."""
    services = {name: new_service() for name in "abc"}
    for name, service in services.items():
        feed(service, name, 0, 5)
    run = Unreadable("b")
    process = Draining(services, table, run=run)
    for number in range(1, 30):

        def pause(seconds: float) -> None:
            clock[0] += max(1.0, seconds)

        steps = iter(range(4))
        process.drain.follow(1.0, lambda steps=steps: next(steps, None) is None, pause)  # type: ignore[misc]
        for name in "ac":
            feed(services[name], name, 5 * number, 5 * number + 5)
    assert process.all() >= 0
    assert [row for row in table_rows(table) if row[0] != "b"] == expected(a=150, c=150)
    assert run.tried.count(["a", "c"]) >= 20 and run.tried.count(["b"]) <= 10
    assert sum("b" in names for names in run.tried) <= 11
    assert [line for line in process.said if "the others continue" in line] == [
        "server 'b' cannot be read, the others continue: server 'b': its disk is broken"
    ]
    run.servers.clear()
    clock[0] += 3_600
    process.all()
    assert table_rows(table) == expected(a=150, b=5, c=150)
    feed(services["b"], "b", 5, 10)
    feed(services["a"], "a", 150, 155)
    assert process.step() == 10


def test_a_run_that_ends_fails_for_a_server_that_cannot_be_read(
    new_service: NewService, table: Path, clock: list[float]
) -> None:
    """After it has stored what the others have; a server that can be read in the end is no failure."""
    services = {name: new_service() for name in "ab"}
    for name, service in services.items():
        feed(service, name, 0, 5)
    run = Unreadable("b")

    def pause(seconds: float) -> None:
        clock[0] += max(1.0, seconds)
        if len(run.tried) == tries:
            run.servers.clear()

    tries = 0
    with pytest.raises(BatchFailedError, match="its disk is broken"):
        Draining(services, table, run=run).drain.follow(None, lambda: False, pause)
    assert table_rows(table) == expected(a=5) and run.tried.count(["b"]) == 3
    tries = len(run.tried) + 1
    Draining(services, table, run=run).drain.follow(None, lambda: False, pause)
    assert table_rows(table) == expected(a=5, b=5)


# Losses.


def test_a_queue_that_was_recreated_is_read_from_its_first_record(service: ThreadedService, table: Path) -> None:
    """A queue that was deleted after it was stored, and created again, is another one."""
    feed(service, "q", 0, 10)
    drain_all({"s": service}, table)
    service.delete("q")
    feed(service, "q", 0, 4)
    assert drain_all({"s": service}, table) == 4
    assert len({queue_id for (queue_id,) in columns(table, "queue_id")}) == 2


@pytest.mark.parametrize("recreated", [False, True])
def test_unread_records_of_a_deleted_queue_are_a_loss(service: ThreadedService, table: Path, recreated: bool) -> None:
    """The drain stops, and refuses to start until the loss is accepted; then it stores what is left."""
    feed(service, "q", 0, 10)
    drain_all({"s": service}, table)
    feed(service, "q", 10, 13)
    service.delete("q")
    if recreated:
        feed(service, "q", 0, 2)
    for _ in range(2):
        with pytest.raises(UnreadLossError, match=r"queue 'q': it was deleted.*10 to 12.*--allow-data-loss"):
            drain_all({"s": service}, table)
    assert drain_all({"s": service}, table, allow_loss=True) == (2 if recreated else 0)
    assert drain_all({"s": service}, table) == 0


def test_records_that_another_program_truncated_are_a_loss(service: ThreadedService, table: Path) -> None:
    """Nothing of the queue is stored or truncated until that is accepted."""
    feed(service, "q", 0, 5)
    drain_all({"s": service}, table)
    feed(service, "q", 5, 10)
    service.truncate("q", 6)
    with pytest.raises(UnreadLossError, match="positions 5 to 6 were truncated before they were stored"):
        drain_all({"s": service}, table)
    assert drain_all({"s": service}, table, allow_loss=True) == 3


def test_records_of_a_new_queue_that_were_truncated_are_a_loss(service: ThreadedService, table: Path) -> None:
    """It was created since the last batch, so nothing of it is in the table; an older queue may have been left out."""
    feed(service, "old", 0, 5)
    service.truncate("old", 2)
    feed(service, "q", 0, 5)
    assert drain_all({"s": service}, table) == 7
    feed(service, "new", 0, 5)
    service.truncate("new", 1)
    with pytest.raises(UnreadLossError, match="queue 'new': positions 0 to 1"):
        drain_all({"s": service}, table)
    assert drain_all({"s": service}, table, includes=lambda name: True) == 3


def test_a_plan_that_is_outdated_is_made_again(service: ThreadedService, table: Path) -> None:
    """Records that are truncated between plan and fetch fail the batch, and the next plan says what was lost."""
    feed(service, "q", 0, 10)

    def truncating(tasks: Sequence[ReadTask], writer: RowWriter) -> list[WrittenFile]:
        service.truncate("q", 3)
        return in_process(tasks, writer)

    process = Draining({"s": service}, table, run=truncating)
    with pytest.raises(BatchFailedError, match="status 410"):
        process.step()
    assert table_rows(table) == []


# Which log is where.


@pytest.mark.parametrize("grown", [False, True], ids=["shorter", "grown past"])
@pytest.mark.parametrize("opened", [False, True], ids=["in a later opening", "in the same one"])
def test_a_log_that_went_back_is_held_back(
    new_service: NewService, table: Path, tmp_path: Path, grown: bool, opened: bool
) -> None:
    """However far it has grown since; the others continue. Accepted, all of it is stored again, and then dropped."""
    old, other = new_service(), new_service()
    services = {"a": old, "b": other}
    feed(old, "q", 0, 10)
    if opened:
        shutil.copytree(old.directory, tmp_path / "copy")
    else:
        old.keep_copy(tmp_path / "copy")
    feed(old, "q", 10, 20)
    assert drain_all(services, table) == 20
    old.go_back(tmp_path / "copy")
    if grown:
        old.append("q", numbered("other", 10, 40))
    feed(other, "x", 0, 3)
    process = Draining(services, table)
    assert process.all() == 3
    assert "it went back" in process.drain.trouble.held["a"] and "--accept-went-back" in process.drain.trouble.held["a"]
    held = len(old.records()["q"])
    assert held == (40 if grown else 10)

    def watched(tasks: Sequence[ReadTask], writer: RowWriter) -> list[WrittenFile]:
        assert len(old.records()["q"]) == held, "records were truncated by the positions of others"
        return in_process(tasks, writer)

    accepting = Draining(services, table, accept_went_back=True, run=watched)
    assert accepting.step() == held
    assert drain_all(services, table) == 0
    assert not any(old.records().values())


def test_that_a_log_went_back_is_accepted_once(new_service: NewService, table: Path, tmp_path: Path) -> None:
    """A run that goes on does not store it a third time: it is held back, and the others continue."""
    service, other = new_service(), new_service()
    services = {"a": service, "b": other}
    service.keep_copy(tmp_path / "copy")
    feed(service, "q", 0, 10)
    drain_all(services, table, truncate=False)
    process = Draining(services, table, truncate=False, accept_went_back=True)
    assert process.all() == 0
    for stored in (5, 0):
        service.go_back(tmp_path / "copy")
        feed(service, "q", 0, 5)
        assert process.all() == stored
    assert "it went back" in process.drain.trouble.held["a"]
    assert [line for line in process.said if "as allowed" in line] == [
        "went back, as allowed: all that server 'a' has is stored again"
    ]


@pytest.mark.parametrize("ends", [False, True])
def test_damage_that_a_plan_meets_is_not_an_outage(
    new_service: NewService, table: Path, monkeypatch: pytest.MonkeyPatch, ends: bool
) -> None:
    """The server responds, and no waiting helps: the others are stored, and the drain says what is damaged."""
    services = {name: new_service() for name in "ab"}
    for name, service in services.items():
        feed(service, name, 0, 5)
    drain_all(services, table)
    for name, service in services.items():
        feed(service, name, 5, 10)
    plan = LogServer.plan

    def damaged(server: LogServer, *given: Any) -> Any:
        if server.name == "b":
            raise ServiceRefusedError("b", 500, {"detail": "a segment is damaged", "code": "damaged"})
        return plan(server, *given)

    monkeypatch.setattr(LogServer, "plan", damaged)
    process, steps = Draining(services, table), iter(range(3))
    process.drain.follow(None if ends else 1.0, lambda: next(steps, None) is None, no_pause)
    assert not process.drain.trouble.down
    assert "a segment is damaged; `mrecordlog verify`" in process.drain.trouble.held["b"]
    assert process.drain.left == {"a": 0, "b": None}
    assert table_rows(table) == expected(a=10, b=5)
    monkeypatch.undo()
    assert drain_all(services, table) == 5


@pytest.mark.parametrize("down", [False, True])
def test_a_drain_whose_logs_are_all_held_back_fails(new_service: NewService, table: Path, down: bool) -> None:
    """One that keeps running, too; while a server is down, it waits for that."""
    service, other = new_service(), new_service()
    feed(service, "q", 0, 5)
    feed(other, "r", 0, 5)
    services = {"a": service, "b": other} if down else {"a": service}
    drain_all(services, table)
    service.replace_by_nothing()
    if down:
        other.stop()
    steps = iter(range(3))
    with pytest.raises(ServersHeldError) if not down else nullcontext():
        Draining(services, table).drain.follow(1.0, lambda: next(steps, None) is None, no_pause)


def test_a_log_is_forgotten_while_another_server_is_down(new_service: NewService, table: Path) -> None:
    """Only the server that had it last may still have it: for that one it waits."""
    lost, other, down = new_service(), new_service(), new_service()
    services = {"a": lost, "b": other, "c": down}
    for name, service in services.items():
        feed(service, name, 0, 5)
    drain_all(services, table)
    logs = {each.server: log for log, each in Draining({}, table).output.load().logs.items()}
    lost.replace_by_nothing()
    feed(lost, "a", 0, 3)
    down.stop()
    process = Draining(services, table, forget=(logs["a"],), skip_down=True)
    assert process.all() == 3 and not process.drain.trouble.held
    process = Draining(services, table, forget=(logs["c"],), skip_down=True)
    assert [process.step(), process.step()] == [0, 0]
    assert [line for line in process.said if "--forget" in line] == [
        "--forget waits for server 'c', which is down: it may have the log"
    ]


@pytest.mark.parametrize("ends", [False, True])
def test_an_acknowledgement_that_is_refused_late_stops_the_drain(
    service: ThreadedService, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: bool
) -> None:
    """Even where the drain did not wait for it: another one has the consumer now."""
    monkeypatch.setattr(surveying, "WAIT_SECONDS", 0.0)
    feed(service, "q", 0, 5)
    go, acknowledge = threading.Event(), ConsumerHolder.acknowledge

    def slow(self: ConsumerHolder, *arguments: Any) -> None:
        if threading.current_thread().name.startswith("mrecordlog-s"):
            go.wait(60)
        acknowledge(self, *arguments)

    monkeypatch.setattr(ConsumerHolder, "acknowledge", slow)

    def taken_over(records: int, seconds: float) -> None:
        Draining({"other": service}, tmp_path / "other", consumer="lake", take_over=True).all()
        go.set()

    process = Draining({"s": service}, table, consumer="lake")
    with pytest.raises(ConsumerNotOursError):
        process.drain.follow(None if ends else 0.0, lambda: go.is_set() and ends, lambda seconds: None, taken_over)


def test_a_lost_log_is_held_back_with_the_one_in_its_place(service: ThreadedService, table: Path) -> None:
    """Another log responds at the address, until the old one is forgotten; a log that a server has cannot be."""
    feed(service, "q", 0, 10)
    drain_all({"a": service}, table)
    (old,) = Draining({"a": service}, table).output.load().logs
    with pytest.raises(ForgetError, match="a server has this log"):
        drain_all({"a": service}, table, forget=(old[:8],))
    service.replace_by_nothing()
    feed(service, "q", 0, 5)
    process = Draining({"a": service}, table)
    assert process.all() == 0
    assert f"--forget {old[:8]}" in process.drain.trouble.held["a"]
    with pytest.raises(ServersHeldError, match="no server has it"):
        Draining({"a": service}, table).drain.follow(None, lambda: False, no_pause)
    with pytest.raises(ForgetError, match="at least 8"):
        drain_all({"a": service}, table, forget=("1",))
    assert drain_all({"a": service}, table, forget=(old[:8],)) == 5
    assert drain_all({"a": service}, table, forget=(old[:8],)) == 0


def test_servers_may_change_names_and_places(new_service: NewService, table: Path) -> None:
    """A log is known by its id; a log under two names is read once."""
    one, two = new_service(), new_service()
    feed(one, "q", 0, 5)
    feed(two, "r", 0, 5)
    drain_all({"a": one, "b": two}, table)
    feed(one, "q", 5, 10)
    feed(two, "r", 5, 10)
    assert drain_all({"a": two, "b": one}, table) == 10
    feed(one, "q", 10, 15)
    assert drain_all({"a": one, "again": one}, table) == 5
    assert table_rows(table) == expected(q=15, r=10)


def test_two_names_of_a_log_share_its_consumer(
    service: ThreadedService, table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever of them attaches last: it does not fence the other off, which is read."""
    first, plain = threading.Event(), ConsumerHolder.attach

    def attach(holder: ConsumerHolder, *given: Any) -> bool:
        if holder._server.name == "b":
            assert first.wait(60)
        try:
            return plain(holder, *given)
        finally:
            first.set()

    service.call(service.log.create_queue("q", options=QueueOptions(keep="until_acknowledged")))
    feed(service, "q", 0, 5)
    monkeypatch.setattr(ConsumerHolder, "attach", attach)
    process = Draining({"a": service, "b": service}, table, consumer="lake")
    assert process.all() == 5
    service.stop()
    service.start()
    first.clear()
    feed(service, "q", 5, 10)
    assert process.all() == 5
    assert table_rows(table) == expected(q=10)
    assert service.records() == {"q": []}


def test_two_live_copies_of_a_log_are_held_back(new_service: NewService, table: Path, tmp_path: Path) -> None:
    """They would give different records the same positions."""
    one = new_service()
    feed(one, "q", 0, 5)
    one.keep_copy(tmp_path / "copy")
    two = new_service()
    two.go_back(tmp_path / "copy")
    process = Draining({"a": one, "b": two}, table)
    with pytest.raises(ServersHeldError, match=r"server 'a': .* live copies .*; server 'b': .* live copies"):
        process.drain.follow(1.0, lambda: False, no_pause)
    assert table_rows(table) == []


# Servers that are away.


def test_a_server_that_is_down_does_not_stop_the_others(
    new_service: NewService, table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is reported, and read on when it responds."""
    now = [100.0]
    for module in (drain_loop, surveying):
        monkeypatch.setattr(module, "_clock", lambda: now[0])
    one, two = new_service(), new_service()
    feed(one, "q", 0, 5)
    feed(two, "r", 0, 5)
    process = Draining({"a": one, "b": two}, table)
    assert process.all() == 10
    two.stop()
    feed(one, "q", 5, 10)
    assert process.all() == 5
    assert "server 'b' is down" in process.said[-1] and process.drain.trouble.down.keys() == {"b"}
    two.start()
    feed(two, "r", 5, 10)
    now[0] += 30
    assert process.all() == 5
    assert "server 'b' responds again" in process.said


def test_a_server_that_was_never_read_must_respond_at_the_start(service: ThreadedService, table: Path) -> None:
    """Its address may be wrong; `--skip-down` starts without it."""
    feed(service, "q", 0, 5)

    def drain(*, skip_down: bool = False) -> Drain:
        servers = [Endpoint(service.url, name="a"), Endpoint(f"http://127.0.0.1:{free_port()}", name="b")]
        output = Draining({"a": service}, table).output
        return Drain(
            ServerSet(servers), output, in_process, DrainSettings(skip_down=skip_down), report=lambda line: None
        )

    with pytest.raises(ServerDownError, match="server 'b'"):
        drain().step()
    skipping = drain(skip_down=True)
    skipping.follow(None, lambda: False, no_pause)
    assert skipping.totals.rows == 5 and skipping.trouble.down.keys() == {"b"}


@pytest.fixture
def slow_listing(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Delay the listings of the servers that are named."""
    slow, ended = list[str](), threading.Event()
    listing = LogServer.listing

    def delayed(server: LogServer):  # type: ignore[no-untyped-def]  # as the method
        if server.name in slow:
            ended.wait(60)
        return listing(server)

    monkeypatch.setattr(LogServer, "listing", delayed)
    yield slow
    ended.set()


def test_a_server_that_hangs_delays_one_batch(
    new_service: NewService, table: Path, slow_listing: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others wait for it once, and go on without it."""
    monkeypatch.setattr(surveying, "WAIT_SECONDS", 0.05)
    one, two = new_service(), new_service()
    feed(one, "q", 0, 5)
    process = Draining({"a": one, "b": two}, table)
    assert process.all() == 5
    slow_listing.append("b")
    feed(one, "q", 5, 10)
    assert process.all() == 5
    assert "does not respond in time" in process.drain.trouble.down["b"]
    monkeypatch.setattr(surveying, "WAIT_SECONDS", 600.0)  # it is waited for no more
    feed(one, "q", 10, 15)
    assert process.all() == 5


def test_a_run_that_ends_waits_for_a_server(
    new_service: NewService, table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that was reached is waited for until it has been down for two minutes."""
    now = [100.0]
    for module in (drain_loop, surveying):
        monkeypatch.setattr(module, "_clock", lambda: now[0])
    one, two = new_service(), new_service()
    feed(two, "r", 0, 5)
    feed(one, "q", 0, 5)
    drain_all({"a": one, "b": two}, table)
    two.stop()

    def pause(seconds: float) -> None:
        now[0] += max(seconds, 1.0)

    process = Draining({"a": one, "b": two}, table)
    with pytest.raises(ServerDownError, match="server 'b'"):
        process.drain.follow(None, lambda: False, pause)
    assert 120 <= now[0] - 100 < 200
    skipping = Draining({"a": one, "b": two}, table, skip_down=True)
    skipping.drain.follow(None, lambda: False, pause)
    two.start()


# Consumers of others.


def test_only_what_all_consumers_have_acknowledged_is_truncated(service: ThreadedService, table: Path) -> None:
    """A drain without a consumer never drops what a consumer of the queue has not acknowledged, and stores it once."""
    service.call(service.log.create_queue("q", options=QueueOptions()))
    feed(service, "q", 0, 10)
    service.acknowledge("q", "slow", 3)
    process = Draining({"s": service}, table)
    assert process.all() == 10
    assert process.all() == 0
    assert [at for at, _ in service.records()["q"]] == list(range(4, 10))


# Two drains.


def test_of_two_drains_with_one_name_one_stops(service: ThreadedService, table: Path) -> None:
    """The second one to commit is refused, and the rows are there once."""
    feed(service, "q", 0, 5)
    other = Draining({"s": service}, table)

    def overtaken(tasks: Sequence[ReadTask], writer: RowWriter) -> list[WrittenFile]:
        files = in_process(tasks, writer)
        assert other.step() == 5
        return files

    process = Draining({"s": service}, table, run=overtaken)
    with pytest.raises(OutputRefusedError, match="another drain named 'drain' writes to"):
        process.step()
    assert table_rows(table) == expected(q=5)
    assert drain_all({"s": service}, table) == 0


@pytest.mark.parametrize("at_once", [False, True])
def test_two_names_of_drains_do_not_store_one_log(service: ThreadedService, table: Path, at_once: bool) -> None:
    """The table would have each record twice. Other queues of the log are no conflict, and a drain can be dropped."""
    feed(service, "q", 0, 5)
    feed(service, "r", 0, 3)
    a = Draining({"s": service}, table, name="a", truncate=False, includes="q".__eq__)
    b: list[Draining] = []

    def overtaken(tasks: Sequence[ReadTask], writer: RowWriter) -> list[WrittenFile]:
        if at_once and not table_rows(table):
            assert a.step() == 5
        return in_process(tasks, writer)

    if not at_once:
        assert a.step() == 5
    b.append(Draining({"s": service}, table, name="b", run=overtaken))
    with pytest.raises(OutputRefusedError, match=r"the drain 'a' stores queue 'q' of the log .* start with --name a"):
        b[0].step()
    assert table_rows(table) == expected(q=5) and len(service.records()["q"]) == 5
    assert drain_all({"s": service}, table, name="c", includes="r".__eq__) == 3
    for name in "ac":
        shutil.rmtree(table / "_mrecordlog" / name)
    feed(service, "q", 5, 6)
    assert drain_all({"s": service}, table, name="b") == 6, "what the other one had not released is read"


def test_damaged_positions_of_another_drain_stop_only_that_one(new_service: NewService, table: Path) -> None:
    """It is refused itself, so it stores nothing twice."""
    one, two = new_service(), new_service()
    feed(one, "q", 0, 5)
    feed(two, "r", 0, 5)
    drain_all({"a": one}, table, name="a")
    (positions,) = (table / "_mrecordlog" / "a").glob("*.json")
    positions.write_bytes(positions.read_bytes()[:-5])
    with pytest.raises(OutputRefusedError, match="damaged"):
        drain_all({"a": one}, table, name="a")
    assert drain_all({"b": two}, table, name="b") == 5


def test_drains_with_other_names_share_a_table(new_service: NewService, table: Path) -> None:
    """Each has its own positions, and cleans up only its own, even those that are older than a day."""
    one, two = new_service(), new_service()
    feed(one, "q", 0, 5)
    feed(two, "r", 0, 5)
    a, b = Draining({"a": one}, table, name="a"), Draining({"b": two}, table, name="b")
    assert a.step() + b.step() == 10
    feed(one, "q", 5, 10)
    assert a.step() == 5
    for path in (table / "_mrecordlog").rglob("*.json"):
        os.utime(path, (time.time() - 10 * 86_400,) * 2)
    a.output._drop_unused()
    feed(two, "r", 5, 10)
    with going_on():
        assert drain_all({"b": two}, table, name="b") == 5
    assert table_rows(table) == expected(q=10, r=10)


def test_a_clone_without_positions_is_refused(service: ThreadedService, table: Path, tmp_path: Path) -> None:
    """It says that rows were stored, and not how far; with the directory it is a copy like any other."""
    feed(service, "q", 0, 5)
    drain_all({"s": service}, table)
    shutil.copytree(table, tmp_path / "clone", ignore=shutil.ignore_patterns("_mrecordlog"))
    with pytest.raises(OutputRefusedError, match="it is a clone without this directory"):
        drain_all({"s": service}, tmp_path / "clone")
    shutil.copytree(table, tmp_path / "copy")
    assert drain_all({"s": service}, tmp_path / "copy") == 0


def test_an_idle_drain_sends_one_request(
    service: ThreadedService, table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the number of queues, and whatever was deleted or opened again since the last batch."""
    for number in range(50):
        feed(service, f"queue {number}", 0, 2)
    process = Draining({"s": service}, table)
    process.all()
    service.delete("queue 7")
    service.stop()
    service.start()
    process.all()
    sent: list[str] = []
    send = ServiceConnection.send

    def counted(self: ServiceConnection, call: Any, **named: Any) -> Any:
        sent.append(call.path)
        return send(self, call, **named)

    monkeypatch.setattr(ServiceConnection, "send", counted)
    version = process.output._table.version()
    for _ in range(3):
        assert process.step() == 0
    assert sent == ["/v1/queues"] * 3 and process.output._table.version() == version


@pytest.mark.parametrize("consumer", [None, "lake"])
def test_a_log_that_goes_back_during_a_batch_keeps_its_records(
    service: ThreadedService, table: Path, tmp_path: Path, consumer: str | None
) -> None:
    """Other records are at the positions that the batch has stored: nothing is released by them."""
    keeps = QueueOptions(keep="until_acknowledged") if consumer else QueueOptions()
    service.call(service.log.create_queue("q", options=keeps))
    service.keep_copy(tmp_path / "copy")
    feed(service, "q", 0, 10)

    def going_back(tasks: Sequence[ReadTask], writer: RowWriter) -> list[WrittenFile]:
        files = in_process(tasks, writer)
        service.go_back(tmp_path / "copy")
        service.append("q", numbered("other", 0, 20))
        return files

    process = Draining({"s": service}, table, run=going_back, consumer=consumer)
    assert process.step() == 10
    assert len(service.records()["q"]) == 20
    assert process.step() == 0
    assert "it went back" in process.drain.trouble.held["s"] and len(service.records()["q"]) == 20


def test_a_service_that_restarts_during_a_batch_is_released_by_the_next_one(
    service: ThreadedService, table: Path
) -> None:
    """A request to release names the opening of the log that was listed."""
    feed(service, "q", 0, 10)

    def restarting(tasks: Sequence[ReadTask], writer: RowWriter) -> list[WrittenFile]:
        files = in_process(tasks, writer)
        service.stop()
        service.start()
        return files

    process = Draining({"s": service}, table, run=restarting)
    assert process.step() == 10
    assert process.step() == 0
    assert not any(service.records().values()) and table_rows(table) == expected(q=10)
