"""A log is known by its id and its history: wherever it is, and however far it has grown since it went back."""

from __future__ import annotations

import json
import logging
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import cycle
from pathlib import Path

import pytest

from mrecordlog_async.protocol.log_schemas import LogResponse, OpeningResponse
from mrecordlog_async.spark.positions.history import (
    arrange,
    forgotten,
    lost_state,
    needs_openings,
    placed,
)
from mrecordlog_async.spark.positions.offsets import DataLossError, HeldBackError
from mrecordlog_async.spark.positions.proof import Listed
from mrecordlog_async.spark.services import listings
from mrecordlog_async.spark.services.client import ServiceClient
from mrecordlog_async.spark.services.connection import ServiceRefusedError
from mrecordlog_async.spark.services.fleet import LogMissingError
from mrecordlog_async.spark.settings.offset import At, Offset
from mrecordlog_async.spark.settings.option_values import OptionError
from tests.spark.conftest import NewService
from tests.spark.query import Query, rows_of
from tests.spark.services import ThreadedService, numbered
from tests.spark.test_offsets import summary

X, Y = "0123abcd" * 4, "89ef4567" * 4
AT = At("o", 7)

# Decisions.


def test_one_log_at_two_addresses_is_one_server() -> None:
    """It is read once, under the name that it had before; with two openings it is two live copies, and held back."""
    listed = Listed({}, X, "opening", at=AT)
    known = Offset({X: {"q": [1, 5]}}, {X: "b"})
    same = arrange(known, {"a": listed, "b": listed})
    assert (same.logs, same.held) == ({X: replace(listed, server="b")}, {})
    copies = arrange(known, {"a": listed, "b": replace(listed, opening="other"), "c": Listed({}, Y)})
    assert list(copies.logs) == [Y]
    assert "'a' and 'b' have live copies of one log" in copies.held[X].why


def test_a_log_is_found_under_any_name() -> None:
    """Servers that changed places or names are read on; logs that are no longer configured are kept."""
    known = Offset({X: {"q": [1, 5]}, Y: {"q": [2, 5]}, "gone": {"q": [3, 5]}}, {X: "a", Y: "b", "gone": "c"})
    swapped = arrange(known, {"b": Listed({}, X), "renamed": Listed({}, Y)})
    assert {log: listed.server for log, listed in swapped.logs.items()} == {X: "b", Y: "renamed"}
    assert swapped.held == {}


@pytest.mark.parametrize(
    ("now", "looks"),
    [
        (Listed({}, Y), "new and empty"),
        (Listed({"q": summary("q", 0, 5)}, Y, at=AT), "another one"),
        (Listed({}, "second"), "another log of this checkpoint"),
    ],
)
def test_a_log_that_another_one_replaced_is_held_back(now: Listed, looks: str) -> None:
    """So is the new one, unless the checkpoint knows it: it may belong to somebody else. The other logs go on."""
    known = Offset({X: {"q": [1, 5]}, "second": {}}, {X: "a", "second": "b"}, {X: AT})
    standing = arrange(known, {"a": now, "also a": now, "c": Listed({}, "third")})
    assert set(standing.logs) == {"third"} | ({"second"} if now.log == "second" else set())
    assert looks in standing.held[X].why and f"option forget: {X[:8]}" in standing.held[X].why
    after = known.without(forgotten([X[:8]], known, {"a": now}))
    assert set(arrange(after, {"a": now}).logs) == {now.log}


def test_only_a_log_that_is_lost_can_be_forgotten() -> None:
    """A log that is there would be read from its beginning, which would store its records twice."""
    known = Offset({X: {}, X[:8] + "f" * 24: {}})
    assert forgotten([Y], known, {}) == frozenset()
    with pytest.raises(OptionError, match="several logs begin"):
        forgotten([X[:8]], known, {})
    with pytest.raises(OptionError, match="server 'a' has the log"):
        forgotten([X[:9]], known, {"a": Listed({}, X)})


