"""Refuses drains that must not start: truncating cannot be undone.

| what would lose data | what happens |
|---|---|
| a lost or older checkpoint, or another query's; an older table, or one of unknown origin | refused (`delta.start`) |
| a second job on the same table or checkpoint | refused (`delta.start`; a lock while the first one runs) |
| a power failure with local disks: Spark never calls fsync | table and checkpoint are synced before a truncate |
| local paths on several machines: each stores only its part | refused |
| the same with `shared_paths`, and a machine without the mount | its tasks fail (`shared_storage`) |
| a consumer that another query owns, or that has acknowledged what is not stored | refused (`consumer`) |
| a loss that was detected before | refused until the user accepts it (`refusal`) |

Checkpoint and table belong together: keep both or delete both.
"""

from __future__ import annotations

import uuid

from mrecordlog_async.spark.checkpoints.identity import RefusedError
from mrecordlog_async.spark.settings.drain_job import PARTITIONS, DrainJob
from mrecordlog_async.spark.settings.option_values import OptionError
from mrecordlog_async.spark.settings.options import Options


def refuse_unsafe(job: DrainJob, *, local: bool, master: str) -> None:
    """Check the settings of a job.

    Args:
        job: the job.
        local: the table is on a disk of this machine.
        master: where Spark runs.

    Raises:
        RefusedError: a setting is invalid, or the job would lose data.
    """
    _refuse_invalid(job)
    if not job.truncate:
        return
    on_one_machine = master.startswith("local") or job.shared_paths
    if local and not on_one_machine:
        raise RefusedError(
            f"{job.output} must be on storage that all machines share (s3://, gs://, az://): on a local path each "
            "machine would store only its part, and the log would be truncated. If every machine mounts the same file "
            "system there, add --shared-paths"
        )


def _refuse_invalid(job: DrainJob) -> None:
    """Raise RefusedError for options and columns that the data source or the output cannot have."""
    try:
        Options.parse({**job.source_options(), **job.release_options(str(uuid.uuid4()))}).check_stream_read()
    except OptionError as error:
        raise RefusedError(str(error)) from None
    if not set(job.partition_by) <= set(PARTITIONS) or len(set(job.partition_by)) != len(job.partition_by):
        raise RefusedError(
            f"cannot partition the table by {','.join(job.partition_by)}: choose from {', '.join(PARTITIONS)}"
        )
    _refuse_consumer(job)
    if not job.payload and not job.schema:
        raise RefusedError("--no-payload needs --schema: otherwise nothing of a record would be stored")


def _refuse_consumer(job: DrainJob) -> None:
    """Raise RefusedError for a consumer that the job cannot be."""
    if job.consumer is None:
        if job.take_over:
            raise RefusedError("--take-over takes a consumer over: name it with --consumer")
        return
    if not job.truncate:
        raise RefusedError("--consumer acknowledges what is stored, --no-truncate releases nothing: set one of them")
