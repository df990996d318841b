"""Callers under a clock."""

from __future__ import annotations

import asyncio
import math
import mmap
import time

import pytest

from mrecordlog_async.bench.bystander import Bystander
from mrecordlog_async.bench.drive import drive, payloads
from mrecordlog_async.bench.probe import StallProbe, machine, resident_bytes


async def test_every_answered_call_is_counted() -> None:
    """What callers were told is what is compared with the files afterwards, before and behind the clock too."""
    answered = [0, 0, 0]

    def caller(index: int) -> object:
        async def append() -> None:
            await asyncio.sleep(0)
            answered[index] += 1

        return append

    stretch = await drive([caller(index) for index in range(3)], 0.01)  # type: ignore[misc]  # a callable, as it needs
    assert stretch.acknowledged == answered
    assert 0 < stretch.calls <= stretch.acknowledged_calls
    assert stretch.latencies and stretch.rate > 0


async def test_marks_are_set_around_the_clock() -> None:
    """The recorder of the disk is looked at where the clock starts and stops."""
    marks: list[str] = []
    await drive([lambda: asyncio.sleep(0)], 0.01, lambda: marks.append("begin"), lambda: marks.append("end"))
    assert marks == ["begin", "end"]


async def test_failing_call_ends_the_stretch_with_its_error() -> None:
    """A store that refuses is not measured as a fast one."""

    async def refuse() -> None:
        raise ValueError("full")

    with pytest.raises(ValueError, match="full"):
        await drive([refuse, lambda: asyncio.sleep(0)], 0.01)


def test_payloads_differ_and_are_the_same_in_every_run() -> None:
    """A record that got another's place would be noticed; two runs write the same bytes."""
    found = payloads(1_000, 100)
    assert len(set(found)) == 1_000 and {len(payload) for payload in found} == {100}
    assert found == payloads(1_000, 100)


async def test_probe_sees_a_loop_that_stands_still() -> None:
    """A stall as long as the longest piece of work between two turns."""
    with StallProbe() as probe:
        await asyncio.sleep(0.005)
        deadline = time.perf_counter() + 0.05
        while time.perf_counter() < deadline:
            pass
        await asyncio.sleep(0.005)
    assert probe.longest_seconds >= 0.04


async def test_bystander_watches_from_a_process_of_its_own() -> None:
    """It runs before the block is entered, and its figure is there when the block is left."""
    bystander = Bystander()
    async with bystander:
        assert math.isnan(bystander.longest_seconds)
    assert 0.0 <= bystander.longest_seconds < math.inf


def test_machine_is_named_in_one_line(tmp_path: object) -> None:
    """The report says what it ran on."""
    assert "file system" in machine(str(tmp_path)) and "\n" not in machine(str(tmp_path))


def test_resident_memory_grows_with_what_is_held() -> None:
    """The figure is this process's own, now."""
    before = resident_bytes()
    with mmap.mmap(-1, 64 << 20) as held:  # fresh memory; an allocator might have had some left
        held.write(bytes(64 << 20))
        assert resident_bytes() - before >= len(held) // 2
