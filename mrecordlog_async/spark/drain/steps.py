"""Steps of a drain around its query: what it refuses to start, losses, remaining records.

Truncating cannot be undone, so these are refused:

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
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace

from mrecordlog_async.servers.names import Lookup
from mrecordlog_async.spark.checkpoints import refusal
from mrecordlog_async.spark.checkpoints.batches import OFFSETS, SparkBatches, newest
from mrecordlog_async.spark.checkpoints.identity import RefusedError
from mrecordlog_async.spark.checkpoints.lake import Lake
from mrecordlog_async.spark.drain.command import JobFailedError, Report, cause_of
from mrecordlog_async.spark.drain.progress import DrainProgress
from mrecordlog_async.spark.positions import history
from mrecordlog_async.spark.services.connection import ServerDownError, ServiceRefusedError
from mrecordlog_async.spark.services.fleet import Fleet, ReopenedError
from mrecordlog_async.spark.settings.drain_job import PARTITIONS, DrainJob
from mrecordlog_async.spark.settings.offset import Offset, Positions
from mrecordlog_async.spark.settings.option_values import OptionError, WhenDown
from mrecordlog_async.spark.settings.options import Options
from mrecordlog_async.support.nearest import did_you_mean, nearest


def refuse_unsafe(job: DrainJob, *, local: bool, master: str) -> None:
    """Check the settings of a job. local: the table is on a disk of this machine. master: where Spark runs.

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


def impatient(options: Options) -> Options:
    """Limit how long the driver waits for a server: one that hangs must delay neither others nor the end."""
    return replace(options, timeout_seconds=min(options.timeout_seconds, 10.0), retries=min(options.retries, 1))


@contextmanager
def remembering(checkpoint: Lake) -> Iterator[None]:
    """Record a loss in the checkpoint, so that every later start is refused until the user accepts it."""
    from pyspark.errors import PySparkException

    try:
        yield
    except PySparkException as error:
        text = str(error)
        if not refusal.is_loss(text):
            raise
        # The data source's advice is for users who read without a drain.
        sentence = cause_of(text).partition("; to continue with")[0]
        refusal.remember(checkpoint, sentence)
        raise JobFailedError(f"{sentence}. {refusal.advice(refusal.flag_for(sentence))}") from error


def accepted(job: DrainJob) -> set[str]:
    """Return the flags of losses that the user accepts."""
    accepted = {refusal.WENT_BACK} if job.accept_went_back else set[str]()
    return accepted | ({refusal.LOSS} if job.options.get("failOnDataLoss") == "false" else set())


def refuse_missing(job: DrainJob, options: Options, fleet: Fleet, position: Positions, report: Report) -> None:
    """Raise RefusedError if a subscribed queue does not exist; a job that keeps running only reports it."""
    names = options.subscription.names
    if names is None:
        return
    there = {queue for queues in position.values() for queue in queues}
    try:
        for server in fleet.names:
            there |= {summary.queue for summary in fleet.client(server).queues()}
    except (OSError, ServerDownError, ServiceRefusedError):
        return  # the query reports it
    for name in sorted(names - there):
        near = nearest(name, there)
        sentence = f"no server has a queue {name!r}{did_you_mean(near and repr(near))}"
        if job.every_seconds is None:
            raise RefusedError(sentence)
        report(f"{sentence}; it is drained once it exists")


def refuse_unreached(options: Options, batches: SparkBatches) -> None:
    """Check the servers that no run has reached yet. Those of the checkpoint may be down: the query continues without.

    Raises:
        RefusedError: one refuses requests, because of its token, say.
        ServerDownError: one does not respond: its address may be wrong.
    """
    offset = batches.offset_at(newest(batches.checkpoint, OFFSETS)) or Offset()
    reached = set(offset.servers.values())
    new = tuple(
        each for each in options.servers if each.name not in reached and not (isinstance(each, Lookup) and reached)
    )
    if options.when_down is not WhenDown.FAIL_AT_END or not new:
        return
    with closing(Fleet(replace(options, servers=new, when_down=WhenDown.FAIL))) as fleet:
        try:
            fleet.survey()
        except ServiceRefusedError as error:
            raise RefusedError(str(error)) from None


def held_back(fleet: Fleet, batches: SparkBatches) -> dict[str, str]:
    """Return the servers whose logs are held back at the end, and why."""
    offset = batches.offset_at(newest(batches.checkpoint, OFFSETS))
    if offset is None:
        return {}
    try:
        _, standing = fleet.standing(offset)
    except (OSError, ReopenedError, ServerDownError, ServiceRefusedError):  # the query reports that
        return {}
    found = [*standing.held.values()]
    found += [history.held_back(standing.logs[log].server, evidence) for log, evidence in standing.back.items()]
    return {each.server: each.why for each in found}


def newest_position(batches: SparkBatches) -> Positions:
    """Return where the newest batch ends, committed or not; {} for a new checkpoint."""
    return batches.end(newest(batches.checkpoint, OFFSETS)) or {}


def remaining(job: DrainJob, fleet: Fleet, progress: DrainProgress) -> tuple[dict[str, int], dict[str, str]]:
    """Return how many records each server still holds, and why servers were not drained."""
    # A run that ended without a server has not drained it, even if that responds again by now.
    down = dict(progress.down) if job.every_seconds is None else {}
    try:
        found = fleet.survey()
    except ServiceRefusedError as error:  # and no other server responds
        found, down = {}, down | {error.server: str(error)}
    left = {server: sum(each.records for each in listed.queues.values()) for server, listed in found.items()}
    return left, down | fleet.down
