"""What a drain reports about its batches."""

from __future__ import annotations

from mrecordlog_async.spark.drain_progress import Progress, waiting


def test_lag_is_what_the_source_reported() -> None:
    """The lag is what the source counted for each server; empty before its first report."""
    assert waiting('{"version": 2, "servers": {}, "waiting": {"a": 9, "b": 0}}') == {"a": 9, "b": 0}
    assert waiting(None) == waiting("null") == {}


def test_progress_counts_a_batch_once() -> None:
    """Spark returns the same progress reports repeatedly; each batch counts once."""
    progress = Progress()
    report = {
        "batchId": 3,
        "numInputRows": 7,
        "processedRowsPerSecond": 70.0,
        "sources": [{"latestOffset": '{"waiting": {"a": 2}}', "endOffset": "{}"}],
    }
    assert progress.add(report)
    assert not progress.add(report)
    assert progress.line() == "batch 1: 7 records, 70 records/s, lag: a 2"
