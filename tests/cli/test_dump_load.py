"""Queues as lines of JSON, out and back in."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import pytest

from mrecordlog_async import MultiRecordLog, QueueOptions, ReadOnlyLog
from mrecordlog_async.cli.queues import settings_text
from mrecordlog_async.maintenance.dumped_lines import InvalidLineError, parse_line
from mrecordlog_async.maintenance.queue_settings import QueueSettings
from tests import damage, warm
from tests.cli.carried import OWNER, all_settings, settings_seen
from tests.cli.running import build, mrecordlog, three_queues
from tests.conftest import contents
from tests.serving import Process


async def odd_payloads(log: MultiRecordLog) -> None:
    await log.create_queue("späße")
    await log.append_records("späße", 7, ['grüße \n\t"quoted"'.encode(), b"\xff\x00", b""])
    await log.append_record("späße", 20, b"behind a gap")
    await log.create_queue("truncated")
    await log.append_records("truncated", None, [b"a", b"b", b"c"])
    await log.truncate("truncated", 1)


@pytest.mark.parametrize("form", [[], ["--text"]])
def test_dumped_and_loaded_is_the_same(tmp_path: Path, form: list[str]) -> None:
    """Positions, gaps, truncated and empty queues, and any payload come back as they were."""

    async def fill(log: MultiRecordLog) -> None:
        await three_queues(log)
        await odd_payloads(log)

    source = build(tmp_path / "wal", fill)
    dumped = mrecordlog("dump", source, *form)
    assert (dumped.code, dumped.err) == (0, "")
    loaded = mrecordlog("load", tmp_path / "copy", stdin=dumped.out)
    assert (loaded.code, loaded.out) == (0, "5 queues created, 16 records stored\n")
    with ReadOnlyLog.open(source) as before, ReadOnlyLog.open(tmp_path / "copy") as after:
        assert contents(after) == contents(before)


def test_a_queue_that_is_named_twice_is_dumped_each_time(tmp_path: Path) -> None:
    """Small queues are read together: the second time it is named, it has its records as the first time."""
    directory = build(tmp_path / "wal", three_queues)
    name = json.loads(mrecordlog("dump", directory).out.splitlines()[1])["queue"]
    once = mrecordlog("dump", directory, name).out
    twice = mrecordlog("dump", directory, name, name)
    assert (twice.code, twice.err) == (0, "")
    assert twice.out == once.replace('"remaining": 0', '"remaining": 1') + once


def test_loading_again_stores_nothing(tmp_path: Path) -> None:
    """The positions in the lines make the second load a repeat."""
    lines = mrecordlog("dump", build(tmp_path / "wal", three_queues)).out
    mrecordlog("load", tmp_path / "copy", stdin=lines)
    again = mrecordlog("load", tmp_path / "copy", stdin=lines)
    assert again.out == "0 queues created, 0 records stored, 11 records already there\n"


@pytest.mark.parametrize("line", [{"queue": "a\tb", "text": "no"}, {"queue": "a\tb"}])
def test_a_name_that_no_queue_may_have_is_named_by_its_line(tmp_path: Path, line: dict[str, str]) -> None:
    """In a file of thousands of lines, the name alone does not say where it is, nor what was stored."""
    lines = json.dumps({"queue": "a", "text": "one"}) + "\n" + json.dumps(line) + "\n"
    ran = mrecordlog("load", tmp_path / "wal", stdin=lines)
    assert ran.code == 1
    assert "line 2: queue name 'a\\tb' contains control characters" in ran.err
    assert ran.err.endswith("everything before line 2 is stored\n")
    assert mrecordlog("cat", tmp_path / "wal", "a").out == "one\n"


def test_text_is_readable(tmp_path: Path) -> None:
    """Valid UTF-8 is printed as text; other payloads stay base64."""
    lines = mrecordlog("dump", build(tmp_path / "wal", odd_payloads), "späße", "--text").out.splitlines()
    assert json.loads(lines[0]) == {"queue": "späße", "first_position": 7, "next_position": 21, "remaining": 0}
    assert json.loads(lines[1]) == {"queue": "späße", "position": 7, "text": 'grüße \n\t"quoted"'}
    assert json.loads(lines[2]) == {"queue": "späße", "position": 8, "payload": "/wA="}


def test_lines_without_positions_are_appended(tmp_path: Path) -> None:
    """A line needs only a queue and a text."""
    line = '{"queue": "orders", "text": "hello"}\n'
    assert mrecordlog("load", tmp_path / "wal", stdin=line * 3).out == "1 queue created, 3 records stored\n"
    with ReadOnlyLog.open(tmp_path / "wal") as log:
        assert list(log.range("orders")) == [(0, b"hello"), (1, b"hello"), (2, b"hello")]


def test_a_consumer_of_a_queue_with_a_star_in_its_name_comes_back_alone(tmp_path: Path) -> None:
    """It makes no rule, so no other queue gets a consumer that nobody asked for; a second load leaves it there."""

    async def fill(log: MultiRecordLog) -> None:
        for queue in ("a*b", "axb"):
            await log.create_queue(queue)
            await log.append_records(queue, None, [b"1", b"2", b"3"])
        async with log.consumer("a*b", "c") as consumer:
            await consumer.acknowledge(1)

    source, copy = build(tmp_path / "wal", fill), tmp_path / "copy"
    lines = mrecordlog("dump", source).out
    for _ in range(2):
        assert mrecordlog("load", copy, stdin=lines).code == 0
        assert settings_seen(copy) == settings_seen(source)


def test_a_wrong_line_is_named(tmp_path: Path) -> None:
    """The lines before an invalid one are stored; the command reports where it stopped."""
    lines = '{"queue": "q", "text": "one"}\n{"queue": "q", "payload": "not base64"}\n'
    ran = mrecordlog("load", tmp_path / "wal", stdin=lines)
    assert ran.code == 2
    assert ran.err == "mrecordlog: line 2 is not a valid dump line: Only base64 data is allowed\n"
    with ReadOnlyLog.open(tmp_path / "wal") as log:
        assert list(log.range("q")) == [(0, b"one")]


@pytest.mark.parametrize(
    "line",
    [
        b'{"queue": 5, "text": "x"}',
        b'{"queue": "", "text": "x"}',
        b'{"queue": "q", "position": "1", "text": "x"}',
        b'{"queue": "q", "position": 1.5, "text": "x"}',
        b'{"queue": "q", "position": true, "text": "x"}',
        b'{"queue": "q", "position": -1, "text": "x"}',
        b'{"queue": "q", "position": 9223372036854775808, "text": "x"}',
        b'{"queue": "q", "text": null}',
        b'{"queue": "q", "text": {"a": 1}}',
        b'{"queue": "q", "first_position": "x"}',
        b'{"queue": "q", "first_position": 9223372036854775808, "next_position": 9223372036854775808}',
        b'{"queue": "q", "consumers": [{"consumer": "c", "position": 9223372036854775808}]}',
        b'{"queue": "q", "first_position": -5}',
        b'{"queue": "q", "text": "\xff"}',
        b'{"queue": "\xff", "text": "x"}',
        b'{"queue": "q", "position": 4}',
        b'{"queue": "q", "txt": "x"}',
        b'{"text": "x"}',
        b"7",
        b"[" * 100_000,
    ],
)
def test_what_no_dump_has_is_named_by_its_line(tmp_path: Path, line: bytes) -> None:
    """Members of another type, positions below 0, bytes that are not UTF-8: even in a file."""
    (tmp_path / "lines").write_bytes(b'{"queue": "q", "text": "one"}\n' + line + b"\n")
    for number, source in enumerate(([], [str(tmp_path / "lines")])):
        with open(tmp_path / "lines", "rb") as lines:
            command = ["load", str(tmp_path / f"wal-{number}"), *source]
            with warm.start(command, stdin=lines, stderr=subprocess.PIPE) as done:
                _, said = done.communicate(timeout=60)
        assert done.returncode == 2
        assert b"line 2 is not a valid dump line" in said
        with ReadOnlyLog.open(tmp_path / f"wal-{number}") as log:
            assert list(log.range("q")) == [(0, b"one")]


def test_lines_are_utf_8_whatever_the_locale_says(tmp_path: Path) -> None:
    """Through pipes with another encoding, a dump loads back to the same bytes."""
    line = '{"queue": "q", "position": 0, "text": "é €"}\n'.encode()
    latin = {**os.environ, "PYTHONIOENCODING": "latin-1"}
    command = [sys.executable, "-m", "mrecordlog_async"]
    subprocess.run([*command, "load", tmp_path / "wal"], input=line, env=latin, check=True, timeout=60)
    dumped = subprocess.run(
        [*command, "dump", tmp_path / "wal", "--text"], env=latin, check=True, timeout=60, capture_output=True
    )
    with ReadOnlyLog.open(tmp_path / "wal") as log:
        assert list(log.range("q")) == [(0, "é €".encode())]
    assert line in dumped.stdout


def test_a_position_that_is_taken_stops_the_load(tmp_path: Path) -> None:
    """A stored record is never replaced."""
    mrecordlog("load", tmp_path / "wal", stdin='{"queue": "q", "position": 0, "text": "one"}\n')
    ran = mrecordlog("load", tmp_path / "wal", stdin='{"queue": "q", "position": 0, "text": "two"}\n')
    assert (ran.code, "position 0 is already taken" in ran.err) == (1, True)


async def test_a_log_in_use_cannot_be_loaded_into(directory: Path, log: MultiRecordLog) -> None:
    """A directory has one writer; reading while it runs is allowed."""
    ran = await asyncio.to_thread(mrecordlog, "load", directory, stdin='{"queue": "q", "text": "x"}\n')
    assert ran.code == 4
    assert (await asyncio.to_thread(mrecordlog, "dump", directory)).code == 0


def test_reading_commands_write_nothing(tmp_path: Path) -> None:
    """verify, ls and dump change no byte and no name, not even a torn tail."""
    directory = build(tmp_path / "wal", three_queues)
    (directory / "CLOSED").unlink()
    last = damage.last_segment(directory)
    damage.half_a_batch(last)
    before = damage.snapshot(directory)
    for command in ("verify", "ls", "dump"):
        assert mrecordlog(command, directory).code == 0
    assert damage.snapshot(directory) == before


def test_a_service_is_dumped_like_its_directory(directory: Path) -> None:
    """Both ways print the same lines."""
    build(directory, odd_payloads)
    with Process(directory) as service:
        through = mrecordlog("dump", service.address)
        assert through == mrecordlog("dump", directory)
    assert through.code == 0


def test_a_service_is_loaded_like_a_directory(tmp_path: Path) -> None:
    """Positions, gaps, truncated and empty queues also arrive through HTTP; a second load stores nothing."""

    async def fill(log: MultiRecordLog) -> None:
        await three_queues(log)
        await odd_payloads(log)

    lines = mrecordlog("dump", build(tmp_path / "wal", fill)).out
    with Process(tmp_path / "copy") as service:
        loaded = mrecordlog("load", service.address, stdin=lines)
        assert (loaded.code, loaded.out) == (0, "5 queues created, 16 records stored\n")
        (tmp_path / "lines").write_text(lines)
        again = mrecordlog("load", service.address, tmp_path / "lines")
        assert again.out == "0 queues created, 0 records stored, 16 records already there\n"
        assert mrecordlog("dump", service.address).out == lines


def test_settings_are_dumped_and_loaded(tmp_path: Path) -> None:
    """Options, seals, consumers with their owners, and rules come back; records at a limit are not refused by it."""
    source, copy = build(tmp_path / "wal", all_settings), tmp_path / "copy"
    lines = mrecordlog("dump", source).out
    loaded = mrecordlog("load", copy, stdin=lines)
    assert (loaded.code, loaded.err) == (0, "")
    assert settings_seen(copy) == settings_seen(source)
    assert mrecordlog("dump", copy).out == lines
    again = mrecordlog("load", copy, stdin=lines)
    assert (again.code, again.out) == (0, "0 queues created, 0 records stored, 15 records already there\n")
    assert mrecordlog("dump", copy).out == lines


def test_every_setting_is_carried(tmp_path: Path) -> None:
    """Otherwise the tests of commands that carry settings pass without it: set a new one in `all_settings`."""
    queues = settings_seen(build(tmp_path / "wal", all_settings))[0].values()
    for kind, found in ((QueueSettings, queues), (QueueOptions, [one.options for one in queues])):
        default = asdict(kind())
        assert {name for name in default for one in found if asdict(one)[name] != default[name]} == set(default)


def test_every_setting_is_shown(tmp_path: Path) -> None:
    """`ls` shows each setting of a queue but owners: without one of them, it prints something else."""
    plain, names = QueueSettings(), {one.name for one in fields(QueueSettings)} - {"owners"}
    for found in settings_seen(build(tmp_path / "wal", all_settings))[0].values():
        for name in names:
            without = replace(found, **{name: getattr(plain, name)})
            assert without == found or settings_text(without) != settings_text(found), name


def test_settings_are_dumped_and_loaded_through_a_service(tmp_path: Path) -> None:
    """Both commands do the same through HTTP as in a directory."""
    source, copy = build(tmp_path / "wal", all_settings), tmp_path / "copy"
    lines = mrecordlog("dump", source).out
    with Process(copy) as service:
        for _ in range(2):
            loaded = mrecordlog("load", service.address, stdin=lines)
            assert (loaded.code, loaded.err) == (0, "")
            assert mrecordlog("dump", service.address).out == lines
    assert settings_seen(copy) == settings_seen(source)


async def _with_rule(log: MultiRecordLog) -> None:
    await log.create_consumer("*", "lake")


def test_a_consumer_by_a_rule_of_the_target_is_moved(tmp_path: Path) -> None:
    """It stands where the dump says, even in a queue whose first records were truncated."""
    copy = build(tmp_path / "copy", _with_rule)
    lines = (
        '{"queue": "q", "first_position": 5, "next_position": 7, "consumers": [{"consumer": "lake", "position": 6}]}\n'
        '{"queue": "q", "position": 5, "text": "five"}\n{"queue": "q", "position": 6, "text": "six"}\n'
    )
    assert mrecordlog("load", copy, stdin=lines).code == 0
    assert settings_seen(copy)[0]["q"].consumers == {"lake": 6}


async def _nothing(log: MultiRecordLog) -> None:
    pass


async def _owned_and_slower(log: MultiRecordLog) -> None:
    await log.create_queue("q", options=QueueOptions(keep="until_acknowledged"))
    await log.append_records("q", None, [b"%d" % number for number in range(9)])
    await log.create_consumer("q", "slower")
    async with log.consumer("q", "lake", owner=OWNER) as lake:
        await lake.acknowledge(5)


@pytest.mark.parametrize("before", [_nothing, _with_rule], ids=["no rule", "a rule"])
def test_records_that_a_slower_consumer_needs_are_kept(tmp_path: Path, before: Callable[..., Any]) -> None:
    """To set one consumer removes nothing that another one, which is set after it, has not acknowledged."""
    source, copy = build(tmp_path / "wal", _owned_and_slower), build(tmp_path / "copy", before)
    lines = mrecordlog("dump", source).out
    assert mrecordlog("load", copy, stdin=lines).code == 0
    assert settings_seen(copy)[0] == settings_seen(source)[0]
    assert mrecordlog("cat", copy, "q").out == mrecordlog("cat", source, "q").out != ""


async def _owned_past_the_first(log: MultiRecordLog) -> None:
    await log.create_queue("q", options=QueueOptions(keep="until_acknowledged"))
    await log.append_records("q", None, [b"0", b"1", b"2"])
    async with log.consumer("q", "lake", start=2, owner=OWNER):
        pass  # nothing is removed before the first acknowledgement


def test_a_consumer_that_removed_nothing_removes_nothing_in_a_copy(tmp_path: Path) -> None:
    """It was created past the first record, with an owner; another consumer may still be created before it."""
    source, copy = build(tmp_path / "wal", _owned_past_the_first), tmp_path / "copy"
    lines = mrecordlog("dump", source).out
    assert mrecordlog("load", copy, stdin=lines).code == 0
    assert mrecordlog("dump", copy).out == lines


async def _further(log: MultiRecordLog) -> None:
    await log.create_queue("q", options=QueueOptions(max_records=9))
    await log.append_records("q", None, [b"x"] * 3)
    await log.create_consumer("q", "c", start=2)


def test_a_consumer_that_exists_is_not_moved(tmp_path: Path) -> None:
    """In a queue that was there before the load, consumers stay, and a line without options replaces none."""
    copy = build(tmp_path / "copy", _further)
    line = '{"queue": "q", "first_position": 0, "next_position": 1, "consumers": [{"consumer": "c", "position": 1}]}\n'
    assert mrecordlog("load", copy, stdin=line).code == 0
    assert settings_seen(copy)[0]["q"] == settings_seen(build(tmp_path / "same", _further))[0]["q"]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("one", "Expecting value at column 1"),
        ('["q"]', "it must be an object, not ['q']"),
        ('{"text": "x"}', "it has no 'queue'"),
        ('{"queue": "q", "text": 3}', "text must be a string, not 3"),
        ('{"queue": "q", "txt": "x"}', "a record needs a payload or a text, and a queue has no 'txt'"),
    ],
)
def test_the_reason_is_a_sentence(line: str, reason: str) -> None:
    """It names the member or the column, and no class of Python."""
    with pytest.raises(InvalidLineError) as refused:
        parse_line(3, line)
    assert str(refused.value) == f"line 3 is not a valid dump line: {reason}"


def test_members_of_a_later_version_are_ignored() -> None:
    """The line of a queue in a dump always has its next position."""
    assert parse_line(1, '{"queue": "q", "next_position": 0, "later": 1}') == parse_line(1, '{"queue": "q"}')


@pytest.mark.parametrize(
    "more",
    [
        '"options": {"max_records": 0}',
        '"options": {"unknown": 1}',
        '"sealed": "yes"',
        '"consumers": [{"consumer": "c"}]',
        '"consumers": [{"consumer": "c", "position": 1, "owner": "nobody"}]',
    ],
)
def test_wrong_settings_are_named(tmp_path: Path, more: str) -> None:
    """A line with invalid settings creates no queue."""
    ran = mrecordlog("load", tmp_path / "wal", stdin=f'{{"queue": "a"}}\n{{"queue": "q", {more}}}\n')
    assert ran.code == 2
    assert "line 2 is not a valid dump line" in ran.err
    assert list(settings_seen(tmp_path / "wal")[0]) == ["a"]


def test_a_directory_is_not_lines(tmp_path: Path) -> None:
    """The sentence says what is, and where the rows of a table go."""
    ran = mrecordlog("load", tmp_path / "wal", tmp_path)
    assert (ran.code, ran.out) == (2, "")
    assert "is a directory" in ran.err and "Delta table" in ran.err
    assert not (tmp_path / "wal").exists()
