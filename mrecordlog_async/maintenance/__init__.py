"""Back up, check, repair and inspect the files of a log, without opening it for writing.

Every function blocks: in a coroutine, call it with `asyncio.to_thread`. None of them changes the log it is given, and
all but `repair` work while a service writes to it.

`snapshot` copies a log while it is in use, `verify` checks every byte, `salvage` reads around damage, `repair` writes
what is left as a new log, `usage` shows what each segment holds and which queue keeps it.

Inside: `scan` reads one segment past its damage, `damage` describes what cannot be read, `headers` says where each
segment must end, `new_directory` and `rebuild` make a directory that exists whole or not at all.
"""

from mrecordlog_async.maintenance.damage import Damage
from mrecordlog_async.maintenance.repair import Repair, repair
from mrecordlog_async.maintenance.salvage import Salvage, SalvagedQueue, salvage
from mrecordlog_async.maintenance.snapshot import Snapshot, snapshot
from mrecordlog_async.maintenance.usage import LiveShare, LogUsage, Pin, QueueUsage, SegmentUsage, usage
from mrecordlog_async.maintenance.verify import Verification, verify

__all__ = [
    "Damage",
    "LiveShare",
    "LogUsage",
    "Pin",
    "QueueUsage",
    "Repair",
    "Salvage",
    "SalvagedQueue",
    "SegmentUsage",
    "Snapshot",
    "Verification",
    "repair",
    "salvage",
    "snapshot",
    "usage",
    "verify",
]
