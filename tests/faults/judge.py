"""The model: what a log may contain, computed with a dictionary that shares no code with the log.

Calls are numbered in the order in which they are made. The log may assign positions only in that order. So at any
moment it contains the result of the first *k* calls for some k: at least those that a result depends on, at most those
that were made. A cancelled call may or may not be stored; the judge follows both possibilities until a result excludes
one.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import count, product
from typing import NamedTuple

from mrecordlog_async import PersistPolicy, QueueOptions
from mrecordlog_async.errors import (
    ConsumerBehindError,
    LogFailedError,
    PositionInPastError,
    QueueExistsError,
    QueueNotFoundError,
)
from mrecordlog_async.format.controls import NO_OWNER, consumer_bytes, rule_bytes
from mrecordlog_async.format.settings import StoredSettings
from mrecordlog_async.format.stored_options import SEALED
from mrecordlog_async.format.table import OPENING_BYTES, TABLE_HEADER_BYTES, entry_bytes
from mrecordlog_async.memory.loose import PLACE_BITS
from mrecordlog_async.memory.pieces import cut_to
from mrecordlog_async.memory.queue import Queue as LogQueue
from mrecordlog_async.memory.queues import CONSUMER_OVERHEAD_BYTES, Queues, memory_of_name, memory_of_rule
from mrecordlog_async.memory.settings import options_of
from mrecordlog_async.memory.stored_times import times_of
from mrecordlog_async.recovery.gathered_reader import GatheredReader, wanted_runs
from mrecordlog_async.storage.directory import LogDirectory

from .settings_model import (
    DURABLE,
    MAY_CHANGE_NOTHING,
    NOTHING_SET,
    Settings,
    apply_setting,
    behind,
    is_refusal,
    limits_appends,
    matching,
    moved_up,
    refused_append,
)

SLACK_SECONDS = 0.05
"""How late the writer may be with a sync that is due: turns of a loop with a virtual clock."""

BRANCHES_MAX = 10
"""How many cancelled calls of one life the judge follows in both ways."""


ID_STEP = 70_000
"""How far the first id or epoch that an opening draws is moved up. The log draws this number at random."""

_ENDS = count(1)


SHOWN_MAX = 2_000
"""This many characters of a violation are printed, half from each end: a payload has as many as a megabyte."""


class Violation(AssertionError):
    """A promise was broken."""

    def __str__(self) -> str:
        """Return the message without its middle, if it is long."""
        message, half = super().__str__(), SHOWN_MAX // 2
        return message if len(message) <= SHOWN_MAX else f"{message[:half]} […] {message[-half:]}"


class QueueState(NamedTuple):
    """One queue as a reader sees it, with its id."""

    name: str
    id: int
    start: int
    next: int
    records: tuple[tuple[int, bytes], ...]
    consumers: tuple[tuple[str, int, int, bytes], ...] = ()  # name, position, epoch, owner
    settings: Settings = NOTHING_SET
    ticks: tuple[tuple[int, int], ...] = ()  # the first retained position of each time, and the time


class State(NamedTuple):
    """A whole log as a reader sees it, and the id of its next queue."""

    next_queue_id: int
    queues: tuple[QueueState, ...]
    rules: tuple[tuple[str, str], ...] = ()  # pattern and name: consumers of new queues


@dataclass(slots=True)
class Call:
    """One call to the log and its outcome.

    outcome: "open" (no result yet), "answered", "refused" (because of what the queues contain), "absent" (certainly not
    stored), "unknown" (the log failed meanwhile), "cancelled".
    """

    number: int
    kind: str
    queue: str
    position: int | None = None
    payloads: tuple[bytes, ...] = ()
    exist_ok: bool = False
    soon: bool = False  # by `append_soon`
    consumer: str = ""
    holder: tuple[int, int] | None = None  # queue id and epoch
    owner: bytes = NO_OWNER
    options: QueueOptions = NOTHING_SET.options
    forced: bool = False  # past consumers, or past an owner
    tick: int = 0  # the time by the wall clock, which stands still while any call is open
    outcome: str = "open"
    value: object = None
    error: BaseException | None = None
    ended_at: int = 0  # when, among all calls
    ended: float = 0.0  # when, in seconds of the loop
    on_taken: Callable[[], None] | None = None  # numbers the call when the writer takes it

    def answer(self, value: object) -> None:
        """Record the log's result at the moment it is set."""
        self.outcome, self.value = "answered", value
        self._end()

    def fail(self, error: BaseException) -> None:
        """Record the log's error at the moment it is set."""
        self.error = error
        self._end()
        if isinstance(error, QueueNotFoundError | QueueExistsError | PositionInPastError) or is_refusal(error):
            self.outcome = "refused"
        elif isinstance(error, LogFailedError) and error.written == "unknown":
            self.outcome = "unknown"
        else:
            self.outcome = "absent"

    def taken(self) -> None:
        """Record that the writer took the call. If the call had no number before, it gets its number now."""
        if self.on_taken is not None:
            self.on_taken()

    def _end(self) -> None:
        if self.number < 0:
            self.taken()
        self.ended_at, self.ended = next(_ENDS), asyncio.get_running_loop().time()


