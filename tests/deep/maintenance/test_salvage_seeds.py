"""Salvage against random histories with random damage; see `salvage_histories` and `salvage_judge`."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from mrecordlog_async import CorruptionError
from mrecordlog_async.maintenance.salvage import Salvage, salvage_from
from mrecordlog_async.storage.directory import LogDirectory
from tests.maintenance.salvage_histories import HARMS, make_history
from tests.maintenance.salvage_judge import complaints

LOGS = 10
DAMAGES = 30


@pytest.mark.parametrize("seed", range(LOGS))
def test_whatever_is_lost_nothing_wrong_is_shown(seed: int) -> None:
    """Each returned record was acknowledged for its queue; everything readable is returned, every loss is named.

    Queues are created, deleted, recreated, truncated and appended to over several segments; then bytes, blocks, ends
    and whole segments are lost. What certainly was deleted or truncated stays so; what may have been is reported.
    """
    assert list(complaints(seed, DAMAGES)) == []


@pytest.mark.parametrize("seed", range(3))
def test_counting_records_says_what_reading_them_says(tmp_path: Path, seed: int) -> None:
    """Without payloads, the damage, the numbers of records and the missing positions are the same."""
    rng = random.Random(seed)
    history = make_history(tmp_path / "log", rng)
    for number in range(10):
        directory = tmp_path / str(number)
        history.restore(directory)
        rng.choice(HARMS)(directory, rng, history)
        log = LogDirectory.at(directory)
        try:
            read = salvage_from(log)
        except CorruptionError:
            continue
        counted = salvage_from(log, keeps_payloads=False)
        assert facts(counted) == facts(read)
        assert not any(run.payload for queue in counted.queues for run in queue.runs)


def facts(found: Salvage) -> object:
    """Return everything but the payloads."""
    queues = [(queue.record_count, queue.readable_next_position, replace(queue, runs=[])) for queue in found.queues]
    return queues, found.damage, found.segments, found.torn_bytes
