"""The checkpoint that the option `checkpoint` names: read only, and checked to be that of the query.

Spark writes `metadata` when a query starts, and `offsets/N` before it plans batch N. So both are there when the data
source is called, and an offset that Spark names is in the newest file.
"""

from __future__ import annotations

import os
from typing import Any

from mrecordlog_async.spark.checkpoints.batches import COMMITS, OFFSETS, SparkBatches, newest
from mrecordlog_async.spark.checkpoints.identity import METADATA
from mrecordlog_async.spark.checkpoints.local_lake import LocalLake
from mrecordlog_async.spark.settings.option_values import OptionError


class NamedCheckpoint:
    """The checkpoint in *path*, a directory on this machine. A copy in a task opens nothing."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._opened: SparkBatches | None = None
        self._checked = False
        self._proved: dict[str, Any] | None = None

    def __reduce__(self) -> tuple[type[NamedCheckpoint], tuple[str]]:
        return NamedCheckpoint, (self.path,)

    def refuse_batches(self) -> None:
        """Check that a query that begins here has no batches yet. Raises OptionError."""
        if newest(self._batches().checkpoint, OFFSETS) >= 0:
            raise self._refused(
                "has batches, and this query has none yet: it belongs to another query, or "
                "spark.sql.streaming.triggerAvailableNowWrapper.enabled is true, which this source does not support"
            )

    def refuse_without(self, offset: dict[str, Any]) -> None:
        """Check, at the first call, that the newest batch ends at *offset*. Raises OptionError."""
        if not self._checked:
            batches = self._batches()
            if offset not in batches.ends(newest(batches.checkpoint, OFFSETS)):
                raise self._refused("has no batch that ends where this query stands: it belongs to another query")
            self._checked = True

    def has_committed(self, offset: dict[str, Any]) -> bool:
        """Return whether the newest batch with a commit file ends at *offset*."""
        if self._proved is not offset:  # while a stream waits, it is the same: nothing is read again
            batches = self._batches()
            last = newest(batches.checkpoint, COMMITS)
            if last < 0 or offset not in batches.ends(last) or not batches.is_committed(last):
                return False
            self._proved = offset
        return True

    def _batches(self) -> SparkBatches:
        if self._opened is None:
            # LocalLake creates what is missing: look first.
            if not os.path.exists(os.path.join(self.path, METADATA)):
                raise self._refused(f"has no file {METADATA}: it is not the checkpoint of a query")
            self._opened = SparkBatches(LocalLake(self.path))
        return self._opened

    def _refused(self, why: str) -> OptionError:
        return OptionError(f"checkpoint: {self.path} {why}. Set it to the checkpointLocation of this query's writer")
