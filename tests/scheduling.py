"""How a run that is spread over several processes hands out the tests: file by file, with two exceptions.

Files that use the Spark session share one process, so one virtual machine starts instead of one in each process. Long
files whose tests share nothing are handed out test by test, so that no process is still busy when all others are done;
but the histories of one family (`faults.histories`) together, because many of their disks are the same.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

from xdist.scheduler import LoadFileScheduling  # type: ignore[import-untyped]  # it has none

SPARK = Path(__file__).parent / "spark"
JAVA = "java"
"""The scope of all tests in files that use the session."""


class Scheduling(LoadFileScheduling):  # type: ignore[misc]  # it has no types
    """Hands out whole files, all files that use the Spark session together, and some files in parts."""

    def __init__(self, config: Any, log: Any, apart: Collection[str]) -> None:
        super().__init__(config, log)
        self._apart = apart
        self._java = {path.name for path in SPARK.glob("test_*.py") if uses_session(path.read_text())}

    def _split_scope(self, nodeid: str) -> str:
        """Return what must run in the same process as the test *nodeid*."""
        file = nodeid.partition("::")[0]
        if file in self._apart:
            return nodeid.partition(",")[0].removesuffix("]")
        return JAVA if Path(file).parent.name == SPARK.name and Path(file).name in self._java else file


def uses_session(source: str) -> bool:
    """Return whether a test file takes the fixture `spark`."""
    return "spark: SparkSession" in source
