"""The model: what a log may contain, computed with a dictionary that shares no code with the log.

Calls are numbered in the order in which they are made. The log may assign positions only in that order. So at any
moment it contains the result of the first *k* calls for some k: at least those that a result depends on, at most those
that were made. A cancelled call may or may not be stored; the judge follows both possibilities until a result excludes
one.
"""

from __future__ import annotations

import asyncio
import uuid
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import count, product
from typing import NamedTuple

from mrecordlog_async import MultiRecordLog, PersistPolicy, QueueOptions, QueueSummary, ReadOnlyLog, Record
from mrecordlog_async.errors import (
    ConsumerBehindError,
    LogFailedError,
    PositionInPastError,
    QueueExistsError,
    QueueNotFoundError,
)
from mrecordlog_async.format.controls import NO_OWNER
from tests.memory.sums import check_sums

from .inside import FIRST_QUEUE_ID as ID_STEP
from .settings_model import (
    DURABLE,
    MAY_CHANGE_NOTHING,
    NOTHING_SET,
    Settings,
    apply_setting,
    behind,
    is_refusal,
    matching,
    moved_up,
    refused_append,
)
from .violation import Violation as Violation

SLACK_SECONDS = 0.05
"""How late the writer may be with a sync that is due: turns of a loop with a virtual clock."""

BRANCHES_MAX = 10
"""How many cancelled calls of one life the judge follows in both ways."""


UNKNOWN_ID = 0
"""What a reader takes for the id of the next queue."""

UNLIMITED = 1 << 40
_ENDS = count(1)


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
    model: Model | None = None  # numbers the call when it has ended

    def answer(self, value: object) -> None:
        """Record the log's result at the moment it is set. A call that has ended has its result."""
        if self.outcome == "open":
            self.outcome, self.value = "answered", value
            self._end()

    def cancel(self) -> None:
        """Record that the caller waits no more: the call may be stored, or not."""
        if self.outcome == "open":
            self.outcome = "cancelled"

    def fail(self, error: BaseException) -> None:
        """Record the log's error at the moment it is set."""
        if self.outcome != "open":
            return
        self.error = error
        if isinstance(error, QueueNotFoundError | QueueExistsError | PositionInPastError) or is_refusal(error):
            self.outcome = "refused"
        elif isinstance(error, LogFailedError) and error.written == "unknown":
            self.outcome = "unknown"
        else:
            self.outcome = "absent"
        self._end()

    def _end(self) -> None:
        if self.model is not None:
            self.model.ended(self)
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


async def state_of(log: MultiRecordLog) -> State:
    """Return what a reader of an open log sees, in memory and on the disk; check the log's sums first.

    What is in memory is read at once: a log may end the holders from before a crash while the disk is read.
    """
    (next_queue_id, _), _ = log.inspection.names()
    rules = tuple(log.inspection.consumer_rules())
    queues = [_in_memory(log, summary) for summary in log.summary().values()]
    queues = [await _with_disk(log, queue) for queue in queues]
    state = State(next_queue_id, tuple(queues), rules)
    check_sums(log, state)
    return state


def state_in(reader: ReadOnlyLog) -> State:
    """Return what a reader of a directory sees; check its sums first. A reader does not know the next id."""
    queues = []
    for name, summary in reader.summary().items():
        records = list(reader.read(name))
        ticks = [(record.position, _tick(reader.time_of(name, record.position))) for record in records]
        queues.append(_queue_state(reader, summary, records, ticks))
    state = State(UNKNOWN_ID, tuple(queues), tuple(reader.consumer_rules()))
    check_sums(reader, state)
    return state


def _in_memory(log: MultiRecordLog, summary: QueueSummary) -> QueueState:
    name = summary.queue
    records = list(log.range(name, log.memory_first(name)))
    return _queue_state(log, summary, records, [(at, _tick(log.time_of(name, at))) for at, _ in records])


async def _with_disk(log: MultiRecordLog, queue: QueueState) -> QueueState:
    """Return *queue* with its records that are not in memory."""
    stop = queue.records[0][0] if queue.records else queue.next
    records, ticks, position = list[tuple[int, bytes]](), list[tuple[int, int]](), queue.start
    while position < stop and (batch := await log.fetch(queue.name, position)) is not None:
        found = [(at, bytes(payload)) for at, payload in batch.records()]
        ticks += [(at, _tick(time)) for (at, _), time in zip(found, batch.times(), strict=True) if at < stop]
        records, position = records + [each for each in found if each[0] < stop], batch.next_position
    if not records:
        return queue
    return queue._replace(records=(*records, *queue.records), ticks=_changes((*ticks, *queue.ticks)))


