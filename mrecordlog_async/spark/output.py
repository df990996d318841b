"""What a drain stores into: rows and positions change in one commit. A Delta table is one kind (`delta_output`)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import pyarrow as pa

from mrecordlog_async.errors import RecordLogError
from mrecordlog_async.spark.state import DrainState

WrittenFile = dict[str, Any]
"""What a commit needs of a file that a task wrote, as JSON: at least `path`, `size` and `rows`."""


class OutputRefusedError(RecordLogError):
    """The output cannot take the rows of this drain; nothing that it lacks was truncated."""


class BatchFailedError(RecordLogError):
    """A batch was not stored, or it is not known whether it was: the next look at the output tells, and plans anew."""


class RowWriter(Protocol):
    """The tasks' side. Tasks get a copy."""

    @property
    def schema(self) -> pa.Schema:
        """The columns of the rows."""

    def write(self, batches: Iterable[pa.RecordBatch]) -> list[WrittenFile]:
        """Store rows as durable files that nothing names yet; return what a commit needs of them."""


class Output(Protocol):
    """The driver's side. For one thread."""

    @property
    def writer(self) -> RowWriter:
        """What tasks write with."""

    @property
    def owner(self) -> str:
        """A UUID of this drain of this output, for consumers."""

    def load(self) -> DrainState:
        """Return the positions that the output has now. Raises OutputRefusedError, BatchFailedError."""

    def commit(self, files: Sequence[WrittenFile], state: DrainState) -> DrainState:
        """Add *files* and *state* to the output, in one durable step; return the state as it is stored.

        Raises:
            OutputRefusedError: another drain has committed, or somebody changed the output.
            BatchFailedError: a file is missing, or the commit failed; it may have been carried out.
        """
