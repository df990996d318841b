"""What a drain refuses to start, because truncating is final.

| would lose data | what is done |
|---|---|
| a new checkpoint over an old output: Spark skips batches 0 … as "already committed", the log is truncated | refused |
| a checkpoint whose output is gone | refused |
| power loss on a local disk: Spark never calls fsync | syncfs of output and checkpoint before every truncate |
| local paths on several machines: each has only its part | refused |
| the same with `shared_paths`: a machine without the mount | its tasks fail (see `shared`) |
| a queue deleted and made anew while the job was down | the query fails, unless data loss is allowed |

Checkpoint and output belong together: keep, move and delete both or none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mrecordlog_async.errors import RecordLogError
from mrecordlog_async.spark.options import OptionError, Options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class RefusedError(RecordLogError):
    """The job would lose data, or may; nothing was started."""


@dataclass(frozen=True, slots=True)
class DrainJob:
    """What to drain and where to.

    every_seconds: None to stop when the job has caught up. shared_paths: output and checkpoint are on a file system
    that every machine mounts at this path (NFS, say); on a cluster local paths are refused without it.
    """

    servers: str
    output: str
    checkpoint: str
    every_seconds: float | None = None
    format: str = "parquet"
    truncate: bool = True
    partition_by: tuple[str, ...] = ()
    shared_paths: bool = False
    options: Mapping[str, str] = field(default_factory=dict)

    def source_options(self, sync_directories: Sequence[str], shared_marker: str | None = None) -> dict[str, str]:
        """Return the options of the data source."""
        found = {"servers": self.servers, "truncate": str(self.truncate).lower(), **self.options}
        if self.truncate and sync_directories:
            found["syncDirs"] = ",".join(sync_directories)
        if shared_marker is not None:
            found["sharedMarker"] = shared_marker
        return found


def refuse_unsafe(job: DrainJob, exists: Callable[[str], bool], is_local: Callable[[str], bool], master: str) -> None:
    """Raise RefusedError for a job that would lose data. Without `truncate` nothing can be lost."""
    try:
        Options.parse(job.source_options(())).check_stream_read()
    except OptionError as error:
        raise RefusedError(str(error)) from None
    if not job.truncate:
        return
    on_one_machine = master.startswith("local") or job.shared_paths
    if not on_one_machine and (is_local(job.output) or is_local(job.checkpoint)):
        raise RefusedError(
            f"{job.output} and {job.checkpoint} must both be on storage that all machines share (hdfs://, s3a://, …): "
            "a local path holds only the part of each machine, and the log would be truncated behind it. If every "
            "machine mounts the same file system there, say so with --shared-paths"
        )
    if job.format != "parquet":
        return  # a table format has its own transaction log, which knows the query that wrote a batch
    has_output = exists(f"{job.output}/_spark_metadata")
    if has_output and not exists(f"{job.checkpoint}/metadata"):
        raise RefusedError(
            f"{job.output} was written with another checkpoint than {job.checkpoint}: Spark would skip the first "
            "batches as already written, and the log would be truncated behind them. Use the old checkpoint, or a new "
            "output"
        )
    if not has_output and exists(f"{job.checkpoint}/commits/0"):
        raise RefusedError(
            f"{job.checkpoint} belongs to an output that is not at {job.output}: keep, move and delete both together"
        )


class LakeFiles:
    """The file systems that output and checkpoint are on, as Spark sees them."""

    def __init__(self, session: SparkSession) -> None:
        self._context: Any = session.sparkContext

    def exists(self, path: str) -> bool:
        """Tell whether there is something at *path*."""
        files, at = self._at(path)
        return bool(files.exists(at))

    def is_local(self, path: str) -> bool:
        """Tell whether *path* is on a disk of this machine."""
        files, _ = self._at(path)
        return str(files.getUri().getScheme()) == "file"

    def make(self, path: str) -> str:
        """Make a local directory, and return its plain path."""
        files, at = self._at(path)
        files.mkdirs(at)
        return str(files.makeQualified(at).toUri().getPath())

    def _at(self, path: str) -> tuple[Any, Any]:
        at = self._context._jvm.org.apache.hadoop.fs.Path(path)
        return at.getFileSystem(self._context._jsc.hadoopConfiguration()), at
