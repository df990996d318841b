"""Every written history at a budget of moments and faults: so many of each are tried, spread over the whole history.

A budget is the same number for every history. The longer one is, the further apart its moments are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

from tests.faults.aged_histories import AGED_CASES
from tests.faults.consumer_histories import CONSUMER_CASES
from tests.faults.explore import FAMILY, TALLY, Explorer
from tests.faults.histories import BATCHES_WHEN_FULL, CASES, LITTLE_MEMORY, Case, family
from tests.faults.inject import faults, inject
from tests.faults.judge import Violation

Item = TypeVar("Item")

HISTORIES: Mapping[str, Case] = {
    **CASES,
    **BATCHES_WHEN_FULL,
    **CONSUMER_CASES,
    **AGED_CASES,
    **{f"{name}, little memory": case for name, case in LITTLE_MEMORY.items()},
}
"""All written histories."""


def spread(every: Sequence[Item], budget: int) -> Sequence[Item]:
    """Return *budget* of these, or all, at equal distances."""
    return every[:: distance_of(len(every), budget)]


def distance_of(count: int, budget: int) -> int:
    """Return how far apart *budget* of *count* items are."""
    return max(1, -(-count // budget))


def cut_power(name: str, moments: int) -> None:
    """Run a history, and cut the power at so many of its moments. At one of them in five the next process writes."""
    case = HISTORIES[name]
    run = case.run()
    if run.stopped is not None:
        raise Violation(f"{name} stopped: {run.stopped!r}")
    if case.memory_bytes:  # each moment has several times as many states, and an opening as many calls
        moments, deep_every = -(-moments // 3), 500
    else:
        deep_every = 100
    explorer = Explorer(deep_every=deep_every, known=FAMILY.known(family(name), case.opened_with))
    lives = [life for each in (run, *run.copies) for life in each.lives]
    distance = distance_of(sum(len(life.moments) for life in lives), moments)
    explorer.kill_every, explorer.steps_max = distance * 5, moments
    with case.sizes():
        explorer.explore(run, every=distance)
    TALLY.add(explorer.tally)


def fail_calls(name: str, budget: int) -> None:
    """Run a history so many times, each time with another fault of a call to the disk."""
    case = HISTORIES[name]
    explorer = Explorer(known=FAMILY.known(family(name), case.opened_with))
    calls = case.run(moments=False).disk.call_names
    for fault in spread(list(faults(calls, reads_return=bool(case.memory_bytes))), budget):
        inject(case, fault, explorer)
    TALLY.add(explorer.tally)
