"""The index of what the log promises: each promise, and each row of the tables of crashes and ends, with its tests.

The promises are those of `docs/durability.md`. The tables stand where the code is that they describe: how recovery
judges the end of a log, how an open log ends, and what a kill leaves of a batch of a drain. A new promise or row has no
test here, and fails, until its line is written.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from pathlib import Path

import pytest

from mrecordlog_async.engine import running
from mrecordlog_async.recovery import recovery
from mrecordlog_async.spark import delta_output

TESTS = Path(__file__).parent

Index = dict[str, tuple[str, ...]]
"""A promise or a row → its tests, by file below `tests/` and function."""

PROMISES: Index = {
    "1": (
        "deep/durability/test_power_cuts.py::test_a_power_cut_at_any_moment",
        "faults/test_process.py::test_kill_9_in_a_loop_loses_nothing_that_was_answered",
        "faults/test_process.py::test_cancel_storm_leaves_no_hole_and_no_hanging_call",
        "deep/faults/test_real_disk.py::test_a_power_cut_on_a_real_file_system_loses_nothing",
        "deep/durability/test_faults.py::test_a_fault_of_any_call",
    ),
    "2": (
        "durability/test_any_history.py::test_any_history",
        "deep/faults/test_crash_states.py::test_an_opening_is_durable_before_anything_is_acknowledged_in_it",
        "log/test_queues.py::test_truncate_past_the_end_moves_the_next_position",
        "log/test_wrong_calls.py::test_the_last_position_can_be_used_and_none_after_it",
    ),
    "3": (
        "deep/durability/test_power_cuts.py::test_a_power_cut_at_any_moment",
        "recovery/test_recovery.py::test_truncated_segments_are_removed_and_stay_away",
        "log/test_queues.py::test_deleted_queue_does_not_exist_and_a_new_one_is_new",
        "engine/test_ids.py::test_a_log_that_was_restored_draws_nothing_that_it_drew_before",
    ),
    "4": (
        "deep/durability/test_power_cuts.py::test_a_power_cut_at_any_moment",
        "recovery/test_recovery.py::test_a_torn_tail_is_zeroed_durably_before_the_log_is_open",
        "deep/faults/test_crash_states.py::test_commit_at_every_place_relative_to_the_end_of_a_block",
    ),
    "5": (
        "deep/faults/test_damage.py::test_damage_at_every_frame_is_refused_or_cut_never_misread",
        "deep/faults/test_damage.py::test_missing_swapped_and_renamed_files_are_refused",
        "recovery/test_recovery.py::test_torn_tail_is_cut_reported_and_never_seen_again",
        "deep/faults/test_fuzz.py::test_whole_logs_of_hostile_bytes",
        "engine/test_beyond_memory.py::test_damage_to_file_and_segment_is_an_error_for_the_reader_alone",
        "engine/test_beyond_memory.py::test_a_gathered_file_that_is_not_right_is_made_again",
    ),
    "6": (
        "deep/faults/test_disk_faults.py::test_failed_sync_ends_the_log_and_tells_everyone",
        "deep/durability/test_faults.py::test_a_fault_of_any_call",
        "engine/test_failing.py::test_close_tells_what_could_not_be_synced",
    ),
    "7": (
        "deep/faults/test_loop_end.py::test_loop_that_ends_at_any_turn_gives_everything_back",
        "engine/test_failing.py::test_every_call_that_waits_ends_with_its_loop",
        "faults/test_process.py::test_close_with_calls_on_their_way_ends_each_of_them",
        "faults/test_process.py::test_writer_thread_that_raises_tells_everyone",
        "log/test_truncate_that_reads.py::test_a_truncate_whose_reading_fails_reports_no_wrong_number",
    ),
    "8": (
        "faults/test_process.py::test_second_process_is_refused_with_the_owners_pid",
        "storage/test_locked_directory.py::test_a_directory_has_one_holder_at_a_time",
        "engine/test_lost_lock.py::test_a_log_whose_lock_was_removed_fails_before_it_writes_over_another",
    ),
    "9": (
        "log/test_full.py::test_full_memory_pushes_back_and_truncate_makes_room",
        "log/test_full.py::test_waiting_callers_are_bounded_in_bytes_and_keep_their_order",
        "log/test_full.py::test_number_of_queues_is_limited",
        "log/test_full.py::test_too_large_records_are_refused_at_once",
        "deep/faults/test_crash_states.py::test_full_disk_refuses_no_truncate_and_takes_appends_again",
        "deep/faults/test_consumer_states.py::test_the_reserve_is_for_what_truncates",
        "log/test_cancelled_in_line.py::test_the_log_keeps_nothing_of_callers_that_were_cancelled_in_line",
        "engine/test_beyond_memory.py::test_no_append_is_refused_while_records_can_leave",
        "engine/test_beyond_memory.py::test_a_log_that_refuses_keeps_what_does_not_fit_on_the_disk",
    ),
    "10": (
        "deep/faults/test_crash_states.py::test_reader_beside_a_living_writer_sees_what_stays",
        "deep/faults/test_beside_a_writer.py::test_open_and_refresh_beside_a_writer",
    ),
}

STATEMENTS: Index = {
    # What survives what
    "`PersistPolicy.always()` (default) | write and fsync | nothing |": (
        "durability/test_any_history.py::test_any_history",
    ),
    "`PersistPolicy.interval(seconds)` | write | nothing |": (
        "durability/test_any_history.py::test_any_history",
        "log/test_policies.py::test_interval_syncs_by_its_own_timer",
    ),
    "`PersistPolicy.never()` | write | nothing |": (
        "log/test_policies.py::test_every_policy_stores_and_reopens",
        "log/test_policies.py::test_weaker_policies_sync_less",
    ),
    "a power cut can lose up to *seconds* of batches": ("durability/test_any_history.py::test_any_history",),
    "a policy calls fsync neither after each batch nor on a timer": (
        "log/test_policies.py::test_weaker_policies_sync_less",
    ),
    "the first batch after the log was opened;": (
        "deep/faults/test_crash_states.py::test_an_opening_is_durable_before_anything_is_acknowledged_in_it",
    ),
    "creating and deleting a queue or a consumer,": (
        "engine/test_consumer.py::test_what_is_durable_under_every_policy_is_synced_before_it_returns",
    ),
    "attaching to a consumer;": (
        "engine/test_consumer.py::test_holders_attach_again_after_a_crash_under_a_weak_policy",
    ),
    "a new segment, and the batch that names segments as dead;": (
        "engine/test_failing.py::test_what_a_roll_or_a_sync_brought_to_the_medium_is_not_in_doubt",
        "engine/test_failing.py::test_what_reclaiming_brought_to_the_medium_is_not_in_doubt",
    ),
    "`sync()` and `close()`.": ("engine/test_failing.py::test_close_tells_what_could_not_be_synced",),
    "it writes and syncs a mark": (
        "engine/test_mark.py::test_the_mark_costs_one_sync_for_each_idle_spell",
        "engine/test_mark.py::test_a_mark_takes_nothing_of_the_reserve",
    ),
    # The promises, where a sentence has a test apart from those of its promise
    "on ext4 and XFS images": ("deep/faults/test_real_disk.py::test_a_power_cut_on_a_real_file_system_loses_nothing",),
    "is opened without reading the segments whose records stay on the disk": (
        "engine/test_beyond_memory.py::test_opening_reads_the_indexes_alone",
    ),
    "opening holds at most 64 MiB more than that": (
        "deep/recovery/test_beyond_memory.py::test_a_segment_larger_than_memory_is_opened_in_little_memory",
    ),
    "a reserve of 64 KiB": (
        "deep/faults/test_consumer_states.py::test_the_reserve_is_for_what_truncates",
        "engine/test_reclaim.py::test_appends_use_no_space_that_truncates_reserved_beyond_the_limit",
    ),
    # What the log assumes of the disk is in the model of it; what it does not assume, too
    "fsync reaches the disk": ("deep/faults/test_disk_faults.py::test_failed_sync_ends_the_log_and_tells_everyone",),
    "a write does not damage bytes that it does not change": (
        "deep/durability/test_power_cuts.py::test_a_power_cut_at_any_moment",
    ),
    "a failed sync of a directory never loses a file name silently": (
        "deep/durability/test_faults.py::test_a_fault_of_any_call",
    ),
    "It does not assume that sectors are written whole": (
        "deep/durability/test_power_cuts.py::test_a_power_cut_at_any_moment",
        "deep/faults/test_crash_states.py::test_a_directory_that_was_just_renamed_keeps_its_name_once_it_was_opened",
    ),
    "may be reused for a later segment": (
        "engine/test_recycling.py::test_a_dead_segment_becomes_the_next_spare",
        "recovery/test_recycled_segments.py::test_a_live_file_that_is_not_its_own_segment_is_damage",
        "recovery/test_recovery.py::test_bytes_of_another_segment_are_neither_damage_nor_a_torn_tail",
    ),
    "without the interpreter of Python": (
        "engine/test_writer.py::test_prepared_writes_and_jobs_leave_the_same_bytes",
        "deep/engine/test_prepared_writes.py::test_small_batches_are_prepared_writes",
        "deep/engine/test_prepared_writes.py::test_prepared_writes_can_be_turned_off",
    ),
    # The limit of a single copy
    "It reports the cut if the batch's first frame or its COMMIT can still be read.": (
        "recovery/test_recovery.py::test_torn_tail_is_cut_reported_and_never_seen_again",
    ),
    "an idle log records that this batch was durable": (
        "recovery/test_recovery.py::test_last_batch_is_known_as_durable_after_the_mark",
    ),
    "After a clean close there is no window.": (
        "recovery/test_recovery.py::test_closed_log_notices_any_damage_to_its_end",
        "recovery/test_recovery.py::test_closed_log_with_its_last_segment_removed_is_refused",
    ),
}
"""Words of `docs/durability.md` → the tests of what they begin or are part of."""

ENDS_ON_DISK: Index = {
    "1": (
        "recovery/test_recovery.py::test_only_zeros_behind_the_last_batch_is_a_clean_end",
        "recovery/test_recovery.py::test_bytes_of_another_segment_are_neither_damage_nor_a_torn_tail",
    ),
    "2": ("recovery/test_recovery.py::test_torn_tail_is_cut_reported_and_never_seen_again",),
    "3": (
        "recovery/test_recovery.py::test_damage_with_a_later_commit_is_refused",
        "recovery/test_recovery.py::test_a_commit_is_found_at_any_byte_behind_the_damage",
        "recovery/test_recovery.py::test_last_batch_is_known_as_durable_after_the_mark",
    ),
    "4": (
        "recovery/test_recovery.py::test_closed_log_notices_any_damage_to_its_end",
        "recovery/test_recovery.py::test_closed_log_with_its_last_segment_removed_is_refused",
        "recovery/test_recovery.py::test_closed_that_cannot_be_read_is_refused",
    ),
    "5": (
        "recovery/test_recovery.py::test_a_closed_that_is_older_than_the_batches_after_it_is_refused",
        "recovery/test_recovery.py::test_a_closed_of_an_earlier_segment_is_refused_with_advice",
    ),
    "6": (
        "recovery/test_recovery.py::test_bytes_after_the_end_that_closed_names_are_left_alone",
        "recovery/test_recovery.py::test_a_batch_that_is_not_the_next_one_does_not_contradict_closed",
    ),
    "7": (
        "deep/faults/test_damage.py::test_read_errors_are_not_taken_for_damage",
        "recovery/test_recovery.py::test_a_live_segment_that_cannot_be_read_is_an_error_of_the_medium",
    ),
}

ENDS_OF_A_LOG: Index = {
    "`close`": (
        "log/test_closing.py::test_close_finishes_what_was_called_before",
        "faults/test_process.py::test_close_with_calls_on_their_way_ends_each_of_them",
        "deep/faults/test_loop_end.py::test_history_reaches_the_end_of_close",
    ),
    "the log failed, then `close`": (
        "engine/test_failing.py::test_failed_log_under_always_is_logged_and_closes_without_error",
        "engine/test_lost_lock.py::test_a_log_whose_lock_was_removed_does_not_mark_the_other_as_closed",
    ),
    "the event loop ends": (
        "deep/faults/test_loop_end.py::test_loop_that_ends_at_any_turn_gives_everything_back",
        "engine/test_letting_go.py::test_directory_is_free_for_the_next_loop",
    ),
    "garbage collected": (
        "engine/test_letting_go.py::test_forgotten_log_gives_the_directory_back",
        "engine/test_letting_go.py::test_log_forgotten_after_its_loop_was_closed_gives_the_directory_back",
    ),
    "in a forked child": (
        "engine/test_letting_go.py::test_forked_child_keeps_nothing",
        "engine/test_letting_go.py::test_forked_child_is_told_that_the_log_is_not_its_own",
        "faults/test_process.py::test_forked_child_writes_nothing_and_unlocks_nothing",
    ),
}

AT_EVERY_STEP = (
    "deep/spark/test_drain_crashes.py::test_a_power_cut_at_any_step_changes_nothing",
    "deep/spark/test_drain_in_a_store.py::test_rows_are_there_once_through_kills_at_each_step",
)
"""Both stop a batch before and after each of its steps, so they meet every row."""

CRASHES_OF_A_DRAIN: Index = {
    "after some data files": (
        *AT_EVERY_STEP,
        "deep/spark/test_drain_crashes.py::test_a_sync_that_is_left_out_is_found",
    ),
    "after the positions": (
        *AT_EVERY_STEP,
        "deep/spark/test_drain_crashes.py::test_a_sync_that_is_left_out_is_found",
    ),
    "after the entry is written": (
        *AT_EVERY_STEP,
        "deep/spark/test_drain_crashes.py::test_random_kills_and_power_cuts_change_nothing",
    ),
    "after the entry is durable": (
        *AT_EVERY_STEP,
        "deep/spark/test_drain_killed.py::test_a_process_that_is_killed_stores_each_record_once",
    ),
    "before or inside a truncate": (
        *AT_EVERY_STEP,
        "deep/spark/test_kill.py::test_every_record_is_stored_once_though_the_driver_is_killed",
    ),
}


PAGE = (TESTS.parent / "docs/durability.md").read_text(encoding="utf-8")


def _promises() -> list[str]:
    section = PAGE.partition("\n## The promises\n")[2].partition("\n## ")[0]
    return re.findall(r"^(\d+)\. ", section, re.MULTILINE)


def _rows(text: str | None, heading: str) -> list[str]:
    """Return the first cells of the table in *text* whose first row begins with *heading*."""
    table = (text or "").partition(f"| {heading} |")[2].partition("\n\n")[0]
    return [line.strip().removeprefix("| ").partition(" |")[0] for line in table.splitlines()[2:]]


@pytest.mark.parametrize(
    ("index", "stated"),
    [
        (PROMISES, _promises()),
        (ENDS_ON_DISK, _rows(recovery.__doc__, "row")),
        (ENDS_OF_A_LOG, _rows(running.__doc__, "how it ends")),
        (CRASHES_OF_A_DRAIN, _rows(delta_output.__doc__, "a kill or a power cut")),
    ],
    ids=["promises", "ends on the disk", "ends of a log", "crashes of a drain"],
)
def test_every_promise_and_every_row_has_its_tests(index: Index, stated: list[str]) -> None:
    """One line for each that is stated, in its order, and at least one test in each."""
    assert len(stated) > 4
    assert list(index) == stated
    assert all(index.values())


def test_every_statement_has_its_tests() -> None:
    """A paragraph, a bullet or a row of the page that says something else than a promise has its own line here."""
    stated, _, _ = PAGE.partition("\n## Proof\n")
    parts = [" ".join(part.split()) for part in re.split(r"\n\n|\n(?=[-|])", stated)]
    assert [words for words in STATEMENTS if sum(words in part for part in parts) != 1] == []
    says_nothing = re.compile(r"#|\d+\. |\|(-| policy )|.*:$|Under the default policy")
    left = [part for part in parts if not says_nothing.match(part) and not any(words in part for words in STATEMENTS)]
    assert left == []


def test_the_tests_of_the_index_exist() -> None:
    """A test that was renamed or removed leaves no promise behind without a word."""
    named = {
        test
        for index in (PROMISES, STATEMENTS, ENDS_ON_DISK, ENDS_OF_A_LOG, CRASHES_OF_A_DRAIN)
        for test in _tests(index)
    }
    known = {f"{file}::{name}" for file in {test.partition("::")[0] for test in named} for name in _functions(file)}
    assert named - known == set()


def _tests(index: Index) -> Iterable[str]:
    return (test for tests in index.values() for test in tests)


def _functions(file: str) -> list[str]:
    path = TESTS / file
    body = ast.parse(path.read_text(encoding="utf-8")).body if path.exists() else []
    return [node.name for node in body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
