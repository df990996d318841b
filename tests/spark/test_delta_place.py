"""Where a table is, and what lies inside it."""

from __future__ import annotations

from pathlib import Path

import pytest

from mrecordlog_async.spark.delta.place import TablePlace, local_path


@pytest.mark.parametrize(
    ("address", "path"),
    [
        ("/lake/a#b", "/lake/a#b"),
        ("file:///lake/a#b", "/lake/a#b"),
        ("file:///lake/a?b", "/lake/a?b"),
        ("file:/lake/a%20b", "/lake/a b"),
        ("file://localhost/lake/a", "/lake/a"),
        ("s3://lake/a", None),
    ],
)
def test_a_path_is_taken_as_it_is(address: str, path: str | None) -> None:
    """A # or ? does not cut it, which would put the table somewhere else."""
    assert local_path(address) == path


def test_what_is_inside_a_table_is_known_through_links(tmp_path: Path) -> None:
    """A vacuum deletes what lies there, by whatever path the drain reaches it."""
    (tmp_path / "real" / "table").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    for one, other in (("real", "link"), ("link", "real"), ("real", "real")):
        place = TablePlace(str(tmp_path / one / "table"))
        assert place.holds(str(tmp_path / other / "table" / "checkpoint"))
        assert place.holds(f"file://{tmp_path / other / 'table'}")
        assert not place.holds(str(tmp_path / other / "table.checkpoint"))
        assert not place.holds(str(tmp_path / other)) and not place.holds("s3://lake/table")


def test_what_is_inside_a_table_of_an_object_store_is_known() -> None:
    """Hadoop's name for the store is another one than delta-rs'."""
    for address in ("s3://lake/a/table", "s3a://lake/a/table/"):
        assert TablePlace(address).holds("s3a://lake/a/table/checkpoint") and TablePlace(address).holds(
            "s3://lake/a/table"
        )
        assert not TablePlace(address).holds("s3a://lake/a/table.checkpoint")
        assert not TablePlace(address).holds("/lake/a/table/checkpoint")
