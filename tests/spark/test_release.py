"""Which batches are proven, which run again after a stop of any kind, and what is refused."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mrecordlog_async.spark import local_lake
from mrecordlog_async.spark.identity import RefusedError
from mrecordlog_async.spark.lake import SyncFailedError, WriteFailedError
from mrecordlog_async.spark.ledger import LEDGER
from mrecordlog_async.spark.offsets import DataLossError, HeldBackError
from mrecordlog_async.spark.refusal import WENT_BACK
from mrecordlog_async.spark.truncation import LogWentBackError, ProofError
from tests.spark.conftest import NewService
from tests.spark.engine import Engine, expected
from tests.spark.services import ThreadedService, numbered


def test_a_log_is_truncated_up_to_what_the_output_holds(engine: Engine, service: ThreadedService) -> None:
    """Every batch is counted in its files and in the log; after a clean end nothing runs again."""
    assert engine.drain() == 50
    assert engine.rows() == expected(150)
    assert service.records() == {"q": []}
    with engine.started() as run:
        assert run.found is None and run.release.rows == 0 and not run.batch()


def test_many_batches_are_proven_across_compacted_manifests(service: ThreadedService, tmp_path: Path) -> None:
    """Every tenth manifest entry names the files of all batches; only those of its own batch are counted."""
    engine = Engine(f"a={service.url}", tmp_path, maxRecordsPerTrigger="10")
    service.append("q", numbered("q", 0, 250))
    assert engine.drain() == 250
    assert engine.rows() == expected(250) and service.records() == {"q": []}
    service.append("q", numbered("q", 250, 290))
    with engine.started() as run:
        while run.batch():  # nothing is proven, as by a driver that is killed at the end
            pass
    engine.empty("out/_spark_metadata/29.compact")
    with engine.started() as run:
        assert run.found is not None and "batch 29" in run.found
    engine.drain()
    assert engine.rows() == expected(290) and service.records() == {"q": []}


CUTS = {
    "manifest": ("out/_spark_metadata/2",),
    "manifest, commit missing": ("out/_spark_metadata/2", "-checkpoint/commits/2"),
    "parquet": ("PARQUET",),
    "parquet, commit missing": ("PARQUET", "-checkpoint/commits/2"),
    "commit": ("checkpoint/commits/2",),
    "offset": ("checkpoint/offsets/2",),
    "offset, nothing else": ("checkpoint/offsets/2", "-out/_spark_metadata/2", "-checkpoint/commits/2"),
    "everything": ("checkpoint/offsets/2", "out/_spark_metadata/2", "checkpoint/commits/2", "PARQUET"),
    "manifest missing": ("-out/_spark_metadata/2",),
    "lines of the manifest": ("=out/_spark_metadata/2",),
}


@pytest.mark.parametrize("cut", CUTS)
def test_what_a_power_cut_took_from_the_last_batch_runs_again(
    engine: Engine, service: ThreadedService, cut: str
) -> None:
    """If files are empty, their batch runs again, and in the end every record is stored."""
    with engine.started() as run:
        assert run.batch()  # committed, and neither proven nor truncated when the power went
    for name in CUTS[cut]:
        if name.startswith("="):
            (engine.output_path / "_spark_metadata/2").write_text("v1")
        elif name.startswith("-"):
            top, _, rest = name[1:].partition("/")
            ((engine.output_path if top == "out" else engine.checkpoint_path) / rest).unlink()
        else:
            engine.empty(engine.parquet()[-1] if name == "PARQUET" else name)
    with engine.started() as run:
        assert run.found is not None and "batch 2" in run.found
        assert cut == "commit" or service.positions("q") == (100, 150)
    engine.drain()
    assert engine.rows() == expected(150)
    assert service.records() == {"q": []}


def test_zeros_in_a_file_of_the_right_size_are_found(engine: Engine, service: ThreadedService) -> None:
    """A file system may lose the middle of a file and keep its length: a start decodes every row."""
    with engine.started() as run:
        assert run.batch()
    path = engine.output_path.parent / engine.parquet()[-1]
    payload = pq.read_metadata(path).row_group(0).column(3)
    content = bytearray(path.read_bytes())
    start = payload.dictionary_page_offset or payload.data_page_offset
    content[start : start + payload.total_compressed_size] = bytes(payload.total_compressed_size)
    path.write_bytes(content)
    with engine.started() as run:
        assert run.found is not None and "cannot be read" in run.found
    engine.drain()
    assert engine.rows() == expected(150) and service.records() == {"q": []}


@pytest.mark.parametrize("until", ["offset", "manifest"])
def test_a_batch_that_was_interrupted_runs_as_it_was_planned(
    engine: Engine, service: ThreadedService, until: str
) -> None:
    """An interrupted batch runs again up to the end that was planned; intact files are kept."""
    with engine.started() as run:
        run.batch(until=until)
    service.append("q", numbered("q", 150, 160))
    with engine.started() as run:
        assert run.found is None
    assert engine.drain() == 60
    assert engine.rows() == expected(160) and service.records() == {"q": []}


def test_a_batch_that_the_sink_skipped_is_not_truncated(engine: Engine, service: ThreadedService) -> None:
    """If the manifest has another query's entry for this batch, the drain ends and nothing is truncated."""
    with engine.started() as run:
        run.sink(2, pa.table({"server": ["b"], "queue": ["other"], "position": [7], "payload": [b"theirs"]}))
        assert run.batch()
        with pytest.raises(ProofError, match=r"batch 2 is not in .*'other'"):
            run.release.advance()
    assert service.positions("q") == (100, 150)