def test_a_log_that_was_known_by_a_name_gets_its_id() -> None:
    """A queue belongs to the log that has its id; what no log has belongs to that server's log."""
    known = Offset({"server:a": {"q": [1, 5], "r": [2, 6], "s": [3, 7]}}, {"server:a": "a"})
    assert placed(known, {"b": Listed({}, Y)}).positions == {"server:a": {"q": [1, 5], "r": [2, 6], "s": [3, 7]}}
    found = {"a": Listed({"q": summary("q", 0, 9, 1)}, X), "b": Listed({"r": summary("r", 0, 9, 2)}, Y)}
    moved = placed(known, found)
    assert moved.positions == {X: {"q": [1, 5], "s": [3, 7]}, Y: {"r": [2, 6]}}
    assert Offset.decode(moved.encode()) == moved


@pytest.mark.parametrize("positions", [[("a", [1, 5]), ("b", [1, 9])], [("a", [1, 9]), ("b", [1, 5])]])
def test_of_one_queue_under_two_names_the_highest_position_counts(positions: list[tuple[str, list[int]]]) -> None:
    """The lower one is from before the server was renamed: reading would begin at records that are truncated."""
    keys = {f"server:{name}": name for name, _ in positions}
    known = Offset({f"server:{name}": {"q": at} for name, at in positions}, keys)
    assert placed(known, {"b": Listed({"q": summary("q", 9, 9, 1)}, X)}).positions == {X: {"q": [1, 9]}}


@pytest.mark.parametrize("names", ["ab", "ba"])
def test_the_position_of_a_queue_that_a_log_has_counts_before_one_of_its_name(names: str) -> None:
    """A name may have been that of another log; the id of a queue belongs to one log."""
    known = Offset(
        {f"server:{name}": {"q": [1, 5] if name == "a" else [2, 7]} for name in names},
        {f"server:{name}": name for name in names},
    )
    assert placed(known, {"a": Listed({"q": summary("q", 0, 9, 2)}, X)}).positions == {X: {"q": [2, 7]}}


@pytest.mark.parametrize(
    ("now", "openings", "evidence"),
    [
        (At("o", 7), [], None),
        (At("o", 9), [], None),
        (At("o", 6), [], "lost what followed batch 6"),
        (At("p", 9), [("n", 1), ("o", 3), ("p", 8)], None),
        (At("p", 9), [("n", 1), ("o", 3), ("p", 7)], "lost what followed batch 6"),
        (At("n", 3), [("n", 1)], "does not know the opening .* restored\\)"),
        (At("p", 9), [("n", 1), ("p", 3)], "does not know the opening .* written to since"),
        (At("p", 9_000), [(f"{at}", at) for at in range(8_000, 9_024)], "more than 1024 times"),
        (None, [], "nothing was ever stored"),
    ],
)
def test_what_shows_that_a_log_went_back(now: At | None, openings: list[tuple[str, int]], evidence: str | None) -> None:
    """A log went back if it does not know the opening of the checkpoint, or if that ended before the batch."""
    assert needs_openings(AT, now) == (now is not None and now.opening != "o")
    found = lost_state(AT, now, [OpeningResponse(*each) for each in openings])
    if evidence is None:
        assert found is None
    else:
        with pytest.raises(AssertionError, match=evidence):
            raise AssertionError(found)


# Real logs.


@pytest.mark.parametrize("truncate", ["true", "false"])
def test_a_log_that_went_back_holds_back_only_itself(
    new_service: NewService, tmp_path: Path, truncate: str, caplog: pytest.LogCaptureFixture
) -> None:
    """However far it grows and however often it is opened; accepted once, it is read again from its first record."""
    a, b = new_service(), new_service()
    a.append("q", numbered("q", 0, 50))
    a.keep_copy(tmp_path / "copy")
    a.append("q", numbered("q", 50, 100))
    b.append("q", numbered("q", 0, 10))
    query = Query(f"a={a.url},b={b.url}", truncate=truncate, readAgain="{}")
    query.drain()
    a.go_back(tmp_path / "copy")
    a.append("q", [b"same"] * 100)
    b.append("q", numbered("q", 10, 20))
    with caplog.at_level(logging.WARNING):
        query.drain()
    assert "held back: server 'a'" in caplog.text
    assert sorted(query.rows[110:]) == rows_of("b", "q", 10, 20)
    latest = query.reader.reportLatestOffset()
    assert latest is not None and "server 'a': it does not know the opening" in latest["held"][0]
    a.stop()
    a.start()
    del query.options["readAgain"]
    query.options["servers"] = f"a={a.url}"
    for _ in range(2):
        with pytest.raises(HeldBackError, match="went back"):
            query.drain()
    assert a.positions("q") == (0, 150), "nothing was truncated"
    query.options["acceptWentBack"] = "true"
    query.drain()
    assert [row[3] for row in query.rows[120:]] == numbered("q", 0, 50) + [b"same"] * 100
    del query.options["acceptWentBack"]
    query.drain()


