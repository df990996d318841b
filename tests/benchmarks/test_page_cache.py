"""What a directory takes of the page cache."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.benchmarks.page_cache import cached_bytes


def test_pages_that_were_written_are_in_memory_until_they_are_dropped(tmp_path: Path) -> None:
    """A file counts with whole pages; an empty one with none."""
    (tmp_path / "empty").touch()
    path = tmp_path / "file"
    path.write_bytes(b"x" * 100_000)
    assert cached_bytes(str(tmp_path)) >= 100_000
    if not hasattr(os, "posix_fadvise"):
        pytest.skip("this system cannot be asked to drop pages")
    handle = os.open(path, os.O_RDONLY)
    os.fsync(handle)
    os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(handle)
    assert cached_bytes(str(tmp_path)) < 100_000
