"""Read a damaged log for what it still holds: every record that can be read, and which positions cannot.

Segments are scanned around damage (`scan`) and replayed leniently (`lenient_replay`). Damage can also hide facts that
nobody can restore, and the result reports these too:

* Lost batches may have contained truncates, so a record that one of them truncated reappears in the result.
* Lost batches may have contained appends that nothing after them shows.
* A queue that nothing after the last damage names may have been deleted, and its name given to another one
  (`SalvagedQueue.maybe_gone`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain

from mrecordlog_async.format.parse import ParsedBatch
from mrecordlog_async.format.record import Append, appends_of
from mrecordlog_async.format.table import Table
from mrecordlog_async.maintenance.damage import Damage, DamagedRange
from mrecordlog_async.maintenance.headers import LogHeaders, ProgressMeter, read_headers
from mrecordlog_async.maintenance.lenient_replay import LenientReplay, SalvagedQueue
from mrecordlog_async.model import RecoveryProgress, Run
from mrecordlog_async.patterns import is_pattern
from mrecordlog_async.storage.directory import Listing, LogDirectory
from mrecordlog_async.storage.filesystem import FileSystem
from mrecordlog_async.storage.segment import segment_name


@dataclass(slots=True)
class Salvage:
    """Contents that a damaged log still has.

    Attributes:
        queues: every queue as far as it can be read, sorted by name.
        damage: every damaged place, in the order of the log.
        segments: how many segment files there are.
        torn_bytes: bytes of an unfinished batch at the end of the log.
        rules: the rules that give new queues a consumer, as (pattern, consumer), in order.
    """

    queues: list[SalvagedQueue]
    damage: list[Damage]
    segments: int
    torn_bytes: int
    rules: list[tuple[str, str]] = field(default_factory=list)


def salvage(
    directory: str | os.PathLike[str],
    *,
    on_progress: Callable[[RecoveryProgress], None] | None = None,
    filesystem: FileSystem | None = None,
) -> Salvage:
    """Read everything in the log in *directory* that damage left readable.

    Changes nothing and takes no lock, so a service may use the log meanwhile. Blocks. Keeps all live records in memory.

    Args:
        directory: the log's directory.
        on_progress: called with the bytes read so far, after each batch.
        filesystem: the disk to read from; the operating system's by default.

    Returns:
        The queues with their readable records, which positions are missing, and every damaged place.

    Raises:
        FileNotFoundError: there is no log in *directory*.
        CorruptionError: no segment is left, or none has a header that can be read.
        OSError: the disk could not be read.
    """
    return salvage_from(LogDirectory.at(directory, filesystem), on_progress)


def salvage_from(
    directory: LogDirectory,
    on_progress: Callable[[RecoveryProgress], None] | None = None,
    *,
    keeps_payloads: bool = True,
) -> Salvage:
    """See `salvage`. Without *keeps_payloads*, records are counted only: a log of any size needs little memory."""

    def read(listing: Listing) -> Salvage:
        return _salvage(directory, listing, on_progress, keeps_payloads)

    # What looks like damage may be a log that was written further, and closed, after it was listed.
    return directory.read_while_it_moves(read, lambda found: not found.damage)


def salvaged_runs(
    directory: LogDirectory,
    queues: Mapping[int, SalvagedQueue],
    on_progress: Callable[[RecoveryProgress], None] | None = None,
) -> Iterator[tuple[int, Run]]:
    """Read the log again, and yield the live runs of *queues*, by id, in the order of the log.

    A position of a queue id is assigned once, so a run that lies between the live positions of its queue is one of
    those that `salvage_from` counted. Nobody may write to the log meanwhile.
    """
    log = read_headers(directory, directory.list_log().segments)
    for _, item in _items(log, on_progress):
        for queue_id, run, _ in _appends(item):
            queue = queues.get(queue_id)
            if queue is not None and run.next_position > queue.first_position:
                yield queue_id, run.cut(queue.first_position, run.next_position)


def _salvage(
    directory: LogDirectory,
    listing: Listing,
    on_progress: Callable[[RecoveryProgress], None] | None,
    keeps_payloads: bool,
) -> Salvage:
    log = read_headers(directory, listing.segments)
    if log.numbers != list(listing.segments):
        raise directory.removed(listing.segments[0])
    replay = LenientReplay(keeps_payloads=keeps_payloads)
    torn_bytes = 0
    for name, item in _items(log, on_progress):
        if isinstance(item, Damage):
            replay.lose(item)
        elif isinstance(item, int):
            torn_bytes += item
        else:
            replay.add(name, item)
    for number in range(log.stop, listing.stop):
        replay.lose(Damage(segment_name(number), 0, 0, "the segment is missing"))
    for damage in log.damage:  # in the files that say where the log ends
        if log.was_closed:
            replay.lose(damage)
        else:
            replay.damage.append(damage)  # an outdated `CLOSED`: the log went on after it, and hides nothing
    rules = [(rule.pattern, rule.name) for rule in sorted(replay.rules) if is_pattern(rule.pattern)]
    return Salvage(replay.finish(), replay.damage, len(listing.segments), torn_bytes, rules)


Item = Table | ParsedBatch | DamagedRange | Damage | int
"""Elements of a log: the results of scans, a missing segment, and the number of torn bytes at a segment's end."""


def _items(log: LogHeaders, on_progress: Callable[[RecoveryProgress], None] | None) -> Iterator[tuple[str, Item]]:
    """Yield what all live segments hold, each item with the name of its segment."""
    present = frozenset(log.numbers)
    meter = ProgressMeter(log.total_bytes, on_progress)
    for number in range(log.oldest, log.stop):
        name = segment_name(number)
        if number not in present:
            yield name, Damage(name, 0, 0, "the segment is missing")
            continue
        scan = log.scan(number)
        for item in meter.watch(scan):
            yield name, item
        yield name, scan.torn_bytes


def _appends(item: Item) -> Iterator[Append]:
    """Yield the appends that can be read in an item."""
    records = item.records if isinstance(item, ParsedBatch | DamagedRange) else ()
    return chain.from_iterable(map(appends_of, records))