def test_a_consumer_moves_back_with_a_log_that_is_accepted(service: ThreadedService, tmp_path: Path) -> None:
    """The log had acknowledged records that are read again: they must not be dropped before that."""
    service.append("q", numbered("q", 0, 10))
    query = Query(service.url, consumer="lake", consumerOwner="11111111-1111-1111-1111-111111111111")
    query.drain()
    query.drain()
    service.keep_copy(tmp_path / "copy")
    service.append("q", numbered("q", 10, 15))
    query.drain()
    service.go_back(tmp_path / "copy")
    service.append("q", numbered("new", 10, 12))
    query.options["acceptWentBack"] = "true"
    query.drain()
    assert [row[3] for row in query.rows[15:]] == numbered("q", 0, 10) + numbered("new", 10, 12)


def test_a_run_that_ends_fails_once_it_has_read_the_rest(new_service: NewService) -> None:
    """Otherwise it would look as if everything had been read."""
    a, b = new_service(), new_service()
    for service in (a, b):
        service.append("q", numbered("q", 0, 5))
    query = Query(f"a={a.url},b={b.url}")
    query.drain()
    a.replace_by_nothing()
    a.append("q", numbered("new", 0, 3))
    b.append("q", numbered("q", 5, 9))
    with pytest.raises(HeldBackError, match=r"server 'a': the checkpoint continues the log \w+, and no server has it"):
        query.drain()
    assert query.rows[10:] == rows_of("b", "q", 5, 9)
    with pytest.raises(DataLossError) as refused:
        query.drain()
    lost = str(refused.value).partition("option forget: ")[2][:8]
    query.options["forget"] = lost
    query.drain()
    assert query.rows[14:] == [("a", "q", at, f"new:{at}".encode()) for at in range(3)]
    query.drain()


def test_a_log_that_replaces_a_forgotten_one_is_read_from_its_first_record(new_service: NewService) -> None:
    """Even by a stream that began with the latest records: they are as new as those of a queue that is created."""
    a, b = new_service(), new_service()
    for service in (a, b):
        service.append("q", numbered("old", 0, 5))
    query = Query(f"a={a.url},b={b.url}", startingOffsets="latest")
    query.drain()
    (lost,) = (log for log, name in Offset.decode(query.committed).servers.items() if name == "b")
    b.replace_by_nothing()
    b.append("q", numbered("q", 0, 3))
    query.options["forget"] = lost[:8]
    query.drain()
    assert query.rows == rows_of("b", "q", 0, 3)


def test_that_a_log_went_back_is_accepted_once_in_a_run(new_service: NewService, tmp_path: Path) -> None:
    """Who accepted it knew of one restored state. What goes back again without a word would be read for ever."""
    a, b = new_service(), new_service()
    for service in (a, b):
        service.append("q", numbered("q", 0, 3))
    a.keep_copy(tmp_path / "copy")
    a.append("q", numbered("q", 3, 5))
    query = Query(f"a={a.url},b={b.url}", acceptWentBack="true")
    while query.step():
        pass
    assert len(query.rows) == 8
    for again in (rows_of("a", "q", 0, 7), []):
        a.go_back(tmp_path / "copy")
        a.append("q", numbered("q", 3, 7))
        before = len(query.rows)
        while query.step():
            pass
        assert query.rows[before:] == again
    (held,) = (query.reader.reportLatestOffset() or {})["held"]
    assert held.startswith("server 'a': it does not know the opening in which it was read")