REPEAT_OR_PAST = object()
"""Expected if the records were truncated and the call may be the last append: the log may know it, or refuse it."""


class Queue:
    """One queue of the model."""

    def __init__(self, queue_id: int, start: int = 0, next_position: int = 0) -> None:
        self.id = queue_id
        self.start = start
        self.next = next_position
        self.records: dict[int, bytes] = {}
        self.truncated: dict[int, bytes] = {}
        self.known_from = next_position  # records truncated below are not known, because the model began here
        self.ticks: dict[int, int] = {}  # of all records that are or were retained
        self.consumers: dict[str, tuple[int, int, bytes]] = {}  # position, epoch and owner
        self.settings = NOTHING_SET

    def copy(self) -> Queue:
        """Return a queue that may change on its own."""
        copied = Queue(self.id, self.start, self.next)
        copied.records = dict(self.records)
        copied.truncated, copied.known_from = dict(self.truncated), self.known_from
        copied.consumers, copied.settings, copied.ticks = dict(self.consumers), self.settings, dict(self.ticks)
        return copied

    def append(self, call: Call) -> object:
        """Append and return the expected result, or the error."""
        first = self.next if call.position is None else call.position
        stop = first + len(call.payloads)
        if not call.payloads:
            return None
        if first < self.next:
            return self._append_in_past(call, first, stop)
        refusal = refused_append(self, call)
        if refusal is not None:
            return refusal
        if self.start == 0 == self.next:
            self.start = first
        self.records.update(zip(range(first, stop), call.payloads, strict=True))
        self.ticks.update(dict.fromkeys(range(first, stop), call.tick))
        self.next = stop
        return stop - 1

    def _append_in_past(self, call: Call, first: int, stop: int) -> object:
        """Return the expected result for taken positions: "stored" requires that the records were compared."""
        if stop > self.next:
            return PositionInPastError
        for position, payload in zip(range(first, stop), call.payloads, strict=True):
            known = position >= min(self.start, self.known_from)
            held = self.records.get(position, self.truncated.get(position))
            if (known or held is not None) and held != payload:
                return PositionInPastError
        if first >= self.start:
            return None
        return REPEAT_OR_PAST if stop == self.next else PositionInPastError

    def truncate(self, position: int) -> int:
        """Truncate and return how many records are deleted."""
        if position < self.start:
            return 0
        gone = [at for at in self.records if at <= position]
        for at in gone:
            self.truncated[at] = self.records.pop(at)
        self.start = position + 1
        self.next = max(self.next, self.start)
        moved_up(self)
        return len(gone)


