"""Which checkpoint an output belongs to: what may start together, and what is refused."""

from __future__ import annotations

import json
import multiprocessing
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from mrecordlog_async.spark.identity import OUTPUT, OWNER, Bond, RefusedError, claim, query_of
from mrecordlog_async.spark.local_lake import LocalLake

_open: list[LocalLake] = []


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    """Close all lakes at the end of a test."""
    yield
    while _open:
        _open.pop().close()


def lake(path: Path) -> LocalLake:
    _open.append(LocalLake(str(path)))
    return _open[-1]


def start(place: Path, checkpoint: str = "checkpoint", output: str = "out", *, adopt: bool = False) -> Bond:
    return claim(lake(place / checkpoint), lake(place / output), adopt=adopt)


def run_batch(place: Path, number: int, checkpoint: str = "checkpoint", output: str = "out") -> None:
    """Write the files that Spark writes for a batch."""
    for top, directory in ((checkpoint, "offsets"), (output, "_spark_metadata"), (checkpoint, "commits")):
        path = place / top / directory / str(number)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("v1\n{}")


def test_the_first_start_ties_both_together(tmp_path: Path) -> None:
    """Spark uses the query id that the first start wrote; later starts find the same bond."""
    bond = start(tmp_path)
    assert json.loads((tmp_path / "checkpoint/metadata").read_bytes()) == {"id": bond.query}
    assert start(tmp_path) == bond
    run_batch(tmp_path, 0)
    assert start(tmp_path) == bond


@pytest.mark.parametrize("left", [["metadata"], ["metadata", "owner"]])
def test_a_first_start_that_was_killed_is_continued(tmp_path: Path, left: list[str]) -> None:
    """A first start that is killed after any of its files continues at the next start."""
    bond = start(tmp_path)
    (tmp_path / "checkpoint" / OUTPUT).unlink()
    if "owner" not in left:
        (tmp_path / "out" / OWNER).unlink()
    again = start(tmp_path)
    assert again.query == bond.query
    assert start(tmp_path) == again


def test_two_jobs_that_begin_on_one_empty_output(tmp_path: Path) -> None:
    """The second job is refused before it writes anything; Spark would skip its batches as already written."""
    start(tmp_path, "checkpoint-a")
    with pytest.raises(RefusedError, match="another checkpoint"):
        start(tmp_path, "checkpoint-b")
    with pytest.raises(RefusedError, match="another checkpoint"):
        start(tmp_path, "checkpoint-b")  # also when it is started again
    start(tmp_path, "checkpoint-a")


def _race(place: Path, name: str, ready: object, results: object) -> None:
    ready.wait()  # type: ignore[attr-defined]  # a barrier of multiprocessing, which has no public type
    try:
        start(place, name)
        results.put(name)  # type: ignore[attr-defined]  # a queue of multiprocessing
    except RefusedError:
        results.put(None)  # type: ignore[attr-defined]


def test_one_of_many_that_start_at_once_gets_the_output(tmp_path: Path) -> None:
    """The process that links the owner file first gets the output."""
    context = multiprocessing.get_context("forkserver")  # a fork of this process, with its threads, could hang
    context.set_forkserver_preload([__name__])
    for round_number in range(5):
        place = tmp_path / str(round_number)
        place.mkdir()
        ready, results = context.Barrier(4), context.Queue()
        racers = [context.Process(target=_race, args=(place, f"c{n}", ready, results)) for n in range(4)]
        for racer in racers:
            racer.start()
        found = [results.get(timeout=240) for _ in racers]
        for racer in racers:
            racer.join()
        assert len([name for name in found if name]) == 1, found


def test_a_checkpoint_of_another_pipeline_is_refused(tmp_path: Path) -> None:
    """A checkpoint and an output that do not name each other are refused, though both have batches."""
    start(tmp_path)
    start(tmp_path, "other-checkpoint", "other-out")
    for number in range(3):
        run_batch(tmp_path, number)
        run_batch(tmp_path, number, "other-checkpoint", "other-out")
    with pytest.raises(RefusedError, match="another checkpoint"):
        start(tmp_path, "other-checkpoint")


def test_a_new_checkpoint_over_an_old_output_is_refused(tmp_path: Path) -> None:
    """With a new checkpoint, Spark would skip the first batches as already written."""
    start(tmp_path)
    run_batch(tmp_path, 0)
    shutil.rmtree(tmp_path / "checkpoint")
    with pytest.raises(RefusedError, match="another checkpoint"):
        start(tmp_path)


