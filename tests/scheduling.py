"""How a run that is spread over several processes hands out the tests: file by file, and one process has Java.

Files that use the Spark session share one process, so one virtual machine starts instead of one in each process.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from xdist.scheduler import LoadFileScheduling  # type: ignore[import-untyped]  # it has none

SPARK = Path(__file__).parent / "spark"
JAVA = "java"
"""The scope of all tests in files that use the session."""


class OneJavaScheduling(LoadFileScheduling):  # type: ignore[misc]  # it has no types
    """Hands out whole files, and all files that use the Spark session together."""

    def __init__(self, config: Any, log: Any = None) -> None:
        super().__init__(config, log)
        self._java = {path.name for path in SPARK.glob("test_*.py") if uses_session(path.read_text())}

    def _split_scope(self, nodeid: str) -> str:
        """Return what must run in the same process as the test *nodeid*."""
        file = nodeid.partition("::")[0]
        return JAVA if Path(file).parent.name == SPARK.name and Path(file).name in self._java else file


def uses_session(source: str) -> bool:
    """Return whether a test file takes the fixture `spark`."""
    return "spark: SparkSession" in source
