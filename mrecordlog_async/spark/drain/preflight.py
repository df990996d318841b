"""A drain's settings, and what it refuses to start: truncating cannot be undone.

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

import json
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mrecordlog_async.spark.checkpoints.hadoop_lake import HadoopLake
from mrecordlog_async.spark.checkpoints.identity import RefusedError
from mrecordlog_async.spark.checkpoints.lake import OWN, Lake, LockedError
from mrecordlog_async.spark.checkpoints.local_lake import LOCK_SECONDS, LocalLake
from mrecordlog_async.spark.settings.checkpoint import Offset
from mrecordlog_async.spark.settings.option_values import OptionError
from mrecordlog_async.spark.settings.options import TARGET_FILE_BYTES, Options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


PARTITIONS = ("server", "queue", "date")
"""What the table can be partitioned by.

date: the day, in UTC, on which a record was stored. It stays the same when a batch runs again.
"""


@dataclass(frozen=True, slots=True)
class DrainJob:
    """What to drain, and where to.

    Attributes:
        servers: as the option `servers`: name=url, separated by commas.
        output: the Delta table: a directory of this machine, or s3://…, gs://…, az://….
        checkpoint: directory of the checkpoint; belongs to the table.
        every_seconds: the shortest time between two batches; None to stop when the job has caught up.
        truncate: whether the logs are truncated up to what is stored.
        consumer: acknowledge what is stored as this consumer, instead of truncating; others may share the queues.
        take_over: take the consumer over from another query, or move it back to where the checkpoint stands.
        metrics: address at which Prometheus finds `/metrics` of the drain: HOST:PORT, or PORT for this machine alone.
        partition_by: columns of `PARTITIONS`.
        shared_paths: every machine mounts the file system of output and checkpoint at the same path (NFS, say); on a
            cluster, local paths are refused without it.
        accept_went_back: reread everything from a log that went back, though the output has some of it already.
        target_file_bytes: size at which a file of the table is closed.
        schema: columns from JSON payloads, as Spark's DDL.
        payload: whether payloads are stored; False needs *schema*, and keeps in `_rest` what no column holds.
        storage_options: what the object store of the table needs: keys, region, endpoint.
        options: further options of the data source.
    """

    servers: str
    output: str
    checkpoint: str
    every_seconds: float | None = None
    truncate: bool = True
    consumer: str | None = None
    take_over: bool = False
    metrics: str | None = None
    partition_by: tuple[str, ...] = ()
    shared_paths: bool = False
    accept_went_back: bool = False
    target_file_bytes: int = TARGET_FILE_BYTES
    schema: str | None = None
    payload: bool = True
    storage_options: Mapping[str, str] = field(default_factory=dict, repr=False)
    options: Mapping[str, str] = field(default_factory=dict, repr=False)  # with the tokens

    def source_options(self, shared_marker: str | None = None, again: Offset | None = None) -> dict[str, str]:
        """Return the options of the data source, without those of `release_options`.

        Args:
            shared_marker: file that every task must see.
            again: the positions of queues that went back and are reread; any other that is found to have gone back
                by its mark fails the query, whatever `options` allow.
        """
        found = {"servers": self.servers, "truncate": "false", "readAgain": json.dumps(again or {})}
        found["failOnServerDown"] = "atEnd"  # no watermark that an outage could let pass: the other servers go on
        found |= self.options
        if self.accept_went_back:
            found["acceptWentBack"] = "true"
        if shared_marker is not None:
            found["sharedMarker"] = shared_marker
        return found

    def release_options(self, query: str) -> dict[str, str]:
        """Return the options with which the data source itself releases what is stored. query: the query's id."""
        if self.consumer is None:
            return {"truncate": str(self.truncate).lower()}
        return {"consumer": self.consumer, "consumerOwner": query, "takeOver": str(self.take_over).lower()}


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


class LakeFiles:
    """The file systems that output and checkpoint are on, as Spark sees them."""

    def __init__(self, session: SparkSession) -> None:
        self._session = session
        self._context: Any = session.sparkContext  # py4j has no types

    def is_local(self, path: str) -> bool:
        """Return whether *path* is on a disk of this machine."""
        files, _ = self._at(path)
        return str(files.getUri().getScheme()) == "file"

    def full_path(self, path: str) -> str:
        """Return the path of the directory that `open` opens; nothing is created."""
        files, at = self._at(path)
        address = files.makeQualified(at)
        return str(address.toUri().getPath() if self.is_local(path) else address.toString())

    def open(self, path: str) -> Lake:
        """Open the directory *path*; a local one is created if it is missing."""
        full = self.full_path(path)
        return LocalLake(full) if self.is_local(path) else HadoopLake(self._session, full)

    @contextmanager
    def locked(self, lakes: list[Lake]) -> Iterator[None]:
        """Hold the locks of *lakes*; raise RefusedError if another drain holds one.

        Java has its own lock: it writes the batches, and may run a moment longer than a driver that was killed.
        """
        with ExitStack() as held:
            for lake in {lake.path: lake for lake in lakes if isinstance(lake, LocalLake)}.values():
                try:
                    lake.lock()
                except LockedError as error:
                    raise RefusedError(f"another drain uses {lake.path} ({error}); stop it first") from None
                held.callback(self._lock_in_java(f"{lake.path}/{OWN}/lock-java").close)
            yield

    def _lock_in_java(self, path: str) -> Any:
        java = self._context._jvm.java
        file = java.io.RandomAccessFile(path, "rw")
        deadline = time.monotonic() + LOCK_SECONDS
        while file.getChannel().tryLock() is None:
            if time.monotonic() >= deadline:
                file.close()
                raise RefusedError(
                    f"the Java process of another drain still writes to {path.removesuffix(f'/{OWN}/lock-java')}; it "
                    "ends soon after its driver: start again in a few seconds"
                )
            time.sleep(0.1)
        return file

    def _at(self, path: str) -> tuple[Any, Any]:
        at = self._context._jvm.org.apache.hadoop.fs.Path(path)
        return at.getFileSystem(self._context._jsc.hadoopConfiguration()), at
