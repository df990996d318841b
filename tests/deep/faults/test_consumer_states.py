"""Consumers, options and seals after crashes and faults."""

from __future__ import annotations

import pytest

from mrecordlog_async import LogFullError
from tests.deep.cases import step
from tests.faults.consumer_histories import CONSUMER_CASES
from tests.faults.explore import Explorer, Tally
from tests.faults.inject import faults, inject

EVERY = {
    "consumers": 7,
    "consumers, stepping": 21,
    "never, consumers": 13,
    "options": 7,
    "options, small": 21,
    "holders": 3,
    "never, holders": 2,
    "zombie": 7,
    "never, zombie": 2,
    "never, tools": 3,
    "owners": 16,
    "rules": 9,
    "never, rules": 15,
    "reserve of consumers": 31,
    "consumers below a limit": 20,
}
"""Histories of which the suite checks only every n-th moment, and tries every n-th fault: half of them in each run."""


@pytest.mark.parametrize("name", CONSUMER_CASES)
def test_every_crash_state_keeps_consumers(name: str, tally: Tally, pytestconfig: pytest.Config) -> None:
    """Positions, epochs, options, seals and rules exist once they are acknowledged, with what they removed."""
    case = CONSUMER_CASES[name]
    run = case.run()
    assert run.stopped is None
    explorer = Explorer(deep_every=100, kill_every=13)
    with case.sizes():
        explorer.explore(run, step(pytestconfig, EVERY.get(name, 1)))
    assert explorer.tally.crash_states + explorer.tally.nested_states > 50
    tally.add(explorer.tally)


@pytest.mark.parametrize("name", CONSUMER_CASES)
def test_a_fault_at_any_call_loses_no_acknowledgement(name: str, tally: Tally, pytestconfig: pytest.Config) -> None:
    """Every call ends; what was acknowledged survives, and a failed log moves no consumer."""
    case, explorer = CONSUMER_CASES[name], Explorer()
    calls = case.run(moments=False).disk.call_names
    for fault in list(faults(calls))[:: step(pytestconfig, 2 * EVERY.get(name, 1))]:
        inject(case, fault, explorer)
    assert explorer.tally.faults > 3
    tally.add(explorer.tally)


@pytest.mark.parametrize("name", ["reserve of consumers", "consumers below a limit"])
def test_the_reserve_is_for_what_truncates(name: str) -> None:
    """On a full disk, acknowledgements that remove records always succeed, attaching does while half is left."""
    calls = CONSUMER_CASES[name].run(moments=False).model.calls
    full = next(call.number for call in calls if call.outcome == "absent")
    later = [call for call in calls if call.number > full]
    assert {call.outcome for call in later if call.kind == "acknowledge" and call.queue == "kept"} == {"answered"}
    refused = [call for call in later if call.kind == "acknowledge" and call.queue == "other"]
    assert any(isinstance(call.error, LogFullError) for call in refused)
    assert {call.outcome for call in later if call.kind == "attach"} == {"answered", "absent"}
    assert {call.outcome for call in later if call.kind == "seal"} == {"answered"}
    assert calls[-1].outcome == "answered"