def test_what_a_drain_has_read_again_ends_where_it_began(service: ThreadedService) -> None:
    """The position that says what to read again is then the position again, and must not begin another round."""
    service.append("q", numbered("q", 0, 5))
    query = Query(service.url)
    while query.step():
        pass
    query.options["readAgain"] = json.dumps(query.positions)
    query.restart()
    for _ in range(4):
        query.step()
    assert query.rows == rows_of("default", "q", 0, 5) * 2
    assert not query.step()


def test_a_commit_releases_nothing_of_a_log_that_went_back(service: ThreadedService, tmp_path: Path) -> None:
    """Its records may be others than those that were stored: the next trigger has all of them read again."""
    service.append("q", numbered("q", 0, 3))
    service.keep_copy(tmp_path / "copy")
    service.append("q", numbered("q", 3, 5))
    query = Query(service.url, truncate="true", acceptWentBack="true")
    while query.step():
        pass
    service.go_back(tmp_path / "copy")
    service.append("q", numbered("new", 3, 9))
    query.restart()
    query.reader.commit(query.committed)
    assert service.positions("q") == (0, 9)


def _with_a_batch_begun(new_service: NewService) -> tuple[Query, ThreadedService, str]:
    """Return a query of two services that died in a batch of both; the second one, "b", and its log."""
    first, second = new_service(), new_service()
    for service in (first, second):
        service.append("q", numbered("q", 0, 3))
    query = Query(f"a={first.url},b={second.url}")
    query.step()
    query.step(die_before_commit=True)
    (log,) = (log for log, name in Offset.decode(query.committed).servers.items() if name == "b")
    return query, second, log


def test_a_batch_that_was_begun_needs_its_logs_until_they_are_forgotten(new_service: NewService) -> None:
    """Without one of its logs it fails, and says how to go on: with the rest of the batch, then with the new log."""
    query, second, lost = _with_a_batch_begun(new_service)
    second.replace_by_nothing()
    with pytest.raises(LogMissingError, match=rf"server 'b': .*--forget, option forget: {lost[:8]}\)"):
        query.step()
    query.options["forget"] = lost[:8]
    query.restart()
    query.step()
    assert query.rows == rows_of("a", "q", 0, 3)
    second.append("q", numbered("q", 0, 2))
    query.drain()
    assert query.rows[3:] == rows_of("b", "q", 0, 2)


def test_servers_that_changed_places_are_read_on(new_service: NewService) -> None:
    """Even a batch that was planned before: its rows keep the names under which it was planned."""
    a, b = new_service(), new_service()
    a.append("q", numbered("q", 0, 5))
    b.append("r", numbered("r", 0, 5))
    query = Query(f"a={a.url},b={b.url}", truncate="true")
    query.drain()
    a.append("q", numbered("q", 5, 7))
    query.restart()
    assert query.step(die_before_commit=True)
    query.options["servers"] = f"a={b.url},b={a.url}"
    query.restart()
    query.step()
    assert query.rows[10:] == rows_of("a", "q", 5, 7)
    a.append("q", numbered("q", 7, 9))
    b.append("r", numbered("r", 5, 6))
    query.drain()
    assert sorted(query.rows[12:]) == rows_of("a", "r", 5, 6) + rows_of("b", "q", 7, 9)
    assert a.records() == {"q": []} and b.records() == {"r": []}


def test_two_names_of_one_server_are_read_once(service: ThreadedService) -> None:
    """In a stream and in a table: rows have one of the names, always the same."""
    service.append("q", numbered("q", 0, 5))
    query = Query(f"b={service.url}")
    query.drain()
    query.options["servers"] = f"a={service.url},b={service.url.replace('127.0.0.1', 'localhost')}"
    service.append("q", numbered("q", 5, 8))
    query.drain()
    assert query.rows == rows_of("b", "q", 0, 8)
    assert list(query.reader._fleet.distinct()) == ["a"]


def test_a_load_balancer_is_refused(new_service: NewService) -> None:
    """Its address leads to another log with each connection, so positions of one would be used for another."""
    first, second, alone = new_service(), new_service(), new_service()
    for service in (first, second, alone):
        service.append("q", numbered("q", 0, 5))
    with balancing(first.port, second.port) as url:
        query = Query(url)
        with pytest.raises(HeldBackError, match=r"responds with several logs .* load balancer"):
            query.step()
        query = Query(f"a={url},b={alone.url}", readAgain="{}")
        query.drain()
    assert query.rows == rows_of("b", "q", 0, 5)


