"""A damaged log through verify, repair and open: exactly what is lost is named, and everything else is readable."""

from __future__ import annotations

import asyncio
import json
import os
import random
import shlex
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from mrecordlog_async import CorruptionError, MultiRecordLog, QueueOptions, ReadOnlyLog
from mrecordlog_async.cli.main import main
from mrecordlog_async.format.frame import FULL
from mrecordlog_async.maintenance.salvage import salvage
from tests import damage
from tests.cli.carried import all_settings, settings_seen
from tests.cli.running import BLOCK_BYTES, build, mrecordlog
from tests.conftest import contents
from tests.maintenance.salvage_histories import HARMS, make_history

RECORDS = 60
PAYLOAD_BYTES = 3_000


async def two_queues(log: MultiRecordLog) -> None:
    """Fill "a" and "b" over several segments, each record in its own batch.

    The brackets end a payload: "b5" and the first byte of the next checksum would be "b59" in one log of 256.
    """
    for queue in ("a", "b"):
        await log.create_queue(queue)
    for number in range(RECORDS):
        await log.append_record("a", None, b"a%d " % number * (PAYLOAD_BYTES // 4))
        await log.append_record("b", None, b"<b%d>" % number)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return build(tmp_path / "wal", two_queues, blocks=2)


def frame_of(directory: Path, payload: bytes) -> tuple[Path, int]:
    """Return the file that has *payload*, and its offset in the file."""
    for path in damage.segments(directory):
        found = path.read_bytes().find(payload)
        if found >= 0:
            return path, found
    raise AssertionError("the payload is in none of the segments")


def test_a_flipped_byte_from_verify_to_open(directory: Path, tmp_path: Path) -> None:
    """One byte of one record: verify names the place, repair the position, and the new log holds all the others."""
    path, offset = frame_of(directory, b"<b30>")
    damage.flip_byte(path, offset)
    before = damage.snapshot(directory)

    verified = mrecordlog("verify", directory)
    assert verified.code == 3
    assert f"{path.name} at offset" in verified.out
    assert f"mrecordlog repair {directory}" in verified.out

    shown = mrecordlog("repair", directory)
    assert shown.code == 3
    assert "queue a: 60 records readable, nothing known to be missing\n" in shown.out
    assert "queue b: 59 records readable, missing position 30\n" in shown.out
    assert not (tmp_path / "wal.repaired").exists()

    applied = mrecordlog("repair", directory, "--apply")
    assert (applied.code, applied.err) == (0, "")
    assert applied.out.endswith(f"written to {tmp_path / 'wal.repaired'}; {directory} is unchanged\n")
    assert damage.snapshot(directory) == before

    async def reopened() -> dict[str, tuple[int, int, list[tuple[int, bytes]]]]:
        async with MultiRecordLog.open(tmp_path / "wal.repaired", create=False) as log:
            return contents(log)

    queues = asyncio.run(reopened())
    assert [position for position, _ in queues["b"][2]] == [n for n in range(RECORDS) if n != 30]
    assert [payload for _, payload in queues["a"][2]] == [b"a%d " % n * (PAYLOAD_BYTES // 4) for n in range(RECORDS)]
    assert mrecordlog("verify", tmp_path / "wal.repaired").code == 0


@pytest.mark.parametrize("typed", [".", "./", "../wal/.", "empty/.."])
def test_a_repair_of_the_working_directory_is_next_to_it(
    directory: Path, tmp_path: Path, typed: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The damaged directory is never changed, even where its name is not in the path that was typed."""
    (directory / "empty").mkdir()
    damage.flip_byte(*frame_of(directory, b"<b30>"))
    before = sorted(os.listdir(directory))
    monkeypatch.chdir(directory)
    assert main(["repair", typed, "--apply"]) == 0
    assert f"written to {tmp_path / 'wal.repaired'}; {typed.rstrip('/')} is unchanged" in capsys.readouterr().out
    assert sorted(os.listdir(directory)) == before
    with ReadOnlyLog.open(tmp_path / "wal.repaired") as log:
        assert log.queue_summary("b").records == RECORDS - 1


def test_a_missing_segment_names_every_position_in_it(directory: Path) -> None:
    """The tables before and after a removed segment show which records it held."""
    segment = damage.segments(directory)[1]
    kinds = [payload for _, _, kind, payload in damage.frames(segment) if kind == FULL and payload[0] == 4]
    assert kinds
    segment.unlink()
    facts = json.loads(mrecordlog("repair", directory, "--json").out)
    assert facts["damage"][0]["reason"] == "the segment is missing"
    with pytest.raises(CorruptionError):
        ReadOnlyLog.open(directory)
    for queue in facts["queues"]:
        missing = {position for first, last in queue["missing"] for position in range(first, last + 1)}
        assert missing
        assert queue["records"] == RECORDS - len(missing)


def test_the_last_record_of_a_queue_tells_its_position_by_its_head(directory: Path) -> None:
    """Nothing follows the damaged record, but its own header shows its position."""
    path, offset = frame_of(directory, b"<b59>")
    damage.flip_byte(path, offset)
    ran = mrecordlog("repair", directory)
    assert "missing position 59; the next position goes back from 60 to 59; may have been deleted\n" in ran.out
    assert "may have been deleted: no intact data after the last damage mentions the queue" in ran.out


def test_a_table_that_is_damaged_costs_no_record(directory: Path) -> None:
    """The state is known from the segment before, and the batches after the table are found."""
    damage.flip_byte(damage.segments(directory)[1], 90)
    facts = json.loads(mrecordlog("repair", directory, "--json").out)
    assert [(queue["records"], queue["missing"]) for queue in facts["queues"]] == [(RECORDS, []), (RECORDS, [])]


def test_a_header_that_is_damaged_costs_no_record(directory: Path) -> None:
    """The log's id is known from the other segments, the batch numbers from the COMMITs."""
    damage.zero(damage.segments(directory)[1], 0, 64)
    facts = json.loads(mrecordlog("repair", directory, "--json").out)
    assert [(queue["records"], queue["missing"]) for queue in facts["queues"]] == [(RECORDS, []), (RECORDS, [])]


def test_a_version_that_is_damaged_costs_no_record(directory: Path) -> None:
    """A flipped bit in the version of the last segment's header is damage, not a log of another version."""
    damage.flip_byte(damage.last_segment(directory), 8, 4)
    ran = mrecordlog("verify", directory)
    assert ran.code == 3
    assert f"{damage.last_segment(directory).name} at offset 0" in ran.out
    facts = json.loads(mrecordlog("repair", directory, "--json").out)
    assert [(queue["records"], queue["missing"]) for queue in facts["queues"]] == [(RECORDS, []), (RECORDS, [])]


def test_a_queue_that_lost_every_record_keeps_its_positions(tmp_path: Path) -> None:
    """The new log has the queue, empty, and its positions continue after those lost."""

    async def fill(log: MultiRecordLog) -> None:
        await log.create_queue("a")
        await log.append_records("a", None, [b"lost", b"too"])

    directory = build(tmp_path / "wal", fill)
    path, offset = frame_of(directory, b"lost")
    damage.flip_byte(path, offset)
    ran = mrecordlog("repair", directory, "--apply")
    assert (ran.code, ran.err) == (0, "")
    assert "queue a: 0 records readable, missing positions 0-1; may have been deleted\n" in ran.out
    with ReadOnlyLog.open(tmp_path / "wal.repaired") as repaired:
        assert contents(repaired) == {"a": (2, 2, [])}


def test_a_healthy_log_needs_no_repair(directory: Path, tmp_path: Path) -> None:
    """Nothing is written, even with --apply."""
    ran = mrecordlog("repair", directory, "--apply")
    assert ran.code == 0
    assert ran.out == f"nothing to repair in {len(damage.segments(directory))} segments\n"
    assert not (tmp_path / "wal.repaired").exists()


def test_a_torn_tail_is_no_damage(directory: Path) -> None:
    """A batch without its COMMIT was never acknowledged: repair leaves it to the next open."""
    last = damage.last_segment(directory)
    end = damage.batch_ends(last)[-1]
    (directory / "CLOSED").unlink()
    damage.half_a_batch(last)
    ran = mrecordlog("repair", directory)
    assert ran.code == 0
    assert ran.out.startswith("torn tail: 12 B of an unfinished batch")
    verified = mrecordlog("verify", directory)
    assert verified.code == 0
    assert f"torn tail: 12 B of an unfinished batch in {last.name} at offset {end}" in verified.out


async def test_a_log_in_use_is_not_repaired(tmp_path: Path) -> None:
    """Repair refuses a log that has a writer; the exit code says so."""
    async with MultiRecordLog.open(tmp_path / "wal"):
        ran = await asyncio.to_thread(mrecordlog, "repair", tmp_path / "wal")
    assert ran.code == 4


def test_what_is_no_log_is_said_so(tmp_path: Path) -> None:
    """An empty directory has nothing to repair or verify, and the message says so."""
    for command in ("repair", "verify"):
        ran = mrecordlog(command, tmp_path)
        assert (ran.code, ran.out) == (1, "")
        assert str(tmp_path) in ran.err


def flip(path: Path, end: int, rng: random.Random) -> None:
    damage.flip_byte(path, rng.randrange(end))


def zero(path: Path, end: int, rng: random.Random) -> None:
    at = rng.randrange(end)
    damage.zero(path, at, min(rng.choice([16, 512, 4_096]), end - at))


def scribble(path: Path, end: int, rng: random.Random) -> None:
    damage.write_at(path, rng.randrange(end), rng.randbytes(200))


@pytest.mark.parametrize("harm", [flip, zero, scribble])
@pytest.mark.parametrize("seed", range(8))
def test_any_damage_loses_what_is_named_and_nothing_else(
    directory: Path, harm: Callable[[Path, int, random.Random], None], seed: int
) -> None:
    """For any damage, every record that is read is correct, and every lost position is named.

    Only a loss at the very end of a queue may stay unnamed, if neither a later record nor its own header shows it.
    """
    with ReadOnlyLog.open(directory) as log:
        truth = contents(log)
    rng = random.Random(seed)
    path = rng.choice(damage.segments(directory))
    harm(path, damage.batch_ends(path)[-1], rng)
    found = salvage(str(directory))
    try:
        ReadOnlyLog.open(directory).close()
        assert found.damage == []
    except CorruptionError:
        assert found.damage
    for queue in found.queues:
        records = dict(truth[queue.name][2])
        read = {position: payload for run in queue.live_runs() for position, payload in run.records()}
        named = {position for first, last in queue.missing for position in range(first, last + 1)}
        lost = records.keys() - read.keys()
        assert read.items() <= records.items()
        assert named <= lost
        assert all(position > max(read) for position in lost - named)


@pytest.mark.parametrize("seed", range(10))
def test_what_is_written_is_what_was_found(tmp_path: Path, seed: int) -> None:
    """Queues that lost their names, positions with holes, queues without a record: the new log opens and has them."""
    rng = random.Random(seed)
    log = tmp_path / "wal"
    history = make_history(log, rng)
    history.restore(log)
    for harm in rng.choices(HARMS, k=3):
        harm(log, rng, history)
    found = salvage(str(log))
    assert main(["repair", str(log), "--apply"]) == 0
    if not found.damage:
        assert not (tmp_path / "wal.repaired").exists()
        return
    with ReadOnlyLog.open(tmp_path / "wal.repaired") as repaired:
        written = {name: (following, records) for name, (_, following, records) in contents(repaired).items()}
    assert written == {
        queue.name: (
            queue.readable_next_position,
            [tuple(record) for run in queue.live_runs() for record in run.records()],
        )
        for queue in found.queues
        if queue.record_count or not queue.name_lost
    }


async def settings_and_many_records(log: MultiRecordLog) -> None:
    """Settings, and after them records over several segments; some of the last are truncated, to meet a limit."""
    await all_settings(log)
    await two_queues(log)
    await log.truncate("b", RECORDS - 3)
    await log.configure_queue("b", QueueOptions(max_records=2))


def test_options_seal_and_consumers_are_repaired(tmp_path: Path) -> None:
    """The new log has them, whether they stand in records or in the tables of later segments."""
    directory = build(tmp_path / "wal", settings_and_many_records, blocks=2)
    due = settings_seen(directory)
    path, offset = frame_of(directory, b"<b30>")
    damage.flip_byte(path, offset)
    applied = mrecordlog("repair", directory, "--apply", "--json")
    facts = json.loads(applied.out)
    assert (applied.code, facts["raised"]) == (0, [])
    assert facts["rules"] == [{"pattern": "job-*", "consumer": "lake"}]
    assert settings_seen(tmp_path / "wal.repaired") == due
    assert mrecordlog("verify", tmp_path / "wal.repaired").code == 0


def test_a_limit_that_restored_records_exceed_is_raised(tmp_path: Path) -> None:
    """Damage that hides a truncate brings records back: they are kept, and the report names the queue."""

    async def fill(log: MultiRecordLog) -> None:
        await log.create_queue("q", options=QueueOptions(max_records=3, max_bytes=1_000))
        await log.append_records("q", None, [b"1", b"2", b"3"])
        await log.create_consumer("q", "c", start=3)
        await log.truncate("q", 0)
        await log.append_record("q", None, b"after")

    directory = build(tmp_path / "wal", fill)
    last = damage.last_segment(directory)
    damage.flip_byte(last, damage.batch_ends(last)[-3] + 12)  # in the frame of the truncate
    applied = mrecordlog("repair", directory, "--apply")
    assert "queue q: removed records are back; its limits were raised to what it holds\n" in applied.out
    settings = settings_seen(tmp_path / "wal.repaired")[0]["q"]
    assert settings.options == QueueOptions(max_records=4, max_bytes=1_000)
    assert settings.consumers == {"c": 3}


def mixed_copies(directory: Path, later: str) -> str:
    """Build a log whose second segment is from a copy that went on differently; return why open refuses it.

    The first segments of both have a record in *later* and end at the same offset.
    """

    async def begin(log: MultiRecordLog) -> None:
        for queue in ("a", "b", "c"):
            await log.create_queue(queue)

    def then_append(queue: str) -> Callable[[MultiRecordLog], Awaitable[None]]:
        async def append(log: MultiRecordLog) -> None:
            await log.append(queue, b"in one copy only")
            await log.append(later, bytes(BLOCK_BYTES))
            await log.append(later, b"in the second segment")

        return append

    copy = directory.with_name("copy")
    build(directory, begin, blocks=1)
    shutil.copytree(directory, copy)
    build(directory, then_append("a"), blocks=1)
    build(copy, then_append("b"), blocks=1)
    for name in (damage.segments(copy)[-1].name, "CLOSED"):
        shutil.copy(copy / name, directory / name)
    with pytest.raises(CorruptionError) as refused:
        ReadOnlyLog.open(directory)
    return refused.value.reason


def test_segments_of_two_copies_are_repaired(tmp_path: Path) -> None:
    """Each of them is whole, but they contradict each other, so open refuses the log: that is damage to repair."""
    directory = tmp_path / "wal"
    reason = mixed_copies(directory, later="c")
    shown = mrecordlog("repair", directory)
    assert (shown.code, f": {reason}\n" in shown.out) == (3, True)
    assert "queue b: 0 records readable, missing position 0\n" in shown.out
    assert mrecordlog("repair", directory, "--apply").code == 0
    with ReadOnlyLog.open(tmp_path / "wal.repaired") as log:
        assert [payload for _, payload in log.range("c")] == [bytes(BLOCK_BYTES), b"in the second segment"]


def test_copies_with_two_records_at_one_position_are_not_mixed_by_repair(tmp_path: Path) -> None:
    """Only the owner knows which of the two copies counts."""
    directory = tmp_path / "wal"
    mixed_copies(directory, later="a")
    assert mrecordlog("repair", directory).code == 3
    refused = mrecordlog("repair", directory, "--apply")
    assert (refused.code, "files of two copies of the log are mixed" in refused.err) == (1, True)


def test_a_target_that_is_named_is_written(directory: Path, tmp_path: Path) -> None:
    """Even without --apply: somebody who says where to write wants it written."""
    path, offset = frame_of(directory, b"<b30>")
    damage.flip_byte(path, offset)
    target = tmp_path / "elsewhere"
    ran = mrecordlog("repair", directory, "--to", target)
    assert (ran.code, ran.out.splitlines()[-1]) == (0, f"written to {target}; {directory} is unchanged")
    assert mrecordlog("verify", target).code == 0


def test_the_advice_writes_what_was_announced(directory: Path, tmp_path: Path) -> None:
    """A shell reads a name with a space as one word."""
    path, offset = frame_of(directory, b"<b30>")
    damage.flip_byte(path, offset)
    spaced = directory.rename(tmp_path / "my wal")
    advice = mrecordlog("repair", str(spaced)).out.splitlines()[-1]
    advised = shlex.split(advice.split("`")[1])
    assert advised == ["mrecordlog", "repair", str(spaced), "--apply"]
    assert mrecordlog(*advised[1:]).code == 0
    assert (tmp_path / "my wal.repaired").exists()


def test_verify_prints_the_report_of_repair(directory: Path) -> None:
    """Each damaged place, and of each queue what is readable and which positions are lost."""
    path, offset = frame_of(directory, b"<b30>")
    damage.flip_byte(path, offset)
    verified, repaired = mrecordlog("verify", directory), mrecordlog("repair", directory)
    report = repaired.out.splitlines()[:-1]
    assert (verified.code, repaired.code) == (3, 3)
    assert any("missing position 30" in line for line in report)
    assert [line for line in verified.out.splitlines() if line in report] == report
