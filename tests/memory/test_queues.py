"""All queues: how records of every kind change them, and the table that the next segment begins with."""

from __future__ import annotations

import pytest

from mrecordlog_async.format.controls import (
    ConsumerDelete,
    ConsumerRule,
    ConsumerState,
    Create,
    Delete,
    Opened,
    SetConsumer,
    TableRule,
    Truncate,
)
from mrecordlog_async.format.record import Append, LogRecord, Many
from mrecordlog_async.format.stored_options import PLAIN, SEALED, SetOptions, StoredOptions
from mrecordlog_async.format.table import OPENINGS_MAX, TABLE_HEADER_BYTES, Table, decode_table, encode_table
from mrecordlog_async.memory.queue import ReplayError
from mrecordlog_async.memory.queues import Queues
from mrecordlog_async.memory.runs import checksum_of
from mrecordlog_async.model import Run
from tests.format.every_kind import EVERY_OPTION

OWNER = b"o" * 16


def queues_after(*records: LogRecord) -> Queues:
    """Return the queues "q" (1), which holds positions 0 and 1, and "r" (2), which is empty, after *records*."""
    queues = Queues(1)
    queues.apply_all(0, [Create(1, "q"), Create(2, "r"), Append(1, Run.of(0, [b"a", b"b"]))])
    queues.apply_all(0, records)
    return queues


def stands_at(queues: Queues, name: str) -> dict[str, int]:
    """Return the positions of a queue's consumers."""
    queue = queues.get(name)
    assert queue is not None
    return {consumer: state.position for consumer, state in queue.consumer_states()}


def test_single_records_of_many_queues_are_appended_in_order() -> None:
    """A MANY appends to each queue that it names, as often as it names it, and is each one's last append."""
    queues = queues_after(Many.of([2, 1, 2], [0, 2, 1], [b"x", b"c", b"y"]))
    q, r = queues.get("q"), queues.get("r")
    assert q is not None and r is not None
    assert [record.payload for run in q.runs(None, None) for record in run.records()] == [b"a", b"b", b"c"]
    assert [record.payload for run in r.runs(None, None) for record in run.records()] == [b"x", b"y"]
    assert q.last_append() == (2, checksum_of([Run.of(0, [b"c"])]))
    assert r.last_append() == (1, checksum_of([Run.of(0, [b"y"])]))


def test_what_a_batch_adds_is_counted_for_every_kind_of_append() -> None:
    """Records and bytes of a MANY count like those of runs; only truncates and deletes report what they dropped."""
    queues = queues_after()
    many = Many.of([2, 1], [0, 2], [b"xx", b"c"])
    rule = ConsumerRule("*", "c", removes=False)
    applied = queues.apply_all(0, [many, Truncate(1, 1), Create(3, "s"), rule, Append(2, Run.of(1, [b"y"])), Delete(2)])
    assert applied == (3, 4, [2, 2])


@pytest.mark.parametrize("places", [([3], [0]), ([1], [1]), ([1, 1], [2, 2])], ids=["unknown", "taken", "twice"])
def test_a_many_that_does_not_fit_is_refused(places: tuple[list[int], list[int]]) -> None:
    """Each of its records must be at the end of a queue that exists, in turn."""
    with pytest.raises(ReplayError):
        queues_after(Many.of(*places, [b""] * len(places[0])))


def test_a_long_append_is_one_whatever_the_number_of_its_runs() -> None:
    """Runs that continue an append are part of it, so a repeat of the call is compared with all of it."""
    queues = queues_after(Append(2, Run.of(0, [b"x"])), Append(2, Run.of(1, [b"y", b"z"]), continues=True))
    other = queues_after(Append(2, Run.of(0, [b"x", b"y"])), Append(2, Run.of(2, [b"z"]), continues=True))
    apart = queues_after(Append(2, Run.of(0, [b"x"])), Append(2, Run.of(1, [b"y", b"z"])))
    assert queues.table() == other.table() != apart.table()


@pytest.mark.parametrize(
    "records",
    [
        [Append(2, Run.of(0, [b"x"]), continues=True)],
        [Append(1, Run.of(3, [b"x"]), continues=True)],
        [Truncate(1, 0), Append(1, Run.of(2, [b"x"]), continues=True)],
        [Truncate(1, 4), Append(1, Run.of(5, [b"x"]), continues=True)],
    ],
    ids=["of nothing", "after a gap", "half truncated", "truncated past its end"],
)
def test_what_continues_no_append_is_refused(records: list[LogRecord]) -> None:
    """A run continues an append only if that ends where the run begins and all of it is retained."""
    with pytest.raises(ReplayError, match="continues an append"):
        queues_after(*records)


def test_a_consumer_is_created_moved_and_deleted() -> None:
    """The newest CONSUMER says where a consumer stands, until it or its queue is deleted."""
    queues = queues_after(
        SetConsumer(1, "c", ConsumerState(0, 5, OWNER)), SetConsumer(1, "c", ConsumerState(2, 6, OWNER))
    )
    assert stands_at(queues, "q") == {"c": 2}
    assert stands_at(queues, "r") == {}
    with_consumer = queues.table_bytes
    queues.apply_all(0, [ConsumerDelete(1, "c")])
    assert stands_at(queues, "q") == {}
    assert queues.table_bytes < with_consumer


def test_a_truncate_moves_the_consumers_that_it_passes() -> None:
    """A consumer never stands where records are removed; one that is further on stays there."""
    queues = queues_after(
        SetConsumer(1, "slow", ConsumerState(0, 1, OWNER)),
        SetConsumer(1, "fast", ConsumerState(2, 1, OWNER)),
        Truncate(1, 0),
    )
    assert stands_at(queues, "q") == {"slow": 1, "fast": 2}
    queues.apply_all(0, [Truncate(1, 9)])
    assert stands_at(queues, "q") == {"slow": 10, "fast": 10}