def test_a_checkpoint_without_its_output_is_refused(tmp_path: Path) -> None:
    """A checkpoint is refused at any output but its own, however few of its batches still have files."""
    start(tmp_path)
    for number in range(120, 123):
        run_batch(tmp_path, number)
    shutil.rmtree(tmp_path / "out")
    with pytest.raises(RefusedError, match="belongs to an output that is not at"):
        start(tmp_path)


def test_a_checkpoint_from_before_the_bond_without_its_output_is_refused(tmp_path: Path) -> None:
    """A checkpoint without a bond, but with commits, wrote to another output."""
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "checkpoint/metadata").write_text('{"id":"x"}')
    run_batch(tmp_path, 7)
    shutil.rmtree(tmp_path / "out", ignore_errors=True)
    with pytest.raises(RefusedError, match="belongs to an output that is not at"):
        start(tmp_path)


def test_an_older_checkpoint_is_refused(tmp_path: Path) -> None:
    """If the output has newer batches, the checkpoint is refused, and the message offers no way that loses records."""
    start(tmp_path)
    run_batch(tmp_path, 0)
    shutil.copytree(tmp_path / "checkpoint", tmp_path / "backup")
    run_batch(tmp_path, 1)
    with pytest.raises(RefusedError, match="older than") as refused:
        start(tmp_path, "backup")
    assert "allow-data-loss" not in str(refused.value) and "failOnDataLoss" not in str(refused.value)
    start(tmp_path)


def test_an_output_of_unknown_origin_is_refused(tmp_path: Path) -> None:
    """An output with foreign files is refused; the job's own checkpoint inside the output is not foreign."""
    (tmp_path / "out").mkdir()
    (tmp_path / "out/part-0.parquet").touch()
    with pytest.raises(RefusedError, match=r"holds 'part-0\.parquet'"):
        start(tmp_path)
    (tmp_path / "out/part-0.parquet").unlink()
    start(tmp_path, "out/cp/inside")
    start(tmp_path, "same", "same")
    start(tmp_path, "same", "same")


def test_an_output_from_before_the_bond_can_be_adopted(tmp_path: Path) -> None:
    """The user may confirm that this checkpoint wrote the output; an older checkpoint is still refused."""
    start(tmp_path)
    run_batch(tmp_path, 0)
    run_batch(tmp_path, 1)
    (tmp_path / "checkpoint" / OUTPUT).unlink()
    (tmp_path / "out" / OWNER).unlink()
    with pytest.raises(RefusedError, match="--adopt-output"):
        start(tmp_path)
    start(tmp_path, adopt=True)
    start(tmp_path)


def test_another_partitioning_is_refused(tmp_path: Path) -> None:
    """Spark could not read an output with two ways of partitioning."""
    start(tmp_path)
    with pytest.raises(RefusedError, match="partitioned by nothing"):
        claim(lake(tmp_path / "checkpoint"), lake(tmp_path / "out"), ("queue",))


@pytest.mark.parametrize("name", ["checkpoint/metadata", f"out/{OWNER}", f"checkpoint/{OUTPUT}"])
def test_a_damaged_bond_is_refused(tmp_path: Path, name: str) -> None:
    """A damaged bond is not treated as a missing one."""
    start(tmp_path)
    (tmp_path / name).write_bytes(b"")
    with pytest.raises(RefusedError, match="is damaged"):
        start(tmp_path)


def test_a_lost_id_of_the_query_can_be_restored(tmp_path: Path) -> None:
    """Spark would generate a new query id; the refusal names the one to restore."""
    bond = start(tmp_path)
    content = (tmp_path / "checkpoint/metadata").read_bytes()
    (tmp_path / "checkpoint/metadata").unlink()
    with pytest.raises(RefusedError, match=f"metadata is missing: restore it .*{bond.query}"):
        start(tmp_path)
    (tmp_path / "checkpoint/metadata").write_bytes(content)
    assert start(tmp_path) == bond


def test_a_name_of_the_checkpoints_path_excuses_no_foreign_file(tmp_path: Path) -> None:
    """Only a checkpoint that is inside the output is excluded from the check for foreign files."""
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / tmp_path.parts[1]).touch()
    with pytest.raises(RefusedError, match="written with another checkpoint"):
        start(tmp_path)


def test_a_start_that_fails_at_the_services_claims_nothing(tmp_path: Path) -> None:
    """A wrong token or address is found before: the next start may use another output with the same checkpoint."""
    checkpoint = lake(tmp_path / "checkpoint")

    def check() -> None:
        raise RefusedError("missing or invalid bearer token")

    with pytest.raises(RefusedError, match="token"):
        claim(checkpoint, lake(tmp_path / "misspelt"), check=check)
    assert claim(checkpoint, lake(tmp_path / "out")).query == query_of(checkpoint)
