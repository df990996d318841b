"""A load that ended early is completed by the next one, and a dump whose end is missing is reported."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from mrecordlog_async import MultiRecordLog, QueueOptions, ReadOnlyLog
from mrecordlog_async.cli.logs import Log
from mrecordlog_async.cli.main import main
from mrecordlog_async.client import RecordLogClient
from mrecordlog_async.client.sender import Sender
from mrecordlog_async.maintenance.load import load
from mrecordlog_async.model import QueueSummary
from mrecordlog_async.protocol.calls import ServiceCall
from tests.cli.running import build, mrecordlog, open_then_truncate, over_several_segments
from tests.conftest import contents
from tests.served import Served

CHANGES = ("create_queue", "append_record", "append_records", "truncate")
LINES = [
    '{"queue": "begins at 100", "first_position": 100, "next_position": 102}',
    '{"queue": "begins at 100", "position": 100, "text": "x"}',
    '{"queue": "begins at 100", "position": 101, "text": "y"}',
    '{"queue": "emptied", "first_position": 50, "next_position": 50}',
    '{"queue": "emptied meanwhile", "first_position": 1, "next_position": 9}',
    '{"queue": "emptied meanwhile", "position": 1, "text": ""}',
    '{"queue": "emptied meanwhile", "position": 2, "text": "z"}',
    '{"queue": "emptied meanwhile", "first_position": 9, "next_position": 9}',
]
LOADED = {
    "begins at 100": (100, 102, [(100, b"x"), (101, b"y")]),
    "emptied": (50, 50, []),
    "emptied meanwhile": (9, 9, []),
}


class _StoppedError(Exception):
    """What ends an attempt in these tests."""


class Stop:
    """Ends a load before one of its calls that change the target."""

    def __init__(self, patch: pytest.MonkeyPatch, target: type[Any]) -> None:
        self.left = -1
        for name in CHANGES:
            patch.setattr(target, name, self._counted(getattr(target, name)))

    def _counted(self, change: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def counted(*arguments: Any, **options: Any) -> Any:
            if self.left == 0:
                raise _StoppedError
            self.left -= 1
            return await change(*arguments, **options)

        return counted

    async def load(self, target: MultiRecordLog | RecordLogClient, calls: int) -> bool:
        """Load, but end before the call after *calls* ones; return whether it came to its end."""
        self.left = calls
        try:
            await load(target, LINES)
        except _StoppedError:
            return False
        finally:
            self.left = -1
        return True


async def test_a_load_that_is_killed_before_any_call_is_completed_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever it was killed: each queue ends where its line says, without a record that the lines do not have."""
    stop, calls, ended = Stop(monkeypatch, MultiRecordLog), 0, False
    while not ended:
        async with MultiRecordLog.open(tmp_path / str(calls)) as log:
            ended = await stop.load(log, calls)
            if not ended:
                await stop.load(log, -1)
            assert contents(log) == LOADED, calls
        calls += 1
    assert calls > len(LOADED) * 2