class Fold:
    """Queues by name, after a number of calls."""

    def __init__(self, next_queue_id: int) -> None:
        self.next_queue_id = next_queue_id
        self.queues: dict[str, Queue] = {}
        self.rules: set[tuple[str, str]] = set()
        self.ids_from = next_queue_id + ID_STEP  # the lowest id or epoch that is drawn
        self.epochs_from = 0  # holders with a lower epoch must attach again

    @classmethod
    def of(cls, state: State) -> Fold:
        """Start from a state that a reader saw."""
        fold = cls(state.next_queue_id)
        for queue in state.queues:
            fold.queues[queue.name] = Queue(queue.id, queue.start, queue.next)
            fold.queues[queue.name].records = dict(queue.records)
            fold.queues[queue.name].consumers = {name: (at, epoch, owner) for name, at, epoch, owner in queue.consumers}
            fold.queues[queue.name].settings = queue.settings
            fold.queues[queue.name].ticks = _ticks_of(queue)
        fold.rules = set(state.rules)
        return fold

    def draw(self) -> int:
        """Return the next id, for a queue or an epoch."""
        self.next_queue_id = max(self.next_queue_id, self.ids_from) + 1
        return self.next_queue_id - 1

    def apply(self, call: Call) -> object:
        """Do *call* and return the expected result, or the class of the error."""
        queue = self.queues.get(call.queue)
        if call.kind == "sync":
            return None
        if call.kind == "create":
            if queue is not None:
                return False if call.exist_ok else QueueExistsError
            queue = self.queues[call.queue] = Queue(self.draw())
            queue.consumers = {name: (0, self.draw(), NO_OWNER) for name in matching(self.rules, call.queue)}
            queue.settings = Settings(call.options)
            return True
        if call.kind not in ("append", "truncate", "delete"):
            return apply_setting(self, call)
        if queue is None:
            return QueueNotFoundError
        if call.kind == "append":
            return queue.append(call)
        if call.kind == "truncate":
            assert call.position is not None
            if call.holder is not None and call.holder[0] != queue.id:
                return QueueNotFoundError
            if call.position >= queue.start and behind(queue, call.position, call.forced):
                return ConsumerBehindError
            return queue.truncate(call.position)
        assert call.kind == "delete"
        if behind(queue, queue.next, call.forced):
            return ConsumerBehindError
        del self.queues[call.queue]
        return len(queue.records)

    def state(self) -> State:
        """Return what a reader would see now."""
        return State(
            self.next_queue_id,
            tuple(
                QueueState(
                    name,
                    queue.id,
                    queue.start,
                    queue.next,
                    tuple(sorted(queue.records.items())),
                    tuple((each, *place) for each, place in sorted(queue.consumers.items())),
                    queue.settings,
                    _changes((position, queue.ticks[position]) for position in sorted(queue.records)),
                )
                for name, queue in sorted(self.queues.items())
            ),
            tuple(sorted(self.rules)),
        )


def state_of(queues: Queues, directory: LogDirectory | None = None) -> State:
    """Return what a reader of the log sees; check the log's sums first.

    directory: where the records are that have left memory; None if none have.
    """
    state = _state_of(queues, None if directory is None else GatheredReader(directory, may_write=lambda size: False))
    check_sums(queues, state)
    return state


def check_sums(queues: Queues, state: State) -> None:
    """Raise Violation unless the log's counts of memory, records, bytes, pins and table size match its queues."""
    pins: Counter[int] = Counter()
    table_bytes = TABLE_HEADER_BYTES + sum(map(rule_bytes, queues.rules.all)) + OPENING_BYTES * len(queues.openings)
    memory_bytes, loose = 0, Counter[int]()
    for seen in state.queues:
        queue = queues.get(seen.name)
        assert queue is not None
        pins.update(queue.segments())
        table_bytes += entry_bytes(seen.name) + sum(map(consumer_bytes, queue.consumers)) + queue.settings.more_bytes()
        memory_bytes += (
            queue.memory_bytes + CONSUMER_OVERHEAD_BYTES * len(queue.consumers) + queue.settings.more_bytes()
        )
        memory_bytes += sum(map(memory_of_name, (seen.name, *queue.consumers)))
        loose.update(place >> PLACE_BITS for place in queue.store.loose)
        live_bytes = sum(len(payload) for _, payload in seen.records)
        found = (queue.records, queue.live_bytes())
        # Of a place on the disk that a truncate has cut, all bytes count, unless its positions have gaps.
        if found[0] != len(seen.records) or (found[1] != live_bytes and (found[1] < live_bytes or not is_cut(queue))):
            raise Violation(
                f"{seen.name}: {found} records and bytes counted, {len(seen.records), live_bytes} are there"
            )
        if [*queue.store.loose] != sorted(set(queue.store.loose)):
            raise Violation(f"{seen.name}: its loose records are not in the order of arrival")
        # Loose records are charged with their blocks, and those on the disk with their segment.
        runs = [each for each in seen.records if each[0] >= queue.memory_first]
        runs = runs[: len(runs) - len(queue.store.loose)]
        least = sum(len(payload) for _, payload in runs) + 4 * len(runs)
        if not least <= queue.memory_bytes <= queue.store.held_bytes + MOST_BYTES * (len(seen.records) + 4):
            raise Violation(f"{seen.name}: {queue.memory_bytes} bytes of memory counted for {least} of records")
        if queue.first_segment() != min(queue.segments(), default=None):
            raise Violation(f"{seen.name}: the first of its segments is not {queue.first_segment()}")
    memory_bytes += (
        check_blocks(queues, loose) + queues.pins.gathered_bytes + sum(map(memory_of_rule, queues.rules.all))
    )
    consumers = sum(len(queue.consumers) for queue in queues)
    limited = {seen.name for seen in state.queues if limits_appends(seen.settings)}
    if (queues.consumer_count, queues.limited) != (consumers, limited):
        raise Violation(f"{queues.consumer_count} consumers, limits of {queues.limited} counted: not as they are")
    counted = (queues.memory_bytes, queues.table_bytes, queues.pins.oldest())
    if counted != (memory_bytes, table_bytes, min(pins, default=None)):
        raise Violation(f"memory, table and oldest pin are {counted}, due were {memory_bytes, table_bytes, pins}")