def _queue_state(
    log: MultiRecordLog | ReadOnlyLog, summary: QueueSummary, records: list[Record], ticks: list[tuple[int, int]]
) -> QueueState:
    consumers = log.consumers(summary.queue)
    return QueueState(
        summary.queue,
        summary.id,
        summary.first_position,
        summary.next_position,
        tuple((position, bytes(payload)) for position, payload in records),
        tuple((name, at.position, at.epoch, _owner(at.owner)) for name, at in sorted(consumers.items())),
        Settings(log.queue_options(summary.queue), summary.sealed),
        tuple(_changes(ticks)),
    )


def _owner(owner: str | None) -> bytes:
    return NO_OWNER if owner is None else uuid.UUID(owner).bytes


def _tick(time: datetime | None) -> int:
    return 0 if time is None else round(time.timestamp() * 10)


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
    begun: the calls without a number, in the order of arrival, if calls count in the order of their results; else None.
    """

    base: State
    durable_answers: bool = True
    interval_seconds: float | None = None
    calls: list[Call] = field(default_factory=list)
    epochs_from: int = 0
    begun: list[Call] | None = None

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

    def begin(self, call: Call) -> Call:
        """Note a call that is about to be made: it gets its number now, or when it has ended."""
        if self.begun is None:
            return self.add(call)
        call.number, call.model = -1, self
        self.begun.append(call)
        return call

    def ended(self, call: Call) -> None:
        """Give a number to a call that has its result, after those that arrived before it and were cancelled."""
        assert self.begun is not None
        for before in self.begun[: self.begun.index(call)]:
            if before.outcome == "cancelled":
                self.begun.remove(before)
                self.add(before)
        self.begun.remove(call)
        self.add(call)

    def end(self) -> None:
        """Number the calls that have no result: nobody will have one any more."""
        for call in self.begun or ():
            self.add(call)
        self.begun = None if self.begun is None else []

    @property
    def most(self) -> int:
        """How many calls may be stored now: those that arrived, whatever their numbers will be."""
        return len(self.calls) if self.begun is None else UNLIMITED

    def bounds(self, now: float = 0.0) -> Bounds:
        """Return what a power cut now may leave: at least what results depend on, at most the calls that were made."""
        durable = self.durable_answers
        return Bounds(self._rests_on(durable, now), self.most, self._empty_truncates() if durable else ())

    def bounds_of_kill(self) -> Bounds:
        """Return what the death of the process now may leave: under every policy, all acknowledged calls."""
        return Bounds(self._rests_on(True, 0.0), self.most, self._empty_truncates())

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
                says_nothing = call.kind == "sync" or (call.kind == "delete" and call.value is None)
                if call.outcome == "answered" and not says_nothing and due != call.value:
                    raise Violation(f"{_shown(call)} was answered {call.value!r}, due was {due!r}")
                if call.outcome == "refused" and due is not type(call.error):
                    raise Violation(f"{_shown(call)} was refused with {call.error!r}, due was {due!r}")
            yield fold.state()


class Verdict:
    """Judges states against a model whose calls have all ended."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._counts: dict[State, set[int]] = {}
        self._shown: dict[State, set[int]] = {}  # to readers, who do not know the next id
        self._changed: set[int] = set(range(len(model.calls)))
        for way in model.states():
            for number, state in enumerate(way):
                self._counts.setdefault(state, set()).add(number)
                self._shown.setdefault(as_shown(state), set()).add(number)
            self._changed &= {number for number in range(len(way) - 1) if way[number] != way[number + 1]}

    def check(self, state: State, bounds: Bounds, where: str) -> None:
        """Raise Violation unless *state* is the result of an allowed number of calls."""
        counts = self.counts(state) or None
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
        known = self._shown if state.next_queue_id == UNKNOWN_ID else self._counts
        return known.get(state, set())

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


def as_shown(state: State) -> State:
    """Return what a reader sees of a state: not the next id."""
    return state._replace(next_queue_id=UNKNOWN_ID)


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