def test_a_failed_sync_ends_the_drain_and_is_not_retried(
    engine: Engine, service: ThreadedService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel reports a lost page only once: a second sync proves nothing. The next start reads from disk."""
    with engine.started() as run:
        assert run.batch()
        answers = iter([OSError(errno.EIO, os.strerror(errno.EIO))])
        synced = local_lake.syncfs

        def sync(handle: int) -> None:
            for error in answers:
                raise error
            synced(handle)

        monkeypatch.setattr(local_lake, "syncfs", sync)
        with pytest.raises(SyncFailedError, match="could not be synced"):
            run.release.advance()
    assert service.positions("q") == (100, 150)
    assert json.loads((engine.checkpoint_path / LEDGER).read_text())["batch"] == 1
    engine.empty(engine.parquet()[-1])  # what the failed sync stood for
    with engine.started() as run:
        assert run.found is not None
    engine.drain()
    assert engine.rows() == expected(150) and service.records() == {"q": []}


def test_the_ledger_is_durable_before_the_log_is_truncated(
    engine: Engine, service: ThreadedService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Output and checkpoint are synced, then the ledger is written, then the log is truncated."""
    steps: list[str] = []
    with engine.started() as run:
        assert run.batch()
        release = run.release
        client = release._fleet.client("a")
        truncate, save = client.truncate, release._save

        def noted(step: str, call: Callable[..., Any]) -> Callable[..., Any]:
            def noting(*arguments: Any, **named: Any) -> Any:
                steps.append(step)
                return call(*arguments, **named)

            return noting

        monkeypatch.setattr(local_lake, "syncfs", noted("sync", local_lake.syncfs))
        monkeypatch.setattr(release, "_save", noted("ledger", save))
        monkeypatch.setattr(client, "truncate", noted("truncate", truncate))
        release.advance()
    assert steps == ["sync", "sync", "ledger", "truncate", "ledger"]


@pytest.mark.parametrize(
    "left", [None, b"", b"{}", b"[]", b"null", b"\xff", b'{"batch": 1, "due": 3, "released": {}}', b'{"batch": "x"}']
)
def test_a_lost_or_damaged_ledger_is_refused(engine: Engine, service: ThreadedService, left: bytes | None) -> None:
    """Without a ledger it is unknown which batches the log still has, so none may run again or be truncated."""
    ledger = engine.checkpoint_path / LEDGER
    if left is None:
        ledger.unlink()
    else:
        ledger.write_bytes(left)
    with pytest.raises(RefusedError, match=r"ledger is (missing|damaged)"):
        engine.drain()
    assert service.positions("q") == (100, 150) and engine.rows() == expected(100)


def test_an_adopted_output_is_verified_as_far_as_its_checkpoint_reaches(
    engine: Engine, service: ThreadedService
) -> None:
    """For an output without a ledger, what the log still holds is counted before it is truncated."""
    with engine.started() as run:
        assert run.batch()
    for path in (engine.checkpoint_path / "_mrecordlog", engine.output_path / "_mrecordlog"):
        shutil.rmtree(path)
    with pytest.raises(RefusedError, match="--adopt-output"):
        engine.drain()
    with engine.started(adopt=True):
        pass
    assert service.records() == {"q": []} and engine.rows() == expected(150)
    assert engine.drain() == 0


def test_an_adopted_output_with_damage_is_left_alone(engine: Engine, service: ThreadedService) -> None:
    """Batches that may have been truncated from the log never run again."""
    for path in (engine.checkpoint_path / "_mrecordlog", engine.output_path / "_mrecordlog"):
        shutil.rmtree(path)
    engine.empty(engine.parquet()[0])
    with pytest.raises(RefusedError, match="cannot be taken back"), engine.started(adopt=True):
        pass
    assert (engine.output_path / "_spark_metadata" / "1").exists() and service.positions("q") == (100, 150)


@pytest.mark.parametrize("which", ["output", "checkpoint"])
def test_an_older_copy_of_one_of_the_two_is_refused(engine: Engine, service: ThreadedService, which: str) -> None:
    """An older copy is refused: truncated records would be in neither output nor log."""
    place = engine.output_path if which == "output" else engine.checkpoint_path
    shutil.copytree(place, place.with_name("copy"))
    engine.drain()
    shutil.rmtree(place)
    place.with_name("copy").rename(place)
    service.append("q", numbered("q", 150, 170))
    with pytest.raises(RefusedError, match="older"):
        engine.drain()
    assert service.positions("q") == (150, 170)


@pytest.mark.parametrize("planned", [False, True])
@pytest.mark.parametrize("kills", [[], [0, 1], [1, 0], [0, 2], [0, 3]])
@pytest.mark.parametrize("releases", [False, True])
def test_records_of_an_accepted_log_are_all_stored_before_they_go(
    engine: Engine, service: ThreadedService, tmp_path: Path, planned: bool, kills: list[int], releases: bool
) -> None:
    """Batches from before the acceptance, committed or only planned, release none of the new records.

    kills: how many batches each of the first starts runs before it is killed.
    """
    service.keep_copy(tmp_path / "copy")
    service.append("q", numbered("q", 150, 180))
    with engine.started() as run:
        assert run.batch()
        if planned:
            service.append("q", numbered("q", 180, 190))
            assert run.batch(until="offset")
    service.go_back(tmp_path / "copy")
    new = [f"new:{position}".encode() for position in range(150, 200)]
    service.append("q", new)
    with pytest.raises((LogWentBackError, DataLossError), match="went back"):
        engine.drain()
    for batches in kills:
        with engine.started(accept=[WENT_BACK]) as run:
            for _ in range(batches):
                run.batch()
                if releases:
                    run.release.advance()
    engine.drain(accept=[WENT_BACK])
    assert service.records() == {"q": []}
    assert set(new) <= {row[3] for row in engine.rows()}


def test_an_empty_commit_file_with_a_planned_batch_after_it_is_written_again(
    engine: Engine, service: ThreadedService
) -> None:
    """Spark cannot start with an empty commit file, so it is removed; the intact batch is not written twice."""
    with engine.started() as run:
        assert run.batch()
        service.append("q", numbered("q", 150, 160))
        assert run.batch(until="offset")
    engine.empty("checkpoint/commits/2")
    with engine.started() as run:
        assert run.found is not None and "batch 2 is confirmed again" in run.found
        assert not (engine.checkpoint_path / "commits/2").exists()
    engine.drain()
    assert engine.rows() == expected(160) and service.records() == {"q": []}


def test_a_full_disk_leaves_the_ledger_and_the_log(
    engine: Engine, service: ThreadedService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a full disk the old ledger stays, nothing half written is left, and the next start continues."""

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with engine.started() as run:
        assert run.batch()
        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(WriteFailedError, match=r"ledger could not be written \(No space left on device\)"):
            run.release.advance()
        monkeypatch.undo()
    assert service.positions("q") == (100, 150)
    assert {path.name for path in (engine.checkpoint_path / LEDGER).parent.iterdir()} == {"ledger", "output"}
    engine.drain()
    assert engine.rows() == expected(150) and service.records() == {"q": []}


def test_a_checkpoint_without_its_commits_is_refused(engine: Engine, service: ThreadedService) -> None:
    """Without its commits, Spark would run the last batch again, whose records were truncated; the start is refused."""
    engine.drain()
    shutil.rmtree(engine.checkpoint_path / "commits")
    with pytest.raises(RefusedError, match="incomplete"):
        engine.drain()


@pytest.mark.parametrize("how", ["moved", "copied"])
def test_an_output_at_another_place_is_refused(
    engine: Engine, service: ThreadedService, tmp_path: Path, how: str
) -> None:
    """Spark's manifest has absolute paths, so a moved or copied output is refused."""
    place = tmp_path / "new"
    shutil.copytree(engine.output_path, place)
    if how == "moved":
        shutil.rmtree(engine.output_path)
    with pytest.raises(RefusedError, match=r"was moved or copied: its manifest names file:.*\.parquet"):
        Engine(f"a={service.url}", engine.checkpoint_path.parent, output=place).drain()
    assert service.positions("q") == (100, 150)


def test_an_output_through_a_link_and_a_moved_checkpoint_are_taken(
    engine: Engine, service: ThreadedService, tmp_path: Path
) -> None:
    """An output behind a link, or a moved checkpoint, is accepted: the manifest's paths are still right."""
    (tmp_path / "link").symlink_to(engine.output_path)
    (tmp_path / "elsewhere").mkdir()
    engine.checkpoint_path.rename(tmp_path / "elsewhere/checkpoint")
    moved = Engine(f"a={service.url}", tmp_path / "elsewhere", output=tmp_path / "link")
    assert moved.drain() == 50
    assert service.records() == {"q": []} and moved.rows() == expected(150)


def test_a_restored_log_of_several_queues_is_accepted(new_service: NewService, tmp_path: Path) -> None:
    """All its queues are accepted together: the one that lost its end, and the one with an undone truncate."""
    service = new_service()
    service.append("idle", numbered("idle", 0, 10))
    service.append("busy", numbered("busy", 0, 10))
    engine = Engine(f"a={service.url}", tmp_path)
    service.keep_copy(tmp_path / "copy")
    with engine.started() as run:
        service.append("busy", numbered("busy", 10, 50))
        while run.batch():
            run.release.advance()
        service.go_back(tmp_path / "copy")
        with pytest.raises(HeldBackError, match="went back"):
            run.batch()
    service.append("busy", [b"new"])
    engine.drain(accept=[WENT_BACK])
    assert b"new" in {row[3] for row in engine.rows()}
    assert service.records() == {"idle": [], "busy": []}