def test_a_load_balancer_that_is_refused_is_asked_again_now_and_then(
    new_service: NewService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every ten seconds, on new connections: an idle stream looks at its servers a hundred times per second."""
    first, second, alone = new_service(), new_service(), new_service()
    for service in (first, second, alone):
        service.append("q", numbered("q", 0, 5))
    asked: list[str] = []
    history = ServiceClient.history

    def counted(client: ServiceClient) -> LogResponse:
        asked.append(client.url)
        return history(client)

    monkeypatch.setattr(ServiceClient, "history", counted)
    now = [1_000.0]
    monkeypatch.setattr(listings, "_clock", lambda: now[-1])
    with balancing(first.port, second.port) as url:
        query = Query(f"a={url},b={alone.url}", readAgain="{}")
        for seconds, times in ((0.0, 2), (0.01, 2), (0.01, 2), (10.0, 4), (0.01, 4)):
            now.append(now[-1] + seconds)
            query.step()
            assert asked.count(url) == times
    assert query.rows == rows_of("b", "q", 0, 5)


@contextmanager
def balancing(*ports: int) -> Iterator[str]:
    """Forward each new connection to the next of *ports*; yield the address."""
    listener, sockets = socket.create_server(("127.0.0.1", 0)), list[socket.socket]()
    threads: list[threading.Thread] = []

    def forward(source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65_536):
                target.sendall(data)
        with suppress(OSError):
            target.shutdown(socket.SHUT_WR)

    def serve() -> None:
        with suppress(OSError):
            for port in cycle(ports):
                client, _ = listener.accept()
                sockets.append(client)
                server = socket.create_connection(("127.0.0.1", port))
                sockets.append(server)
                for ends in ((client, server), (server, client)):
                    threads.append(threading.Thread(target=forward, args=ends, daemon=True))
                    threads[-1].start()

    accepting = threading.Thread(target=serve, daemon=True)
    accepting.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        with suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        accepting.join(60)
        for each in sockets:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        for thread in threads:
            thread.join(60)
        for each in sockets:
            each.close()


def test_a_task_is_refused_by_another_log(service: ThreadedService) -> None:
    """Even if its queue has the same name and positions: the request names the log that was planned."""
    service.append("q", numbered("q", 0, 5))
    query = Query(service.url)
    query.step()
    end = query.reader.latestOffset(query.committed, query.reader.getDefaultReadLimit())
    (partition,) = query.reader.partitions(query.committed, end)
    service.replace_by_nothing()
    service.append("q", numbered("q", 0, 5))
    with pytest.raises(ServiceRefusedError, match=r"status 412: this is the log"):
        list(query.reader.read(partition))
    query.restart()
    with pytest.raises(LogMissingError, match=r"a batch that was begun reads the log \w+, and no server has it"):
        query.reader.partitions(query.committed, end)


def test_two_live_copies_are_refused(new_service: NewService, tmp_path: Path) -> None:
    """Each would get records of its own at the same positions."""
    service = new_service()
    service.append("q", numbered("q", 0, 5))
    service.keep_copy(tmp_path / "copy")
    copy = new_service()
    copy.go_back(tmp_path / "copy")
    query = Query(f"a={service.url},b={copy.url}")
    with pytest.raises(HeldBackError, match="'a' and 'b' have live copies of one log"):
        query.step()
    with pytest.raises(OptionError, match="live copies"):
        query.reader._fleet.distinct()


def test_a_log_that_is_there_is_not_forgotten_by_a_batch_that_was_begun(new_service: NewService) -> None:
    """Its records would be left out of the batch, and its positions would be past them: they would never be read."""
    query, _, there = _with_a_batch_begun(new_service)
    query.options["forget"] = there[:8]
    query.restart()
    with pytest.raises(OptionError, match=f"server 'b' has the log {there[:8]}"):
        query.step()
    del query.options["forget"]
    query.drain()
    assert sorted(query.rows) == rows_of("a", "q", 0, 3) + rows_of("b", "q", 0, 3)
