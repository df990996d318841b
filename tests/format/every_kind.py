"""Log records of every kind, and options with every value, for tests that try all: a new one is written here once."""

from __future__ import annotations

import hypothesis.strategies as st

from mrecordlog_async.format.controls import (
    ConsumerDelete,
    ConsumerRule,
    ConsumerState,
    Create,
    Delete,
    Opened,
    SetConsumer,
    Truncate,
)
from mrecordlog_async.format.record import Append, LogRecord, Many
from mrecordlog_async.format.stored_options import KEEP_UNTIL_ACKNOWLEDGED, SetOptions, StoredOptions, shared
from mrecordlog_async.model import POSITION_MAX, Run

ids = st.integers(0, 2**63)
names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=50)
runs = st.builds(Run.of, st.integers(0, 2**40), st.lists(st.binary(max_size=50), min_size=1, max_size=20))
states = st.builds(ConsumerState, st.integers(0, POSITION_MAX + 1), ids, st.binary(min_size=16, max_size=16))
options = st.builds(StoredOptions, st.integers(0, 7), *[ids] * len(StoredOptions._fields[1:]))


@st.composite
def manies(draw: st.DrawFn) -> Many:
    """Make single records of a few queues."""
    places = draw(
        st.lists(st.tuples(ids, st.integers(0, POSITION_MAX), st.binary(max_size=50)), min_size=1, max_size=20)
    )
    queues, positions, payloads = zip(*places, strict=True)
    return Many.of(queues, positions, payloads)


RECORDS: dict[type[LogRecord], st.SearchStrategy[LogRecord]] = {
    Create: st.builds(Create, ids, names),
    Delete: st.builds(Delete, ids),
    Append: st.builds(Append, ids, runs, st.booleans()),
    Truncate: st.builds(Truncate, ids, st.integers(0, POSITION_MAX)),
    Many: manies(),
    SetConsumer: st.builds(SetConsumer, ids, names, states),
    ConsumerDelete: st.builds(ConsumerDelete, ids, names),
    SetOptions: st.builds(SetOptions, ids, options),
    ConsumerRule: st.builds(ConsumerRule, names, names, st.booleans()),
    Opened: st.builds(Opened, ids, ids),
}

records = st.one_of(*RECORDS.values())

EVERY_OPTION = shared(StoredOptions(KEEP_UNTIL_ACKNOWLEDGED, 5, 6, keep_at_least_ns=8))
"""Options of a queue, from every part of their bytes."""

EXAMPLES: list[LogRecord] = [
    Create(7, "name"),
    Truncate(5, 8),
    Append(5, Run.of(9, [b"one", b"", b"three"])),
    Append(1, Run.of(0, [b"x" * 100])),
    Append(1, Run.of(1, [b"y"]), continues=True),
    Many.of([1, 5, 1], [2, 12, 3], [b"one", b"", b"two"]),
    SetConsumer(5, "c", ConsumerState(4, 1, bytes(16))),
    SetOptions(5, EVERY_OPTION),
    ConsumerDelete(1, "c"),
    ConsumerRule("*", "c", removes=False),
    Opened(9, 2),
    Delete(5),
]
"""Log records of every kind. In this order, they fit a log with the queues 1, which has a consumer "c", and 5."""