def test_default_options_are_none() -> None:
    """Options that say nothing take no space, so a queue that was configured and reset is a plain one again."""
    values = StoredOptions(SEALED, 1, 2, 3)
    queues = queues_after(SetOptions(1, values), SetOptions(2, values), SetOptions(2, StoredOptions()))
    assert [queue.options for queue in queues] == [values, PLAIN]


def test_openings_are_remembered_up_to_a_number() -> None:
    """The table keeps the newest openings only, so it does not grow with every restart."""
    queues = queues_after(*[Opened(nonce, nonce + 1) for nonce in range(OPENINGS_MAX + 3)])
    assert queues.openings[0] == Opened(3, 4)
    assert queues.openings[-1] == Opened(OPENINGS_MAX + 2, OPENINGS_MAX + 3)
    assert len(b"".join(encode_table(queues.table()))) <= queues.table_bytes


@pytest.mark.parametrize(
    "record",
    [
        SetConsumer(3, "c", ConsumerState(0, 1, OWNER)),
        SetConsumer(1, "c", ConsumerState(3, 1, OWNER)),
        ConsumerDelete(1, "d"),
        ConsumerDelete(2, "c"),
        SetOptions(3, StoredOptions()),
        ConsumerRule("*", "c", removes=False),
        ConsumerRule("*", "d", removes=True),
        Opened(2, 5),
        Opened(2, 4),
    ],
)
def test_a_setting_that_does_not_fit_is_refused(record: LogRecord) -> None:
    """What names an unknown queue, consumer or rule, adds a rule twice or opens the log in the past is damage."""
    before: list[LogRecord] = [
        SetConsumer(1, "c", ConsumerState(0, 1, OWNER)),
        ConsumerRule("*", "c", removes=False),
        Opened(1, 5),
    ]
    with pytest.raises(ReplayError):
        queues_after(*before, record)


def test_the_table_holds_all_of_it_and_gives_it_back() -> None:
    """Queues that start from a table go on as those that wrote it would, down to the size of the next table."""
    queues = queues_after(
        Many.of([2], [7], [b"x"]),
        SetConsumer(1, "b", ConsumerState(1, 5, OWNER)),
        SetConsumer(1, "a", ConsumerState(2, 5, OWNER)),
        SetOptions(2, EVERY_OPTION),
        ConsumerRule("r*", "c", removes=False),
        ConsumerRule("*", "c", removes=False),
        ConsumerRule("q", "c", removes=False),
        ConsumerRule("q", "c", removes=True),
        Opened(1, 3),
        Truncate(1, 0),
    )
    table = queues.table()
    assert [consumer.name for consumer in table.entries[0].consumers] == ["a", "b"]
    assert (table.entries[1].began, table.entries[1].first_position) == (7, 7)
    assert table.rules == (TableRule("*", "c"), TableRule("r*", "c"))
    again = Queues.from_table(decode_table(b"".join(encode_table(table))))
    assert again.table() == table
    assert counts(again) == counts(queues)
    more: list[LogRecord] = [
        Truncate(1, 4),
        Truncate(2, 7),
        ConsumerDelete(1, "a"),
        Delete(2),
        ConsumerRule("*", "c", removes=True),
    ]
    for changed in (queues, again):
        changed.apply_all(1, more)
    assert again.table() == queues.table()
    assert counts(again) == counts(queues)


def counts(queues: Queues) -> tuple[int, int, set[str], set[int]]:
    """Return the sums and sets that follow from what is set for queues."""
    return queues.table_bytes, queues.overhead_bytes, queues.limited, queues.newly_aging


def test_options_count_for_as_long_as_they_are_set() -> None:
    """A queue is limited, and its records age, until its options are reset or it ends. The table has room for them."""
    plain, found = queues_after(), queues_after(SetOptions(1, EVERY_OPTION))
    assert counts(found) == (plain.table_bytes, plain.overhead_bytes, {"q"}, {1})
    found.apply_all(0, [SetOptions(1, StoredOptions())])
    assert counts(found) == counts(plain)
    found.apply_all(0, [SetOptions(1, EVERY_OPTION), Delete(1)])
    plain.apply_all(0, [Delete(1)])
    assert counts(found) == counts(plain)


def test_the_digest_of_the_last_append_survives_its_segment() -> None:
    """Queues that start from a table know the last append of each queue without having seen its records."""
    queues = queues_after(Truncate(1, 0))
    q = queues.get("q")
    assert q is not None
    again = Queues.from_table(queues.table()).get("q")
    assert again is not None
    assert again.last_append() == q.last_append() is not None
    for queue in (q, again):
        queue.truncate(1)
    assert again.last_append() == q.last_append() is not None
    for queue in (q, again):
        queue.truncate(5)
    assert again.last_append() is q.last_append() is None


def test_an_empty_log_has_a_table_of_its_header_alone() -> None:
    """The size of the table starts at what is always there."""
    assert Queues(1).table() == Table(1, ())
    assert Queues(1).table_bytes == len(b"".join(encode_table(Table(1, ())))) == TABLE_HEADER_BYTES


def test_a_table_is_made_in_pieces() -> None:
    """Between two of them the log's thread lets the event loop run: a piece takes a millisecond or two."""
    queues = Queues(1)
    for queue_id in range(1, 2_502):
        queues.apply(0, Create(queue_id, str(queue_id)))
    pauses: list[None] = []
    encoded = queues.encoded_table(lambda: pauses.append(None))
    assert len(pauses) == 3
    table = queues.table()
    assert [entry.id for entry in table.entries] == [*range(1, 2_502)]
    assert encoded == encode_table(table)
    assert decode_table(encoded[0]) == table
