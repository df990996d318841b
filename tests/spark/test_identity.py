"""The id of a query in its checkpoint."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from mrecordlog_async.spark.checkpoints.identity import METADATA, RefusedError, query_of
from mrecordlog_async.spark.checkpoints.local_lake import LocalLake


@pytest.fixture
def checkpoint(tmp_path: Path) -> Iterator[LocalLake]:
    """Open a new checkpoint."""
    lake = LocalLake(str(tmp_path / "checkpoint"))
    yield lake
    lake.close()


def test_the_first_start_writes_the_id_that_spark_uses(checkpoint: LocalLake) -> None:
    """Spark takes the query id that the first start wrote; later starts find the same one."""
    query = query_of(checkpoint)
    content = checkpoint.read(METADATA)
    assert content is not None and json.loads(content) == {"id": query}
    assert query_of(checkpoint) == query


def test_a_damaged_id_is_refused(checkpoint: LocalLake) -> None:
    """A damaged id is not treated as a missing one."""
    query_of(checkpoint)
    checkpoint.write(METADATA, b"")
    with pytest.raises(RefusedError, match="is damaged"):
        query_of(checkpoint)


@pytest.mark.parametrize("directory", ["offsets", "commits"])
def test_a_lost_id_is_refused_once_there_are_batches(checkpoint: LocalLake, directory: str) -> None:
    """Spark would generate a new query id; the refusal says where the old one is, and it can be restored."""
    checkpoint.write(f"{directory}/0", b"v1\n{}")
    with pytest.raises(RefusedError, match=r"metadata is missing: restore it .*`mrecordlog lake show`"):
        query_of(checkpoint)
    checkpoint.write(METADATA, b'{"id":"x"}')
    assert query_of(checkpoint) == "x"
