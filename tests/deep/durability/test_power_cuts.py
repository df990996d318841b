"""All written histories: a power cut at some of their moments, at ten times as many with `--nightly`."""

from __future__ import annotations

import pytest

from tests.durability.crashes import HISTORIES, cut_power
from tests.faults.aged_histories import AGED_CASES
from tests.faults.explore import Explorer, Tally
from tests.faults.histories import by_family
from tests.faults.prepared_write_histories import STATED_IN_FLIGHT

MOMENTS, MOMENTS_AT_NIGHT = 7, 70


@pytest.mark.parametrize("name", by_family(HISTORIES))
def test_a_power_cut_at_any_moment(name: str, pytestconfig: pytest.Config) -> None:
    """Acknowledged calls exist, others are whole or absent, a second open finds the same, and new calls work."""
    cut_power(name, MOMENTS_AT_NIGHT if pytestconfig.getoption("--nightly") else MOMENTS)


@pytest.mark.parametrize("name", STATED_IN_FLIGHT)
def test_end_that_is_stated_during_a_small_write_is_past_it(name: str, tally: Tally) -> None:
    """Whatever the log's thread does next to a prepared write, it makes that first: the log opens again."""
    explorer = Explorer(deep_every=100, kill_every=13)
    explorer.explore(STATED_IN_FLIGHT[name].run())
    assert explorer.tally.crash_states + explorer.tally.nested_states > 200
    tally.add(explorer.tally)


@pytest.mark.parametrize("name", AGED_CASES)
def test_histories_of_ages_remove_what_is_old(name: str) -> None:
    """In each of them, several truncates remove records for their age."""
    calls = [call for life in AGED_CASES[name].run(moments=False).lives for call in life.model.calls]
    assert sum(call.kind == "truncate" and call.value not in (0, None) for call in calls) >= 4
