"""The names of the package: `from mrecordlog_async import NAME`."""

from importlib.metadata import version

from mrecordlog_async.engine.consumer import Consumer
from mrecordlog_async.engine.intake.controls import Attached
from mrecordlog_async.engine.readers.tail import Tail
from mrecordlog_async.errors import (
    ConsumerBehindError,
    ConsumerExistsError,
    ConsumerFencedError,
    ConsumerHeldError,
    ConsumerNameError,
    ConsumerNotFoundError,
    ConsumerOwnedError,
    CorruptionError,
    LogClosedError,
    LogFailedError,
    LogFullError,
    LogLockedError,
    PositionAheadError,
    PositionInPastError,
    PositionTruncatedError,
    QueueExistsError,
    QueueNameError,
    QueueNotFoundError,
    QueueOptionsError,
    QueueSealedError,
    RecordLogError,
    RecordsOnDiskError,
    RecordTooLargeError,
    RecordTruncatedError,
)
from mrecordlog_async.log import MultiRecordLog, OpeningLog
from mrecordlog_async.metrics import Counters, Histogram, SegmentPin, WorkerCounts
from mrecordlog_async.model import (
    Batch,
    ConsumerSummary,
    LastEnd,
    LogState,
    QueueSummary,
    Record,
    RecoveryProgress,
    RecoveryReport,
    ResourceUsage,
    Run,
)
from mrecordlog_async.options import Limits, PersistAction, PersistPolicy, QueueOptions
from mrecordlog_async.readonly import ReadOnlyLog
from mrecordlog_async.record_log import Payload, RecordBatches, RecordConsumer, RecordLog
from mrecordlog_async.storage.filesystem import FileSystem

__all__ = [
    "Attached",
    "Batch",
    "Consumer",
    "ConsumerBehindError",
    "ConsumerExistsError",
    "ConsumerFencedError",
    "ConsumerHeldError",
    "ConsumerNameError",
    "ConsumerNotFoundError",
    "ConsumerOwnedError",
    "ConsumerSummary",
    "CorruptionError",
    "Counters",
    "FileSystem",
    "Histogram",
    "LastEnd",
    "Limits",
    "LogClosedError",
    "LogFailedError",
    "LogFullError",
    "LogLockedError",
    "LogState",
    "MultiRecordLog",
    "OpeningLog",
    "Payload",
    "PersistAction",
    "PersistPolicy",
    "PositionAheadError",
    "PositionInPastError",
    "PositionTruncatedError",
    "QueueExistsError",
    "QueueNameError",
    "QueueNotFoundError",
    "QueueOptions",
    "QueueOptionsError",
    "QueueSealedError",
    "QueueSummary",
    "ReadOnlyLog",
    "Record",
    "RecordBatches",
    "RecordConsumer",
    "RecordLog",
    "RecordLogError",
    "RecordTooLargeError",
    "RecordTruncatedError",
    "RecordsOnDiskError",
    "RecoveryProgress",
    "RecoveryReport",
    "ResourceUsage",
    "Run",
    "SegmentPin",
    "Tail",
    "WorkerCounts",
    "__version__",
]

__version__ = version("mrecordlog_async")
