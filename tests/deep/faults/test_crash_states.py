"""After a power cut at any call to the disk, the log opens and keeps its promises, whatever reached the medium."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mrecordlog_async import LogClosedError
from mrecordlog_async.format.parse import COMMIT_FRAME_BYTES
from mrecordlog_async.maintenance.snapshot import snapshot
from mrecordlog_async.readonly import ReadOnlyLog
from tests.deep.cases import step
from tests.faults.disk import Plan
from tests.faults.driver import COPY, DIRECTORY, Run
from tests.faults.explore import Explorer, Tally, check_openings, exploring, recover
from tests.faults.histories import BLOCK_BYTES, CASES, Case, commit_at
from tests.faults.judge import State, Verdict, Violation, state_in


@pytest.mark.parametrize("reader", ["writer", "reader"])
def test_a_directory_that_was_just_renamed_keeps_its_name_once_it_was_opened(reader: str) -> None:
    """The process that renamed it died before that was durable. What the next one saw survives a power cut."""
    run = CASES["copy outlives"].run()
    renamed = [at for at in run.copies[0].lives[0].moments if at.snapshot.kill().exists(COPY)]
    disk = renamed[0].snapshot.kill()
    assert not disk.snapshot().crash(Plan()).exists(COPY), "it was durable already"
    with exploring():
        if reader == "writer":
            recover(disk, "just renamed", COPY).close()
        else:
            ReadOnlyLog.open(COPY, filesystem=disk).close()
    assert disk.snapshot().crash(Plan()).exists(COPY)


@pytest.mark.parametrize("name", ["never, killed", "killed, stepping", "interval"])
def test_an_opening_is_durable_before_anything_is_acknowledged_in_it(name: str, tally: Tally) -> None:
    """Under every policy: so a reader that was shown one of its positions notices a log that a power cut set back."""
    tally.crash_states += check_openings(CASES[name].run())


@pytest.mark.parametrize("made", ["log", "copy"])
def test_a_new_directory_does_not_stand_in_one_that_a_power_cut_takes(made: str) -> None:
    """The process that created the parent died before that was durable. The next one makes a log or a copy in it."""
    disk = CASES["copy outlives"].run(moments=False).disk.snapshot().kill()
    disk.make_directory("/data/new")
    disk = disk.snapshot().kill()
    assert not disk.snapshot().crash(Plan()).exists("/data/new"), "it was durable already"
    with exploring():
        if made == "log":
            recover(disk, "a new log", "/data/new/wal").close()
        else:
            snapshot(DIRECTORY, "/data/new/wal", filesystem=disk)
    assert disk.snapshot().crash(Plan()).exists("/data/new/wal")


@pytest.mark.parametrize("name", ["waits for memory", "waits for disk", "waits for disk, full"])
def test_histories_that_wait_do_wait(name: str) -> None:
    """Some of their calls are admitted late, and some wait until the log closes."""
    calls = CASES[name].run(moments=False).model.calls
    assert any(isinstance(call.error, LogClosedError) for call in calls)
    truncates = [call.ended for call in calls if call.kind == "truncate"]
    assert any(call.kind == "append" and call.value is not None and call.ended > truncates[0] for call in calls)


@pytest.mark.parametrize("name", ["reserve", "full disk", "disk limit"])
def test_full_disk_refuses_no_truncate_and_takes_appends_again(name: str) -> None:
    """However far appends have filled the disk, truncate and delete succeed, and then appends work again."""
    calls = CASES[name].run(moments=False).model.calls
    assert any(call.outcome == "absent" for call in calls), "the disk was never full"
    assert {call.outcome for call in calls if call.kind in ("truncate", "delete")} == {"answered"}
    assert calls[-1].outcome == "answered"


@pytest.mark.parametrize("more_bytes", range(0, 40_000, 2_000))
def test_a_table_that_grows_keeps_no_truncate_from_its_space(more_bytes: int) -> None:
    """The next segment has room for the queues that a batch creates, wherever the disk is full."""
    case = CASES["reserve of tables"]
    assert case.capacity_bytes is not None
    calls = replace(case, capacity_bytes=case.capacity_bytes + more_bytes).run(moments=False).model.calls
    assert {call.outcome for call in calls if call.kind in ("truncate", "delete")} == {"answered"}
    assert calls[-1].outcome == "answered", "the log did not take appends again"


def test_the_history_of_pieces_dies_while_they_are_under_way() -> None:
    """Its process is killed twice, each time before all writes that it began have landed."""
    moments = [moment for life in CASES["in pieces, killed"].run().lives for moment in life.moments]
    killed = [moment.snapshot for moment in moments if moment.call == "killed"]
    assert [any(state.under_way for state in snapshot.files.values()) for snapshot in killed] == [True, True]


def test_commit_at_every_place_relative_to_the_end_of_a_block(tally: Tally, pytestconfig: pytest.Config) -> None:
    """A COMMIT is one frame wherever a batch ends, and a crash around it leaves the batch whole or absent.

    A run tries every other place.
    """
    explorer = Explorer(deep_every=0, subsets=2)
    for distance in range(0, COMMIT_FRAME_BYTES + 16, step(pytestconfig)):
        run = Case(commit_at(distance)).run()
        *_, life = run.lives
        counts = [moment.bounds.at_least for moment in life.moments]  # of calls that were acknowledged by then
        batch = life.moments[counts.index(1) : counts.index(2) + 1]  # the one whose COMMIT is at this place
        assert [moment.call for moment in batch][1:4] == ["write", "half of a write", "sync"]
        run.lives[0].moments, life.moments = [], batch
        explorer.explore(run)
    tally.add(explorer.tally)


@pytest.mark.parametrize("distance", [0, 6, 7, COMMIT_FRAME_BYTES - 1, COMMIT_FRAME_BYTES])
def test_history_puts_the_commit_where_it_says(distance: int) -> None:
    """The histories above place the second COMMIT where they say."""
    run = Case(commit_at(distance)).run()
    content = run.disk.content(DIRECTORY)["wal-00000000000000000000"]
    places = [at - 8 for at in range(len(content)) if content.startswith(b"the-log's-own-id", at)][1:]
    fits = distance >= COMMIT_FRAME_BYTES
    assert places[1] == (BLOCK_BYTES - distance if fits else BLOCK_BYTES)


@pytest.mark.parametrize("name", ["concurrent", "rolls", "recreated", "idle roll", "reopened", "never", "large"])
def test_reader_beside_a_living_writer_sees_what_stays(name: str, tally: Tally) -> None:
    """At every call of the writer, and in the middle of every write, a reader sees only what survives a crash."""
    explorer = Explorer(deep_every=0, subsets=1)
    run = Run(policy=CASES[name].policy)
    seen: list[tuple[int, int, State]] = []

    def look() -> None:
        disk = run.disk
        on_call, on_half, calls = disk.on_call, disk.on_half_written, disk.calls
        disk.on_call, disk.on_half_written = lambda call: None, None
        try:
            state = state_in(ReadOnlyLog.open(DIRECTORY, filesystem=disk))
            life = len(run.lives) - 1
            seen.append((life, len(run.lives[life].moments), state))
        except FileNotFoundError:
            assert not any(life.model.calls for life in run.lives), "the log was there before"
        finally:
            disk.on_call, disk.on_half_written = on_call, on_half
            disk.calls = calls
            del disk.call_names[calls:]

    run.each_call = look
    CASES[name].run_as(run)
    assert len(seen) > 30
    _raise_bounds(run, seen)
    explorer.explore(run, every=3)
    tally.add(explorer.tally)


def _raise_bounds(run: Run, seen: list[tuple[int, int, State]]) -> None:
    """What was seen was allowed; from now on, at least that much must be found."""
    verdicts = [Verdict(life.model) for life in run.lives]
    for life, index, state in seen:
        moments = run.lives[life].moments
        now = moments[index].bounds if index < len(moments) else run.lives[life].model.bounds()
        verdicts[life].check(state, now, f"life {life}, seen before moment {index}")
        least = min(verdicts[life].counts(state))
        for moment in moments[index:]:
            moment.bounds.at_least = max(moment.bounds.at_least, least)


def test_judge_notices_a_missing_call() -> None:
    """The judge itself detects a violation."""
    run = CASES["concurrent"].run()
    verdict = Verdict(run.model)
    states = run.model.states()[0]
    verdict.check(states[-1], run.model.bounds(), "all")
    with pytest.raises(Violation):
        verdict.check(states[1], run.model.bounds(), "one call")


def test_same_history_gives_the_same_calls() -> None:
    """The n-th call to the disk is the same one in every run."""
    first, second = CASES["concurrent"].run(), CASES["concurrent"].run()
    assert first.disk.call_names == second.disk.call_names
