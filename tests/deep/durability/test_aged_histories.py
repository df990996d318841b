"""Crashes and faults while records are removed for their age."""

from __future__ import annotations

import pytest

from tests.durability.crashes import cut_power, fail_calls
from tests.faults.aged_histories import AGED_CASES

MOMENTS, FAULTS = 25, 40


@pytest.mark.parametrize("name", AGED_CASES)
def test_every_crash_state_keeps_what_is_young(name: str) -> None:
    """What was removed and acknowledged stays removed, and nothing else is missing."""
    calls = [call for life in AGED_CASES[name].run(moments=False).lives for call in life.model.calls]
    assert sum(call.kind == "truncate" and call.value not in (0, None) for call in calls) >= 4
    cut_power(name, MOMENTS)


@pytest.mark.parametrize("name", ["aging", "clock jumps"])
def test_a_fault_at_any_call_loses_nothing_young(name: str) -> None:
    """A failed or full disk may keep what is too old; it never loses what is young."""
    fail_calls(name, FAULTS)
