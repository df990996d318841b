"""How workloads are chosen and run: in their own process and directory, and with every record read back."""

from __future__ import annotations

import asyncio
import gc
import os
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from mrecordlog_async.options import MIB
from tests.benchmarks import suite
from tests.benchmarks.results import NotReadBackError, Row
from tests.benchmarks.scale import Bench, Scale
from tests.benchmarks.subject import check_read_back, raw_disk, subject
from tests.benchmarks.suite import WORKLOADS, Workload, chosen, run_all

TINY = Scale(seconds=0.01, rounds=1, callers=(1, 20), compared_callers=20, raw_bytes=1 * MIB)


def test_a_missing_directory_is_named_itself(tmp_path: Path) -> None:
    """The error does not name the temporary directory that was to be created in it."""
    with pytest.raises(FileNotFoundError) as caught:
        list(run_all(chosen(["one-caller"]), TINY, str(tmp_path / "absent"), lambda _: None))
    assert caught.value.filename == str(tmp_path / "absent")


def test_workload_gets_an_absolute_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other stores run in processes that work elsewhere: they must find it too."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(suite, "_in_process", lambda workload, scale, place: [Row(place, "")])
    ((row,),) = run_all(chosen(["one-caller"]), TINY, ".", lambda _: None)
    assert os.path.dirname(row.workload) == str(tmp_path)


def test_collector_is_set_in_the_workload_s_own_process(tmp_path: Path) -> None:
    """A threshold given for a workload does not change this process."""
    before = gc.get_threshold()
    (rows,) = run_all(chosen(["one-caller"]), replace(TINY, gc_threshold=50_000), str(tmp_path), lambda _: None)
    assert all(_is_complete(row) for row in rows)
    assert gc.get_threshold() == before


def test_workload_that_breaks_is_a_row_that_says_so(tmp_path: Path) -> None:
    """The others still run, and the directory is left as it was."""
    broken = Workload("broken", "cannot be found", "nowhere")
    (rows,) = run_all([broken], TINY, str(tmp_path), lambda _: None)
    assert [(row.failed, row.skipped) for row in rows] == [(True, "ModuleNotFoundError: No module named 'nowhere'")]
    assert os.listdir(tmp_path) == []


def test_workloads_are_chosen_by_name_in_the_order_of_the_table() -> None:
    """An unknown name is refused with a list of the known ones."""
    assert [workload.name for workload in chosen(["sizes", "callers"])] == ["callers", "sizes"]
    assert chosen(None) == list(WORKLOADS)
    with pytest.raises(ValueError, match="unknown workload raeds; known: batches"):
        chosen(["raeds"])


def test_record_that_is_missing_in_the_files_is_an_error(tmp_path: Path) -> None:
    """A row whose records are not all in the files is an error, not a number."""

    async def run() -> None:
        bench = Bench(str(tmp_path), TINY, lambda _: None)
        async with raw_disk(bench) as raw, subject(bench, raw) as log:
            await log.round(log.one_by_one([b"one", b"two"]), 0.01)
            log.stored[b"two"] += 1

    with pytest.raises(NotReadBackError):
        asyncio.run(run())


def test_record_that_is_another_one_is_an_error() -> None:
    """Counting alone would miss it."""
    with pytest.raises(
        NotReadBackError, match="2 records were acknowledged, 2 are in the files, 1 of them as acknowledged"
    ):
        check_read_back("a store", Counter([b"a", b"b"]), Counter([b"a", b"c"]))


def _is_complete(row: Row) -> bool:
    if row.skipped:
        return not row.failed and not row.value
    return bool(row.what and row.unit) and row.value > 0
