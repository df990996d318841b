"""What a drain reports about its batches."""

from __future__ import annotations

import pickle

from mrecordlog_async.spark.drain.progress import DrainProgress, reported


def test_retries_add_up_over_the_processes_of_the_source() -> None:
    """Each process of the data source counts from 0, and repeats its count in every report."""
    progress = DrainProgress()
    for count in (0, 2, 2, 3, 1):
        progress.note(f'{{"retries": {count}}}')
    progress.note(None)
    assert progress.request_retries == 4
    assert reported(None) == reported("null") == {}


def test_progress_counts_a_batch_once() -> None:
    """Spark returns the same progress reports repeatedly; each batch counts once."""
    progress = DrainProgress()
    report = {
        "batchId": 3,
        "numInputRows": 7,
        "processedRowsPerSecond": 70.0,
        "sources": [{"latestOffset": '{"waiting": {"a": 2}, "bytes": 70}', "endOffset": "{}"}],
    }
    assert progress.add(report)
    assert not progress.add(report)
    assert progress.bytes == 70 and progress.last_commit is not None
    assert progress.line() == "batch 1: 7 records, 70 records/s, lag: a 2"


def test_progress_keeps_nothing_for_each_batch() -> None:
    """A drain that runs for a year has millions of them."""
    progress, sizes = DrainProgress(), []
    for batch in range(2_000):
        report = {"batchId": batch, "numInputRows": 1, "sources": [{"latestOffset": "{}"}]}
        assert progress.add(report)
        sizes.append(len(pickle.dumps(progress)))
    assert sizes[-1] < sizes[0] + 100
    assert progress.records == 2_000


def test_an_outage_is_reported_once() -> None:
    """A server that goes down, and one that responds again, is one line each; batches in between carry it."""
    progress = DrainProgress()
    lines = []
    for down in ('{"b": "refused"}', '{"b": "refused"}', "{}"):
        progress.note(f'{{"down": {down}}}')
        lines += progress.outages()
        if progress.down:
            assert progress.line().endswith("; DOWN: b")
    assert lines == ["server 'b' is down, the others continue: refused", "server 'b' responds again"]