def is_cut(queue: LogQueue) -> bool:
    """Return whether a truncate has left a part of a place on the disk that has no gaps."""
    index, place = next(queue.places(queue.first_position, queue.memory_first), (None, 0))
    return index is not None and index.first_positions[place] < queue.first_position and not index.has_gaps(place)


def check_blocks(queues: Queues, loose: Counter[int]) -> int:
    """Return the memory of the blocks of loose records; Violation unless each lives by as many records as it counts."""
    live = Counter({number: block.live for number, block in queues.blocks})
    if live != loose:
        raise Violation(f"blocks with live records are {live}, due were {loose}")
    for number, block in queues.blocks:
        if block.live <= len(block.ids) // 4 and number not in queues.blocks.sparse:
            raise Violation(
                f"block {number} lives by {block.live} of {len(block.ids)} records, and is not to be settled"
            )
        if block.memory_bytes < len(block.payload) + 16 * len(block.ids):
            raise Violation(f"block {number}: {block.memory_bytes} bytes of memory counted for {len(block.payload)}")
    return sum(block.memory_bytes for _, block in queues.blocks)


MOST_BYTES = 400
"""More than a single record in its own run costs in addition to its payload."""


def _state_of(queues: Queues, reader: GatheredReader | None) -> State:
    seen = tuple(_queue_state(queue, reader) for queue in sorted(queues, key=lambda queue: queue.name))
    if reader is not None:
        reader.close_all()
    rules = tuple((rule.pattern, rule.name) for rule in sorted(queues.rules.all))
    return State(queues.next_queue_id, seen, rules)


def _queue_state(queue: LogQueue, reader: GatheredReader | None) -> QueueState:
    records, spans = _records_on_disk(queue, reader)
    start = max(queue.first_position, queue.memory_first)
    records += [(record.position, record.payload) for run in queue.runs(start, None) for record in run.records()]
    if start < queue.next_position:
        spans += times_of(queue, start, queue.next_position).spans(start, queue.next_position)
    return QueueState(
        queue.name,
        queue.id,
        queue.first_position,
        queue.next_position,
        tuple(records),
        tuple((name, *state) for name, state in sorted(queue.consumer_states())),
        _shown_settings(queue.settings),
        _shown_ticks([position for position, _ in records], spans),
    )


@lru_cache
def _shown_settings(stored: StoredSettings) -> Settings:
    (options,) = stored
    return Settings(options_of(options), bool(options.flags & SEALED))


def _records_on_disk(
    queue: LogQueue, reader: GatheredReader | None
) -> tuple[list[tuple[int, bytes]], list[tuple[int, int, int]]]:
    """Return the records that have left memory, and the spans of positions that have the same tick."""
    records, spans = list[tuple[int, bytes]](), list[tuple[int, int, int]]()
    position = queue.first_position
    while (wanted := wanted_runs(queue, position, queue.memory_first, 1)) is not None:
        assert reader is not None, "records have left memory"
        found = reader.read(wanted)
        stop = min(found.next_position, queue.memory_first)
        records += [
            (record.position, record.payload) for run in cut_to(found.runs, position, stop) for record in run.records()
        ]
        spans += found.times.spans(position, stop)
        position = stop
    return records, spans


