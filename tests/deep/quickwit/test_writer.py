"""The writer rolls and removes files as the crate does, and any history is read as it was written."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from mrecordlog_async.quickwit.files import Directory
from mrecordlog_async.quickwit.frame import BLOCK_BYTES
from mrecordlog_async.quickwit.reader import read
from mrecordlog_async.quickwit.writer import CrateWriter
from tests.quickwit.memory import Memory, delete_queue, retained

Kept = dict[str, list[tuple[int, bytes]]]
Seen = dict[str, tuple[int, int, list[tuple[int, bytes]]]]

QUEUES = st.sampled_from(["", "a", "b", "é"])
PAYLOADS = st.one_of(st.binary(max_size=20), st.integers(0, 3 * BLOCK_BYTES).map(lambda size: b"x" * size))
CALLS = st.one_of(
    st.tuples(st.just("create"), QUEUES),
    st.tuples(st.just("append"), QUEUES, st.lists(PAYLOADS, max_size=3), st.integers(0, 3)),
    st.tuples(st.just("truncate"), QUEUES, st.integers(0, 30)),
    st.tuples(st.just("delete"), QUEUES),
)


def seen(source: Directory) -> Seen:
    records = retained(source)
    return {
        name: (queue.first_position, queue.next_position, records[name])
        for name, queue in read(source).state.queues.items()
    }


def do(writer: CrateWriter, call: tuple[object, ...], kept: Kept) -> None:
    """Make *call*, if its queue allows it, and change *kept* as the crate changes its memory."""
    verb, queue, *arguments = call
    assert isinstance(queue, str)
    if verb == "create":
        if queue not in writer.state.queues:
            writer.create_queue(queue)
            kept[queue] = []
    elif queue not in writer.state.queues:
        return
    elif verb == "append":
        payloads, gap = arguments
        assert isinstance(payloads, list) and isinstance(gap, int)
        last = writer.append(queue, writer.state.queues[queue].next_position + gap if gap else None, payloads)
        if last is not None:
            kept[queue] += enumerate(payloads, last + 1 - len(payloads))
    elif verb == "truncate":
        (position,) = arguments
        assert isinstance(position, int)
        left = [record for record in kept[queue] if record[0] > position]
        assert writer.truncate(queue, position) == len(kept[queue]) - len(left)
        kept[queue] = left
    else:
        delete_queue(writer, queue)
        del kept[queue]


@settings(max_examples=60, deadline=None)
@given(st.lists(CALLS, max_size=30), st.integers(1, 4))
def test_what_was_written_is_read_back(calls: list[tuple[object, ...]], blocks: int) -> None:
    """After any history of calls, with files of any size, the reader shows the writer's state and has no findings."""
    files = Memory()
    writer = CrateWriter(files, file_bytes=blocks * BLOCK_BYTES)
    kept: Kept = {}
    for call in calls:
        do(writer, call, kept)
    assert seen(files) == {
        name: (queue.first_position, queue.next_position, kept[name]) for name, queue in writer.state.queues.items()
    }
    assert read(files).findings == []


def test_files_go_when_no_record_counts_for_them() -> None:
    """Truncating removes the lowest files, after writing the positions of the empty queues."""
    files = Memory()
    writer = CrateWriter(files, file_bytes=BLOCK_BYTES)
    writer.create_queue("idle")
    writer.truncate("idle", 41)
    writer.create_queue("q")
    for _ in range(10):
        writer.append("q", None, [bytes(20_000)])
    assert len(files.numbers) > 4
    writer.truncate("q", 8)
    assert len(files.numbers) <= 2
    assert {name: queue.next_position for name, queue in read(files).state.queues.items()} == {"idle": 42, "q": 10}


def test_a_record_that_spans_two_files_counts_for_the_first() -> None:
    """The file in which its frames begin is kept as long as the record."""
    files = Memory()
    writer = CrateWriter(files, file_bytes=BLOCK_BYTES)
    writer.create_queue("q")
    writer.append("q", None, [bytes(40_000)])
    assert writer.state.first_file() == read(files).state.first_file() == 0
