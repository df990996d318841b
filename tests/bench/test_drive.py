"""Callers under a clock."""

from __future__ import annotations

import asyncio
import mmap
import time

import pytest

from mrecordlog_async.bench.disk import machine
from mrecordlog_async.bench.drive import drive, payloads
from tests.bench.probe import StallProbe, resident_bytes


async def test_every_answered_call_is_counted() -> None:
    """Calls before and after the clock count too: all of them are compared with the files afterwards."""
    answered = [0, 0, 0]

    def caller(index: int) -> object:
        async def append() -> None:
            await asyncio.sleep(0)
            answered[index] += 1

        return append

    measurement = await drive([caller(index) for index in range(3)], 0.01)  # type: ignore[misc]  # a callable, as it needs
    assert measurement.acknowledged == answered
    assert 0 < measurement.calls <= measurement.acknowledged_calls
    assert measurement.latencies and measurement.rate > 0


async def test_marks_are_set_around_the_clock() -> None:
    """The disk recorder is read exactly when the clock starts and stops."""
    marks: list[str] = []
    await drive([lambda: asyncio.sleep(0)], 0.01, lambda: marks.append("begin"), lambda: marks.append("end"))
    assert marks == ["begin", "end"]


async def test_failing_call_ends_the_measurement_with_its_error() -> None:
    """A store that refuses records is not measured as a fast one."""

    async def refuse() -> None:
        raise ValueError("full")

    with pytest.raises(ValueError, match="full"):
        await drive([refuse, lambda: asyncio.sleep(0)], 0.01)


def test_payloads_differ_and_are_the_same_in_every_run() -> None:
    """Swapped records would be noticed, and two runs write the same bytes."""
    found = payloads(1_000, 100)
    assert len(set(found)) == 1_000 and {len(payload) for payload in found} == {100}
    assert found == payloads(1_000, 100)


async def test_probe_measures_a_blocked_loop() -> None:
    """A stall is as long as the longest piece of work between two turns of the loop."""
    with StallProbe() as probe:
        await asyncio.sleep(0.005)
        deadline = time.perf_counter() + 0.05
        while time.perf_counter() < deadline:
            pass
        await asyncio.sleep(0.005)
    assert probe.longest_seconds >= 0.04


def test_machine_is_named_in_one_line(tmp_path: object) -> None:
    """The report names what it ran on."""
    assert "file system" in machine(str(tmp_path)) and "\n" not in machine(str(tmp_path))


def test_resident_memory_grows_with_what_is_held() -> None:
    """The figure is the current memory of this process."""
    before = resident_bytes()
    with mmap.mmap(-1, 64 << 20) as held:  # fresh memory; an allocator might have had some left
        held.write(bytes(64 << 20))
        assert resident_bytes() - before >= len(held) // 2