async def test_a_load_into_a_service_that_is_killed_is_completed_by_the_next(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a directory. The record that stands for the positions before a queue's first one is removed, too."""
    stop, calls, ended = Stop(monkeypatch, RecordLogClient), 0, False
    async with RecordLogClient(served.url) as client:
        while not ended:
            for queue in served.log.list_queues():
                await served.log.delete_queue(queue)
            ended = await stop.load(client, calls)
            if not ended:
                await stop.load(client, -1)
            assert contents(served.log) == LOADED, calls
            calls += 1
    assert calls > len(LOADED) * 2


async def test_what_others_append_after_a_killed_load_stays(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next load removes only what the killed one has left before the first position."""
    stop = Stop(monkeypatch, RecordLogClient)
    async with RecordLogClient(served.url) as client:
        assert not await stop.load(client, 4 + 2)  # all calls of the first queue, and two of the second
        assert contents(served.log)["emptied"] == (49, 50, [(49, b"")])
        await served.log.append("emptied", b"new")
        await stop.load(client, -1)
    await served.log.delete_queue("q")  # of the fixture
    assert contents(served.log) == {**LOADED, "emptied": (50, 51, [(50, b"new")])}


async def _two_records(log: MultiRecordLog) -> None:
    await log.create_queue("q")
    await log.append_records("q", None, [b"zero", b""])


@pytest.mark.parametrize(("first", "following"), [(2, 2), (2, 4), (9, 9)])
def test_records_of_other_origin_stay(tmp_path: Path, first: int, following: int) -> None:
    """A queue that holds records which are not in the lines keeps them, even where its line begins after them."""
    copy = build(tmp_path / "copy", _two_records)
    lines = [f'{{"queue": "q", "first_position": {first}, "next_position": {following}}}\n']
    lines += [f'{{"queue": "q", "position": {at}, "text": "{at}"}}\n' for at in range(first, following)]
    assert mrecordlog("load", copy, stdin="".join(lines)).code == 0
    with ReadOnlyLog.open(copy) as log:
        assert list(log.range("q"))[:2] == [(0, b"zero"), (1, b"")]


def _records(count: int) -> list[str]:
    head = json.dumps({"queue": "q", "first_position": 0, "next_position": count})
    return [head, *(json.dumps({"queue": "q", "position": at, "text": f"{at}"}) for at in range(count))]


def _in_lines(lines: list[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def test_corrected_lines_are_loaded_after_an_invalid_one(tmp_path: Path) -> None:
    """What was stored before the invalid line is recognized in the middle of a batch; the rest is appended."""
    lines = _records(20)
    stopped = mrecordlog("load", tmp_path / "wal", stdin=_in_lines([*lines[:16], "broken", *lines[17:]]))
    assert (stopped.code, "line 17 is not a valid dump line" in stopped.err) == (2, True)
    loaded = mrecordlog("load", tmp_path / "wal", stdin=_in_lines(lines))
    assert (loaded.code, loaded.out) == (0, "0 queues created, 5 records stored, 15 records already there\n")
    with ReadOnlyLog.open(tmp_path / "wal") as log:
        assert list(log.range("q")) == [(at, b"%d" % at) for at in range(20)]


async def test_a_longer_dump_is_loaded_after_a_shorter_one_into_a_service(served: Served) -> None:
    """Its first records are compared, and the others appended, as in a directory."""
    async with RecordLogClient(served.url) as client:
        await load(client, _records(8))
        again = await load(client, _records(20))
    assert (again.queues, again.records, again.repeats) == (0, 12, 8)
    assert list(served.log.range("q")) == [(at, b"%d" % at) for at in range(20)]


@pytest.mark.parametrize("longer", [0, 4], ids=["as long", "longer"])
def test_a_record_that_differs_is_refused_where_it_differs(tmp_path: Path, longer: int) -> None:
    """The error names its line and position, and nothing after it is stored."""
    mrecordlog("load", tmp_path / "wal", stdin=_in_lines(_records(8)))
    lines = _records(8 + longer)
    lines[6] = lines[6].replace('"5"', '"five"')
    ran = mrecordlog("load", tmp_path / "wal", stdin=_in_lines(lines))
    refusal = "line 7: queue 'q': position 5 is already taken by another record, the next one is 8; everything before"
    assert (ran.code, refusal in ran.err) == (1, True)
    with ReadOnlyLog.open(tmp_path / "wal") as log:
        assert list(log.range("q")) == [(at, b"%d" % at) for at in range(8)]


def test_a_record_at_a_position_that_was_left_out_is_refused(tmp_path: Path) -> None:
    """The log has assigned the positions after it, so it cannot be stored any more."""
    lines = _records(8)
    mrecordlog("load", tmp_path / "wal", stdin=_in_lines([*lines[:4], *lines[5:]]))
    ran = mrecordlog("load", tmp_path / "wal", stdin=_in_lines(lines))
    assert (
        ran.code,
        "line 5: queue 'q': position 3 is already taken or was skipped, the next one is 8" in ran.err,
    ) == (1, True)


async def _several(log: MultiRecordLog) -> None:
    for queue in ("a", "b", "c"):
        await log.create_queue(queue, options=QueueOptions(max_records=9))
        await log.append_records(queue, None, [b"one", b"two"])
    await log.create_consumer("x*", "lake")
    await log.create_consumer("y*", "lake")


def test_a_dump_that_ends_early_is_not_whole(tmp_path: Path) -> None:
    """After whichever line it ends: the lines are stored, the command fails, and the whole dump completes them."""
    source = build(tmp_path / "wal", _several)
    lines = mrecordlog("dump", source).out.splitlines()
    assert len(lines) == 11
    for count in range(1, len(lines)):
        copy = tmp_path / f"copy {count}"
        ran = mrecordlog("load", copy, stdin=_in_lines(lines[:count]))
        assert (ran.code, "the dump is incomplete" in ran.err) == (1, True), count
        with ReadOnlyLog.open(copy) as log:
            held = sum(log.queue_summary(queue).records for queue in log.list_queues())
            assert held == sum('"payload"' in line for line in lines[:count])
    loaded = mrecordlog("load", copy, stdin=_in_lines(lines))
    assert (loaded.code, mrecordlog("dump", copy).out) == (0, _in_lines(lines))


@pytest.mark.parametrize("lines", ["", "\n"], ids=["nothing", "an empty line"])
def test_no_lines_are_no_dump(tmp_path: Path, lines: str) -> None:
    """The command that was to write them failed; a backup that is restored from them would be called whole."""
    (tmp_path / "lines").write_text(lines)
    for ran in (
        mrecordlog("load", tmp_path / "a", stdin=lines),
        mrecordlog("load", tmp_path / "b", tmp_path / "lines"),
    ):
        assert (ran.code, "there are no lines to load" in ran.err) == (1, True)


@pytest.mark.parametrize(
    "lines",
    ["", "\n", '\n{"queue": 5}\n', "Traceback (most recent call last):\n", '{"queue": "a\\u0000", "text": "x"}\n'],
    ids=["nothing", "an empty line", "an invalid line", "a message", "a name that no new queue may have"],
)
def test_input_of_which_nothing_is_loaded_leaves_no_log(tmp_path: Path, lines: str) -> None:
    """A directory that did not exist still does not, and an empty one is empty: neither is taken for a loaded log."""
    (tmp_path / "lines").write_text(lines)
    (tmp_path / "empty").mkdir()
    for target in ("missing", "empty"):
        from_input = mrecordlog("load", tmp_path / target, stdin=lines)
        from_file = mrecordlog("load", tmp_path / target, tmp_path / "lines")
        assert (from_input.code, from_input.err) == (from_file.code, from_file.err)
        assert from_input.code in (1, 2)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["empty", "lines"]


async def test_a_log_without_queues_is_dumped_and_loaded(
    tmp_path: Path, directory: Path, served: Served, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line says so: an empty dump is one that failed."""
    for queue in served.log.list_queues():
        await served.log.delete_queue(queue)
    for log in (served.url, str(directory)):
        assert await asyncio.to_thread(main, ["dump", log]) == 0
        lines = capsys.readouterr().out
        assert json.loads(lines) == {"remaining": 0}
        ran = await asyncio.to_thread(mrecordlog, "load", tmp_path / "copy", stdin=lines)
        assert (ran.code, ran.out) == (0, "0 queues created, 0 records stored\n")


def test_the_records_that_are_missing_are_named(tmp_path: Path) -> None:
    """Even in a dump of an older version, which does not say how many lines follow."""
    lines = '{"queue": "a", "first_position": 0, "next_position": 3}\n{"queue": "a", "position": 0, "text": "x"}\n'
    ran = mrecordlog("load", tmp_path / "wal", stdin=lines)
    assert ran.code == 1
    assert "the lines of queue 'a' end before position 1, but its next position is 3: the dump is incomplete" in ran.err


@pytest.mark.parametrize("more", ['"next_position": 4', '"next_position": "5"', '"remaining": -1', '"remaining": null'])
def test_wrong_numbers_are_named(tmp_path: Path, more: str) -> None:
    """A line with them creates no queue."""
    lines = f'{{"queue": "a"}}\n{{"queue": "q", "first_position": 5, {more}}}\n'
    ran = mrecordlog("load", tmp_path / "wal", stdin=lines)
    assert (ran.code, "line 2 is not a valid dump line" in ran.err) == (2, True)
    with ReadOnlyLog.open(tmp_path / "wal") as log:
        assert log.list_queues() == ["a"]


@pytest.mark.parametrize("named", [[], ["q"]], ids=["all", "one"])
def test_a_queue_that_is_truncated_while_it_is_dumped_keeps_its_next_position(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], named: list[str]
) -> None:
    """The dump says that the queue is empty, so that the copy assigns none of its positions again."""
    source = build(tmp_path / "wal", over_several_segments)

    monkeypatch.setattr(Log, "read", lambda log: open_then_truncate(log.place))
    assert main(["dump", str(source), *named]) == 0
    lines = capsys.readouterr().out
    assert '{"queue": "q", "first_position": 20, "next_position": 20' in lines
    loaded = mrecordlog("load", tmp_path / "copy", stdin=lines)
    assert (loaded.code, loaded.err) == (0, "")
    with ReadOnlyLog.open(tmp_path / "copy") as log:
        summary = log.queue_summary("q")
        assert (summary.first_position, summary.next_position) == (20, 20)


async def test_a_queue_of_a_service_that_is_truncated_while_it_is_dumped(
    served: Served, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The dump says so in another line of the queue."""
    await served.log.append_records("q", None, [b"x"] * 3, create=True)
    summary_of = RecordLogClient.queue_summary

    async def then_truncated(client: RecordLogClient, queue: str) -> QueueSummary:
        summary = await summary_of(client, queue)
        await client.truncate(queue, summary.next_position - 1)
        return summary

    monkeypatch.setattr(RecordLogClient, "queue_summary", then_truncated)
    assert await asyncio.to_thread(main, ["dump", served.url]) == 0
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == [
        {"queue": "q", "first_position": 0, "next_position": 3, "remaining": 0},
        {"queue": "q", "first_position": 3, "next_position": 3, "remaining": 0},
    ]


class Deleted:
    """Deletes the queue "q" of a service right after the client's *call*-th answer about a queue's positions."""

    def __init__(self, patch: pytest.MonkeyPatch, served: Served, call: int, *, recreated: bool) -> None:
        self.calls, self.due, self.served, self.recreated = 0, call, served, recreated
        patch.setattr(Sender, "send", self._then_deleted(Sender.send))

    def _then_deleted(self, send: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def then_deleted(sender: Sender, call: ServiceCall[Any]) -> Any:
            found = await send(sender, call)
            if call.method == "GET" and call.path in ("/v1/queues", "/v1/queues/q"):
                self.calls += 1
                if self.calls == self.due:
                    client = RecordLogClient.over(sender)
                    await client.delete_queue("q", past_consumers=True)
                    if self.recreated:
                        await client.append("q", b"of another queue", create=True)
            return found

        return then_deleted


@pytest.mark.parametrize("recreated", [False, True], ids=["for good", "and recreated"])
@pytest.mark.parametrize("named", [[], ["q"]], ids=["all", "one"])
async def test_a_dump_of_a_service_is_whole_if_a_queue_is_deleted_meanwhile(
    tmp_path: Path,
    served: Served,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    named: list[str],
    recreated: bool,
) -> None:
    """After whichever request: the queue is empty where it ended, or as it is since, and no line is missing."""
    call = 0
    deleted: Deleted | None = None
    while deleted is None or deleted.calls >= call:
        call += 1
        for queue in served.log.list_queues():
            await served.log.delete_queue(queue)
        await served.log.append_records("q", None, [b"x"] * 3, create=True)
        await served.log.create_consumer("q", "c", start=2)
        with monkeypatch.context() as patch:
            deleted = Deleted(patch, served, call, recreated=recreated)
            assert await asyncio.to_thread(main, ["dump", served.url, *named]) == 0
        async with MultiRecordLog.open(tmp_path / f"copy {call}") as copy:
            await load(copy, capsys.readouterr().out.splitlines())
            found = contents(copy)
        whole, since = (0, 3, [(at, b"x") for at in range(3)]), (0, 1, [(0, b"of another queue")])
        assert list(found) == ["q"]
        assert found["q"] in (whole, (3, 3, []), *([since] if recreated else [])), call
    assert call > 3


async def test_a_dump_of_a_queue_that_does_not_exist_prints_nothing(
    served: Served, capsys: pytest.CaptureFixture[str]
) -> None:
    """Even if a queue that exists is named before it: as in a directory."""
    await served.log.append("there", b"x", create=True)
    for named in (["not there"], ["there", "not there"]):
        options = list(named)
        assert await asyncio.to_thread(main, ["dump", served.url, *options]) == 1
        printed = capsys.readouterr()
        assert (printed.out, "queue 'not there' does not exist" in printed.err) == ("", True)
