"""The states that a power cut can leave: plans for one moment, from "nothing" and "everything" to seeded subsets.

What is assumed of the medium: bytes that a write does not change stay intact, those outside it and those inside it that
it repeats. All others may be old, new, or anything.

A plan has, for each file and directory, the changes since the last sync that had reached the medium. The name of a plan
says what is missing, so that a violation is easy to understand.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from itertools import groupby

from .disk import Change, DataWrite, EntryChange, Plan, SizeChange, Snapshot

PAGE_BYTES = 4_096
SINGLES_MAX = 12
"""How many single sectors, cuts and entries are tried alone at one moment; if there are more, a sample is tried."""

Data = tuple[int, Change]
Entry = tuple[int, EntryChange]


Kept = tuple[str, list[Data], list[Entry]]
"""A plan that is not made yet: its name, and the changes that had reached the medium."""


def plans(snapshot: Snapshot, chance: random.Random, subsets: int = 4) -> Iterator[tuple[str, Plan]]:
    """Yield (name, plan) for the states to try after a power cut at this moment."""
    return map(_plan, _kept(snapshot, chance, subsets))


def _kept(snapshot: Snapshot, chance: random.Random, subsets: int) -> Iterator[Kept]:
    data: list[Data] = [(node, change) for node, state in snapshot.files.items() for change in state.changes]
    entries: list[Entry] = [(node, change) for node, state in snapshot.directories.items() for change in state.pending]
    yield "none", [], []
    yield "all", data, entries
    if data:
        for name, kept in _of_data(data, snapshot, chance):
            yield name, kept, entries
            if entries:
                yield f"{name}, no entries", kept, []
    for name, kept_entries in _of_entries(entries, chance):
        yield f"all data, {name}", data, kept_entries
        yield f"no data, {name}", [], kept_entries
    if data or entries:
        for number in range(subsets):
            share = chance.random()
            yield (
                f"subset {number}",
                [item for item in data if chance.random() < share],
                [item for item in entries if chance.random() < share],
            )


def few_plans(snapshot: Snapshot, chance: random.Random) -> Iterator[tuple[str, Plan]]:
    """Yield nothing, everything and two subsets: enough inside another crash."""
    for kept in _kept(snapshot, chance, 2):
        if kept[0] in ("none", "all") or kept[0].startswith("subset"):
            yield _plan(kept)


def some_plans(snapshot: Snapshot, chance: random.Random, count: int = 5) -> Iterator[tuple[str, Plan]]:
    """Yield nothing, everything, and a seeded selection of the other plans."""
    every = list(_kept(snapshot, chance, 2))
    yield from map(_plan, every[:2])
    yield from map(_plan, chance.sample(every[2:], min(count, len(every) - 2)))


def _of_data(data: list[Data], snapshot: Snapshot, chance: random.Random) -> Iterator[tuple[str, list[Data]]]:
    def changed(item: Data, change: Callable[[bytes, bytes], bytes]) -> Data:
        return _changed(item, _before(snapshot, item), change)

    def junk(data: bytes, before: bytes) -> bytes:
        return chance.randbytes(len(data))

    sizes = [item for item in data if isinstance(item[1], SizeChange)]
    writes = [item for item in data if isinstance(item[1], DataWrite)]
    yield "sizes without data", sizes
    yield "data without sizes", writes
    if not writes:
        return
    for count in _some(range(1, len(writes)), chance):
        yield f"first {count} sectors", sizes + writes[:count]
        yield f"last {len(writes) - count} sectors", sizes + writes[count:]
    pages = [_page(item) for item in writes]
    for page, _ in groupby(pages):
        yield f"without page {page}", sizes + [item for item, its in zip(writes, pages, strict=True) if its != page]
        yield f"only page {page}", sizes + [item for item, its in zip(writes, pages, strict=True) if its == page]
    for index in _some(range(len(writes)), chance):
        others = sizes + writes[:index] + writes[index + 1 :]
        yield f"without sector {index}", others
        yield f"only sector {index}", sizes + writes[index : index + 1]
        yield f"sector {index} torn at its end", [*others, changed(writes[index], _head)]
        yield f"sector {index} torn at its start", [*others, changed(writes[index], _tail)]
        yield f"sector {index} junk", [*others, changed(writes[index], junk)]
    yield "junk", sizes + [changed(item, junk) for item in writes]
    yield "zeros", sizes + [changed(item, lambda data, before: bytes(len(data))) for item in writes]


def _of_entries(entries: list[Entry], chance: random.Random) -> Iterator[tuple[str, list[Entry]]]:
    if not entries:
        return
    for count in _some(range(len(entries)), chance):
        yield f"first {count} entries", entries[:count]
        yield f"without entry {count}", entries[:count] + entries[count + 1 :]
        yield f"only entry {count}", entries[count : count + 1]


def _plan(kept: Kept) -> tuple[str, Plan]:
    name, data, entries = kept
    written: dict[int, list[Change]] = {}
    for node, change in data:
        written.setdefault(node, []).append(change)
    linked: dict[int, list[EntryChange]] = {}
    for node, entry in entries:
        linked.setdefault(node, []).append(entry)
    return name, Plan(
        {node: tuple(changes) for node, changes in written.items()},
        {node: tuple(changes) for node, changes in linked.items()},
    )


def _some(numbers: range, chance: random.Random) -> list[int]:
    return list(numbers) if len(numbers) <= SINGLES_MAX else sorted(chance.sample(numbers, SINGLES_MAX))


def _page(item: Data) -> tuple[int, int]:
    node, change = item
    assert isinstance(change, DataWrite)
    return node, change.offset // PAGE_BYTES


def _before(snapshot: Snapshot, item: Data) -> bytes:
    """Return what the medium holds where *item* is written; zeros past the end of the file."""
    node, write = item
    assert isinstance(write, DataWrite)
    found = snapshot.files[node].durable[write.offset : write.offset + len(write.data)]
    return found.ljust(len(write.data), b"\0")


def _changed(item: Data, before: bytes, change: Callable[[bytes, bytes], bytes]) -> Data:
    """Return *item* as a failing write left it. Bytes that it repeats are intact: only the others may change."""
    node, write = item
    assert isinstance(write, DataWrite)
    left = change(write.data, before)
    if any(before):
        left = _where_they_differ(write.data, before, left)
    return node, DataWrite(write.offset, left)


DIFFERS = bytes([0]) + bytes([255]) * 255


def _where_they_differ(due: bytes, old: bytes, new: bytes) -> bytes:
    """Return *due* with the bytes of *new* where *due* is not *old*. All at once: one by one took a tenth of a run."""
    due_bits, old_bits, new_bits = (int.from_bytes(each, "big") for each in (due, old, new))
    mask = int.from_bytes((due_bits ^ old_bits).to_bytes(len(due), "big").translate(DIFFERS), "big")
    return (due_bits ^ (due_bits ^ new_bits) & mask).to_bytes(len(due), "big")


def _head(data: bytes, before: bytes) -> bytes:
    return data[: len(data) // 2] + before[len(data) // 2 :]


def _tail(data: bytes, before: bytes) -> bytes:
    return before[: len(data) // 2] + data[len(data) // 2 :]
