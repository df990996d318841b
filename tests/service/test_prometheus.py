"""`/metrics` of a real service: what an operator checks when a disk fills, stalls or fails."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import re
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from mrecordlog_async import Limits, MultiRecordLog, QueueOptions
from mrecordlog_async.metrics import OF_A_CONSUMER, OF_A_QUEUE, counted
from mrecordlog_async.model import LogState
from mrecordlog_async.service.options import ServiceOptions
from mrecordlog_async.service.watching import prometheus
from mrecordlog_async.service.watching.prometheus import ServiceCollector, oldest_age
from tests import damage
from tests.cached_files import CachedFiles, HangingDisk
from tests.served import Served, serving

NDJSON = {"Content-Type": "application/x-ndjson"}
SEGMENT = bytes(4 * 32_768)
"""A record that fills a segment of these tests by itself."""


async def scrape(served: Served) -> dict[str, float]:
    """Return the samples of `/metrics` by name, with a label's value after it."""
    text = (await served.call("GET", "/metrics")).body.decode()
    return {
        " ".join((sample.name.removeprefix("mrecordlog_"), *sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def test_records_that_wait_are_counted(directory: Path) -> None:
    """The records of the batch that is being written, and those appended since."""
    disk = HangingDisk()
    async with serving(directory, filesystem=disk) as served:
        await served.log.create_queue("q")
        await served.log.append_record("q", None, b"a")
        still = await scrape(served)
        assert (still["pending_records"], still["pending_bytes"]) == (0, 0)
        disk.goes_on.clear()
        try:
            first = asyncio.ensure_future(served.call("POST", "/v1/queues/q/records", b"first"))
            await asyncio.to_thread(disk.waits.wait)
            singles = [asyncio.ensure_future(served.log.append_record("q", None, b"single")) for _ in range(3)]
            several = asyncio.ensure_future(served.log.append_records("q", None, [b"one", b"call"]))
            later = [*singles, several]
            await asyncio.sleep(0)
            busy = await scrape(served)
            served.service.options = replace(served.service.options, stall_seconds=1e-9)
            ready = await served.call("GET", "/readyz")
            served.service.options = replace(served.service.options, stall_seconds=0.0)
            assert (await served.call("GET", "/readyz")).status == 200
            stats = (await served.call("GET", "/v1/stats")).json()
        finally:
            disk.goes_on.set()
        assert (busy["pending_records"], stats["pending_records"]) == (6, 6)
        assert 0 < busy["under_way_seconds"] <= busy["waiting_seconds"] <= stats["waiting_seconds"]
        assert (ready.status, "disk has not responded" in ready.json()["cause"]) == (503, True)
        assert busy["pending_bytes"] == stats["usage"]["pending_bytes"] > 6 * len(b"first")
        await asyncio.gather(first, *later)
        done = await scrape(served)
        assert (done["pending_records"], done["pending_bytes"]) == (0, 0)
        assert done["waiting_seconds"] == 0
        times = (await served.call("GET", "/v1/stats")).json()
        assert times["last_minute"]["append_seconds"] == times["append_seconds"]


async def test_the_queue_that_keeps_segments_is_counted_and_named_apart(served: Served) -> None:
    """The number of segments is a gauge without labels; `/v1/stats` names the queue."""
    await served.log.append_record("q", None, b"idle")
    fresh = await scrape(served)
    assert (fresh["pinned_segments"], fresh["pinned_segments_alone"], fresh["oldest_segment_age_seconds"]) == (0, 0, 0)
    assert (await served.call("GET", "/v1/stats")).json()["pin"] is None

    await served.log.create_queue("busy")
    for _ in range(3):
        last = await served.log.append_record("busy", None, SEGMENT)
    pinned = await scrape(served)
    assert (pinned["segments"], pinned["pinned_segments"], pinned["pinned_segments_alone"]) == (4, 3, 1)
    assert (await served.call("GET", "/v1/stats")).json()["pin"] == {"queue": "q", "segments": 3, "alone": 1}

    assert last is not None
    await served.log.truncate("busy", last)
    await served.log.sync()  # after the roll that may follow a truncate
    alone = await scrape(served)
    assert alone["pinned_segments"] == alone["pinned_segments_alone"] == alone["segments"] - 1 >= 3
    assert not any("idle" in name or "busy" in name for name in alone)

    await served.log.truncate("q", 0)
    await served.log.sync()
    await served.log.append_record("q", None, b"in the current segment")
    freed = await scrape(served)
    assert (freed["pinned_segments"], freed["pinned_segments_alone"]) == (0, 0)
    assert served.log.inspection.pin() is None


async def test_two_queues_that_keep_the_same_segment_keep_it_together(served: Served) -> None:
    """Neither alone would free it: the gauge still reports that it is kept."""
    await served.log.create_queue("r")
    for queue in ("q", "r"):
        await served.log.append_record(queue, None, b"idle")
    await served.log.append_record("q", None, SEGMENT)
    pinned = await scrape(served)
    assert (pinned["pinned_segments"], pinned["pinned_segments_alone"]) == (1, 0)


async def test_the_age_of_the_oldest_segment_is_reported(served: Served, directory: Path) -> None:
    """Seconds since its last write, by the clock of the file system."""
    await served.log.append_record("q", None, b"idle")
    await served.log.append_record("q", None, SEGMENT)
    oldest = damage.segments(directory)[0]
    written = oldest.stat().st_mtime - 1_000
    os.utime(oldest, (written, written))
    age = (await scrape(served))["oldest_segment_age_seconds"]
    assert 1_000 <= age < 1_600


async def test_a_collector_of_an_application_never_asks_the_disk(served: Served) -> None:
    """It runs on the event loop, so it has every series except the one that only the disk knows."""
    own = CollectorRegistry()
    own.register(ServiceCollector(served.service))
    assert own.get_sample_value("mrecordlog_pinned_segments") == 0
    assert own.get_sample_value("mrecordlog_oldest_segment_age_seconds") is None


def test_a_segment_that_was_removed_just_now_has_no_age(tmp_path: Path) -> None:
    """It was removed between finding the oldest and asking for its time."""
    assert oldest_age(str(tmp_path / "gone"), is_current=False) == 0.0


async def test_a_torn_tail_that_opening_cut_is_counted_in_bytes(directory: Path) -> None:
    """They are the bytes of an unacknowledged batch that a crash interrupted."""
    async with MultiRecordLog.open(directory, segment_bytes=len(SEGMENT)) as log:
        await log.create_queue("q")
    (directory / "CLOSED").unlink()
    segment = damage.last_segment(directory)
    dropped = damage.half_a_batch(segment)
    async with serving(directory) as served:
        assert (await scrape(served))["dropped_bytes_total"] == dropped
    async with serving(directory) as served:
        assert (await scrape(served))["dropped_bytes_total"] == 0


class FailingDisk(CachedFiles):
    """A disk whose syncs can be made to fail."""

    fails = False

    def sync(self, handle: int) -> None:
        if self.fails:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        super().sync(handle)


async def test_a_failed_log_is_reported_and_still_scraped(directory: Path) -> None:
    """Exactly one state is 1, and no record waits any more."""
    disk = FailingDisk()
    async with serving(directory, filesystem=disk) as served:
        await served.log.create_queue("q")
        before = await scrape(served)
        disk.fails = True
        assert (await served.call("POST", "/v1/queues/q/records", b"a")).status == 503
        after = await scrape(served)
        stats = (await served.call("GET", "/v1/stats")).json()
    assert (before["failed"], after["failed"], after["io_errors_total"]) == (0, 1, 1)
    assert after["append_rejected_total failed"] == stats["refused"]["failed"] == 1
    assert stats["failure"].startswith("a write or sync failed (EIO)")
    states = {state: (before[f"state {state}"], after[f"state {state}"]) for state in LogState}
    assert states.pop(LogState.OPEN) == (1, 0)
    assert states.pop(LogState.FAILED) == (0, 1)
    assert set(states.values()) == {(0, 0)}
    assert after["pending_records"] == 0


async def test_appends_that_are_refused_over_http_are_counted_once_each(served: Served) -> None:
    """Whether the service or the log finds the reason; a queue that the request may create is not one."""
    for queue in ("sealed", "full"):
        await served.log.create_queue(queue)
    await served.log.seal_queue("sealed")
    await served.log.configure_queue("full", QueueOptions(max_records=1))
    statuses = []
    for queue in ("absent", "sealed", "full"):
        for headers, body in (({}, b"a"), (NDJSON, b"a\nb\n"), ({}, b"b")):
            path = f"/v1/queues/{queue}/records"
            statuses.append((await served.call("POST", path, body, headers=headers)).status)
    assert statuses == [404, 404, 404, 409, 409, 409, 200, 413, 429]
    assert (await served.call("POST", "/v1/queues/new/records?create=1", b"a")).status == 200
    after = await scrape(served)
    counted = {name: int(value) for name, value in after.items() if name.startswith("append_rejected_total") and value}
    assert counted == {
        "append_rejected_total no_queue": 3,
        "append_rejected_total sealed": 3,
        "append_rejected_total queue": 1,
        "append_rejected_total too_large": 1,
    }


async def test_a_queue_that_a_request_may_not_create_is_one_refused_append(directory: Path) -> None:
    """The limit on queues refuses the append that asked for a new one."""
    async with serving(directory, limits=Limits(queues=1), queues=["q"]) as served:
        assert (await served.call("POST", "/v1/queues/new/records?create=1", b"a")).status == 429
        after = await scrape(served)
    assert {name: value for name, value in after.items() if name.startswith("append_rejected") and value} == {
        "append_rejected_total queues": 1
    }


@pytest.mark.parametrize("state", ["recovering", "closed"])
async def test_there_is_something_to_scrape_before_and_after(directory: Path, state: str) -> None:
    """A service whose log is not open yet, or already closed, reports that instead of failing."""
    async with serving(directory, recovered=state == "closed") as served:
        if state == "closed":
            await served.log.close()
        assert (await scrape(served))[f"state {state}"] == 1


async def test_the_process_is_measured_too(served: Served) -> None:
    """Its memory next to the limit of the log's memory, its descriptors, its CPU time and its start."""
    samples = await scrape(served)
    assert samples["process_resident_memory_bytes"] > 1_000_000
    assert 0 < samples["process_open_fds"] < samples["process_max_fds"]
    assert samples["process_cpu_seconds_total"] > 0
    assert samples["process_start_time_seconds"] > 0


async def test_how_far_consumers_are_behind_is_exported(served: Served) -> None:
    """Each consumer has its own series; beyond the limit they are counted instead."""
    await served.log.create_queue('r"')
    for queue in ("q", 'r"'):
        await served.log.append_records(queue, None, [b"a", b"bb"])
        await served.log.create_consumer(queue, "billing", start=1)
    text = (await served.call("GET", "/metrics")).body.decode()
    assert 'mrecordlog_consumer_waiting_records{queue="q",consumer="billing"} 1.0' in text
    assert 'mrecordlog_consumer_waiting_bytes{queue="r\\"",consumer="billing"} 2.0' in text
    assert 'mrecordlog_consumer_waiting_seconds{queue="q",consumer="billing"}' in text
    assert "mrecordlog_consumers_without_series 0.0" in text


async def test_a_consumer_whose_holder_is_missing_can_be_seen(served: Served) -> None:
    """The time since its holder was seen is exported, unless there was none: that is not a time of 0 s."""
    await served.log.create_consumer("q", "held")
    await served.log.create_consumer("q", "free")
    async with served.log.consumer("q", "held"):
        pass
    text = (await served.call("GET", "/metrics")).body.decode()
    assert re.search(r'mrecordlog_consumer_idle_seconds\{queue="q",consumer="held"\} \d', text)
    assert 'mrecordlog_consumer_idle_seconds{queue="q",consumer="free"}' not in text
    assert 'mrecordlog_consumer_waiting_seconds{queue="q",consumer="free"} 0.0' in text


async def test_consumers_beyond_the_limit_are_counted(directory: Path) -> None:
    """A rule for very many queues does not make /metrics very long."""
    async with serving(directory, ServiceOptions(metrics_queues=1)) as served:
        await served.log.create_consumer("*", "lake")
        for queue in ("a", "b", "c"):
            await served.log.create_queue(queue)
        text = (await served.call("GET", "/metrics")).body.decode()
        assert text.count("mrecordlog_consumer_waiting_records{") == 1
        assert "mrecordlog_consumers_without_series 2.0" in text


async def test_times_of_a_slow_disk_are_told_apart(directory: Path) -> None:
    """3 s and 30 s are in separate buckets; what is above the last bound is null in /v1/stats, never a number."""
    async with serving(directory) as served:
        counters = served.log._engine.counters
        for seconds in [3.0] * 60 + [30.0] * 38 + [61.0] * 2:
            counters.commit_seconds.observe(seconds)
        found = await scrape(served)
        stats = json.loads((await served.call("GET", "/v1/stats")).body)["commit_seconds"]
    buckets = {name: value for name, value in found.items() if name.startswith("commit_seconds_bucket")}
    assert [buckets[f"commit_seconds_bucket {bound}"] for bound in ("1.6384", "3.2768", "26.2144", "52.4288")] == [
        0,
        60,
        60,
        98,
    ]
    assert buckets["commit_seconds_bucket +Inf"] == 100
    assert {name: stats[name] for name in ("p50", "p90", "p99")} == {"p50": 3.2768, "p90": 52.4288, "p99": None}


async def test_a_counter_of_a_queue_or_a_consumer_ends_in_total(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of the log do: the text that is written in turns, and a registry, give a row of the table the same name."""
    monkeypatch.setattr(prometheus, "OF_A_QUEUE", (*OF_A_QUEUE, counted("next_position", "queue_assigned", "Assigned")))
    monkeypatch.setattr(prometheus, "OF_A_CONSUMER", (*OF_A_CONSUMER, counted("epoch", "consumer_held", "Held")))
    async with serving(directory, ServiceOptions(metrics_per_queue=True)) as served:
        await served.log.create_queue("q")
        await served.log.create_consumer("q", "lake")
        text = (await served.call("GET", "/metrics")).body.decode()  # the parser would add the ending itself
        registry = CollectorRegistry()
        registry.register(ServiceCollector(served.service))
        assert 'mrecordlog_queue_assigned_total{queue="q"} 0.0' in text
        assert 'mrecordlog_consumer_held_total{queue="q",consumer="lake"}' in text
        assert registry.get_sample_value("mrecordlog_queue_assigned_total", {"queue": "q"}) == 0