def _shown_ticks(positions: list[int], spans: list[tuple[int, int, int]]) -> tuple[tuple[int, int], ...]:
    """Return the first retained position of each time, and the time. A span that has lost its records is left out."""
    return _changes(
        (positions[at], tick)
        for start, stop, tick in spans
        if (at := bisect_left(positions, start)) < bisect_left(positions, stop)
    )


def _changes(ticks: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Return those of (position, tick) that have another tick than the one before."""
    found: list[tuple[int, int]] = []
    for position, tick in ticks:
        if not found or found[-1][1] != tick:
            found.append((position, tick))
    return tuple(found)


def _ticks_of(queue: QueueState) -> dict[int, int]:
    """Return the tick of each retained record."""
    positions, ticks = zip(*queue.ticks, strict=True) if queue.ticks else ((), ())
    return {position: ticks[bisect_right(positions, position) - 1] for position, _ in queue.records}


@dataclass(slots=True)
class Bounds:
    """How many of the calls must be stored, and how many can be.

    or_changed: truncates that deleted nothing; each must be stored if, in the model, it changed the queue.
    """

    at_least: int
    at_most: int
    or_changed: tuple[int, ...] = ()


@dataclass(slots=True)
class Model:
    """All calls of one life of a log, from a known state on.

    durable_answers: policy `always`. interval_seconds: how long an acknowledged call may stay unsynced.
    """

    base: State
    durable_answers: bool = True
    interval_seconds: float | None = None
    calls: list[Call] = field(default_factory=list)
    epochs_from: int = 0

    @classmethod
    def under(cls, policy: PersistPolicy, base: State, was_closed: bool = True) -> Model:
        """Return the model of a log that has just been opened."""
        epochs_from = 0 if was_closed or policy.syncs_each_batch else base.next_queue_id
        return cls(base, policy.syncs_each_batch, policy.sync_interval_seconds, epochs_from=epochs_from)

    def add(self, call: Call) -> Call:
        """Give a number to a call that is about to be made."""
        call.number = len(self.calls)
        self.calls.append(call)
        return call

    def place(self, call: Call) -> None:
        """Give a number to a call that the writer takes now. If it is taken again, its old number stays unused."""
        if call.number >= 0:
            self.calls[call.number] = Call(call.number, "sync", "", outcome="absent")
        self.add(call)

    def bounds(self, now: float = 0.0) -> Bounds:
        """Return what a power cut now may leave: at least what results depend on, at most the calls that were made."""
        durable = self.durable_answers
        return Bounds(self._rests_on(durable, now), len(self.calls), self._empty_truncates() if durable else ())

    def bounds_of_kill(self) -> Bounds:
        """Return what the death of the process now may leave: under every policy, all acknowledged calls."""
        return Bounds(self._rests_on(True, 0.0), len(self.calls), self._empty_truncates())

    def _empty_truncates(self) -> tuple[int, ...]:
        """Return the numbers of acknowledged calls whose results do not say whether they changed anything."""
        kinds = ("truncate", *MAY_CHANGE_NOTHING)
        empty = (call for call in self.calls if call.kind in kinds and call.outcome == "answered")
        return tuple(call.number for call in empty if call.kind != "truncate" or call.value == 0)

    def _rests_on(self, durable_answers: bool, now: float) -> int:
        writers: dict[str, int] = {}
        needed = 0
        due = -1.0 if self.interval_seconds is None else now - self.interval_seconds - SLACK_SECONDS
        for call in self.calls:
            if call.outcome == "answered" and call.kind in ("create", "delete", "sync", *DURABLE) and _changed(call):
                needed = call.number + 1
                writers[call.queue] = needed
            elif call.outcome == "answered" and _changed(call):
                writers[call.queue] = call.number + 1
            if call.outcome in ("answered", "refused") and (durable_answers or call.ended < due):
                needed = max(needed, writers.get(call.queue, 0))
        return needed

    def states(self) -> list[list[State]]:
        """Return the states after 0, 1, … calls for every possible outcome of the cancelled calls, results checked."""
        ways = []
        reasons: list[str] = []
        cancelled = [call.number for call in self.calls if call.outcome == "cancelled"]
        assert len(cancelled) <= BRANCHES_MAX, "the judge cannot follow that many cancelled calls"
        # On a full disk truncates and deletes are stored alone; if that fails, all calls of the batch are in doubt.
        in_doubt = {
            call.number for call in self.calls if call.outcome == "unknown" and call.kind in ("append", "create")
        }
        for chosen in product((True, False), repeat=len(cancelled) + bool(in_doubt)):
            left_out = {number for number, stored in zip(cancelled, chosen, strict=False) if not stored}
            if in_doubt and not chosen[-1]:
                left_out |= in_doubt
            try:
                ways.append(list(self._fold(left_out)))
            except Violation as violation:
                reasons.append(str(violation))
        if not ways:
            raise Violation(f"an answer is wrong: {reasons[0]}")
        return ways

    def _fold(self, left_out: set[int]) -> Iterator[State]:
        fold = Fold.of(self.base)
        fold.epochs_from = self.epochs_from
        yield fold.state()
        for call in self.calls:
            if call.number not in left_out and call.outcome != "absent":
                due = fold.apply(call)
                if due is REPEAT_OR_PAST:
                    due = PositionInPastError if call.outcome == "refused" else None
                if call.outcome == "answered" and call.kind != "sync" and due != call.value:
                    raise Violation(f"{_shown(call)} was answered {call.value!r}, due was {due!r}")
                if call.outcome == "refused" and due is not type(call.error):
                    raise Violation(f"{_shown(call)} was refused with {call.error!r}, due was {due!r}")
            yield fold.state()


class Verdict:
    """Judges states against a model whose calls have all ended."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._counts: dict[State, set[int]] = {}
        self._changed: set[int] = set(range(len(model.calls)))
        for way in model.states():
            for number, state in enumerate(way):
                self._counts.setdefault(state, set()).add(number)
            self._changed &= {number for number in range(len(way) - 1) if way[number] != way[number + 1]}

    def check(self, state: State, bounds: Bounds, where: str) -> None:
        """Raise Violation unless *state* is the result of an allowed number of calls."""
        counts = self._counts.get(state)
        changed = (number + 1 for number in bounds.or_changed if number in self._changed)
        bounds = Bounds(max(bounds.at_least, *changed, 0), bounds.at_most)
        if counts is None:
            raise Violation(f"{where}: no sequence of calls leads to {brief(state)}; {self._nearest(bounds)}")
        if not any(bounds.at_least <= count <= bounds.at_most for count in counts):
            raise Violation(
                f"{where}: the log holds calls up to {max(counts)}, "
                f"but {bounds.at_least} to {bounds.at_most} of them are due: {brief(state)}; {self._nearest(bounds)}"
            )

    def counts(self, state: State) -> set[int]:
        """Return the numbers of calls that lead to *state*."""
        return self._counts.get(state, set())

    def _nearest(self, bounds: Bounds) -> str:
        due = [state for state, counts in self._counts.items() if bounds.at_least in counts]
        return f"at least due: {brief(due[0]) if due else None}"


def _changed(call: Call) -> bool:
    """Return whether an answered call changed anything (a repeat, an exist_ok and an early truncate do not)."""
    if call.kind == "append":
        return call.value is not None
    if call.kind == "create":
        return call.value is True
    if call.kind == "truncate":
        return call.value != 0
    return call.kind not in MAY_CHANGE_NOTHING


def _shown(call: Call) -> str:
    sizes = [len(payload) for payload in call.payloads]
    return f"call {call.number} ({call.kind} {call.queue} position={call.position} sizes={sizes})"


def brief(state: State) -> str:
    """Return a short description of a state."""
    return str(
        [
            (queue.name, queue.id, queue.start, queue.next, _ranges([position for position, _ in queue.records]))
            for queue in state.queues
        ]
    )


def _ranges(positions: Sequence[int]) -> str:
    return f"{len(positions)} records {positions[0]}…{positions[-1]}" if positions else "no records"


def as_payloads(payloads: bytes | Iterable[bytes]) -> tuple[bytes, ...]:
    """Return the payloads of a call as a tuple."""
    return (payloads,) if isinstance(payloads, bytes) else tuple(payloads)
