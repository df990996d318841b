"""Replay: each segment's table must be what the segment before it left."""

from __future__ import annotations

import pytest

from mrecordlog_async import CorruptionError
from mrecordlog_async.format.controls import ConsumerState, Opened, TableConsumer, TableRule
from mrecordlog_async.format.parse import ParsedBatch
from mrecordlog_async.format.record import Append, Commit
from mrecordlog_async.format.table import LastAppendDigest, Table, TableEntry
from mrecordlog_async.memory.runs import checksum_of
from mrecordlog_async.model import Run
from mrecordlog_async.recovery.recovered import Counts
from mrecordlog_async.recovery.replay import Replay
from tests.format.every_kind import EVERY_OPTION

BEGUN = Table(8, (TableEntry(7, "q", 2, 5),))
LEFT = Table(8, (TableEntry(7, "q", 2, 6, last_append=LastAppendDigest(5, checksum_of([Run.of(5, [b"a"])]))),))


def replayed() -> Replay:
    """Replay a segment that appends a record to the only queue."""
    replay = Replay(Counts())
    replay.begin("first", BEGUN)
    replay.add("first", 0, ParsedBatch([Append(7, Run.of(5, [b"a"]))], Commit(bytes(16), 0, 1, 0, 0, 0, 0), 500))
    return replay


def test_the_next_table_is_what_was_left() -> None:
    """Replay continues if the next table matches the state reached so far."""
    replayed().begin("second", LEFT)


@pytest.mark.parametrize(
    "table",
    [
        BEGUN,
        Table(9, LEFT.entries),
        Table(8, ()),
        Table(8, (LEFT.entries[0]._replace(name="p"),)),
        Table(8, (LEFT.entries[0]._replace(id=6),)),
        Table(8, (LEFT.entries[0]._replace(first_position=3),)),
        Table(8, (LEFT.entries[0]._replace(last_append=None),)),
        Table(8, (LEFT.entries[0]._replace(last_append=LastAppendDigest(5, 0)),)),
        Table(8, (LEFT.entries[0]._replace(began=2),)),
        Table(8, (LEFT.entries[0]._replace(options=EVERY_OPTION),)),
        Table(8, (LEFT.entries[0]._replace(consumers=(TableConsumer("c", ConsumerState(2, 1, bytes(16))),)),)),
        Table(8, LEFT.entries, (TableRule("*", "c"),)),
        Table(8, LEFT.entries, (), (Opened(1, 1),)),
        Table(8, (*LEFT.entries, TableEntry(8, "r", 0, 0))),
    ],
)
def test_any_other_table_is_damage(table: Table) -> None:
    """An id, a name, a position, a setting or a queue more or less: a segment was lost or exchanged in between."""
    with pytest.raises(CorruptionError, match="does not match the end of the previous segment") as refused:
        replayed().begin("second", table)
    assert refused.value.segment == "second"
