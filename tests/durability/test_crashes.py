"""Written histories of what is easily forgotten: a power cut at some moments, faults of some calls; nothing is lost.

Chance rarely gets there: pieces of large batches, files that are used again, full disks, copies, holders from before a
crash. `tests/deep` tries every history, at more moments.
"""

from __future__ import annotations

import pytest

from tests.faults.histories import BATCHES_WHEN_FULL

from .crashes import cut_power, fail_calls

TRIED = (
    *("concurrent", "rolls", "recreated", "reopened", "killed", "never", "never, rolls", "interval", "full disk"),
    *(
        "torn",
        "copied",
        "large, small",
        "in pieces",
        "few callers, prepared",
        "concurrent, cached",
        "recycles",
        "staged",
    ),
    *("holders", "never, zombie", "options", "rules", "clock jumps", "rolls, little memory", "busy, little memory"),
)
MOMENTS, FAULTS = 3, 4
FAULTS_WHEN_FULL = 15


@pytest.mark.parametrize("name", TRIED)
def test_a_power_cut_at_any_moment(name: str) -> None:
    """Acknowledged calls exist, others are whole or absent, a second open finds the same, and new calls work."""
    cut_power(name, MOMENTS)


@pytest.mark.parametrize("name", TRIED)
def test_a_fault_of_any_call(name: str) -> None:
    """Acknowledged calls survive, refused ones are absent, every call ends, and a failed log acknowledges nothing."""
    fail_calls(name, FAULTS)


@pytest.mark.parametrize("name", BATCHES_WHEN_FULL)
def test_a_full_disk_takes_what_fits_of_a_batch_and_lets_go_of_the_rest(name: str) -> None:
    """Calls keep their order, a create without room takes no append along, and cancelled callers cost no memory."""
    cut_power(name, 2)


@pytest.mark.parametrize("name", BATCHES_WHEN_FULL)
def test_a_fault_of_any_call_while_the_disk_is_full(name: str) -> None:
    """A batch that the disk refuses for two reasons keeps the order of its calls, too."""
    fail_calls(name, FAULTS_WHEN_FULL)
