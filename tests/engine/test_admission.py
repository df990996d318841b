"""Admission: every charge is refunded, whichever calls are cancelled, and the order of calls is kept."""

from __future__ import annotations

import asyncio
import errno
import random

from mrecordlog_async.engine.fitted import FittedLimits
from mrecordlog_async.engine.intake.admission import BATCH_BYTES, BATCH_CONTROLS, Admission
from mrecordlog_async.engine.intake.capacity import Capacity
from mrecordlog_async.engine.intake.commands import (
    SINGLE_OVERHEAD_BYTES,
    AppendGroup,
    AppendRecords,
    Command,
    copy_for_waiter,
)
from mrecordlog_async.engine.intake.controls import CreateQueue, Sync
from mrecordlog_async.errors import LogFailedError
from mrecordlog_async.memory.queues import Queues
from mrecordlog_async.options import Limits


def admission_with(limits: Limits) -> Admission:
    """Return the admission of a log without queues."""
    limits = FittedLimits(limits, "").limits
    return Admission(limits, Capacity(limits, Queues(0)))


def single(admission: Admission, queue: str, payload: bytes) -> asyncio.Future[object]:
    """Start an append as the log does; return the future that it waits for."""
    future: asyncio.Future[object] = admission.append_single(queue, payload).send(None)
    return future


def taken_payloads(commands: list[Command]) -> list[bytes]:
    """Return the payloads of the appends among *commands*."""
    return [p for command in commands if isinstance(command, AppendGroup | AppendRecords) for p in command.payloads]


def test_each_waiter_gets_all_of_an_error() -> None:
    """Its own copy, with the paths, the notes and the cause."""
    error = OSError(errno.EXDEV, "not here", "/from", None, "/to")
    error.add_note("noted")
    error.__cause__ = cause = ValueError("why")
    copied = copy_for_waiter(error)
    assert copied is not error
    assert isinstance(copied, OSError)
    assert (str(copied), copied.filename, copied.filename2) == (str(error), "/from", "/to")
    assert (copied.__cause__, copied.__notes__) == (cause, ["noted"])


async def test_everything_charged_is_given_back() -> None:
    """After any mix of appends, cancellations, holding and taking, nothing is charged any more."""
    rng = random.Random(3)
    admission = admission_with(Limits(record_bytes=20_000, pending_bytes=50_000))
    futures = []
    in_flight = 0
    for turn in range(3000):
        futures.append(single(admission, rng.choice("abc"), bytes(rng.randint(0, 8000))))
        if rng.random() < 0.1:
            futures[rng.randrange(len(futures))].cancel()
        if rng.random() < 0.05:
            admission.add_control(Sync(asyncio.get_running_loop().create_future()))
        if rng.random() < 0.2:
            taken = admission.take()
            if turn % 5 == 0:
                admission.park(
                    [command for command in taken if isinstance(command, AppendGroup) and not command.withdrawn()]
                )
                admission.refund(sum(c.bytes for c in taken if not isinstance(c, AppendGroup) or not c.futures))
                admission.unpark()
            else:
                admission.refund(sum(command.bytes for command in taken))
        in_flight = max(in_flight, admission.pending_bytes)
    while admission.has_pending():
        admission.refund(sum(command.bytes for command in admission.take()))
    assert admission.pending_bytes == 0
    assert 0 < in_flight <= 50_000 + 3 * SINGLE_OVERHEAD_BYTES + 1000


async def test_records_are_taken_in_the_order_they_came() -> None:
    """Through groups, the line and back, callers of one queue keep their order."""
    admission = admission_with(Limits(record_bytes=2000, pending_bytes=10_000))
    payloads = [b"%d" % n * 300 for n in range(100)]
    for payload in payloads:
        single(admission, "q", payload)
    seen: list[bytes] = []
    while admission.has_pending():
        commands = admission.take()
        seen += taken_payloads(commands)
        admission.refund(sum(command.bytes for command in commands))
    assert seen == payloads


async def test_a_call_that_comes_back_to_a_failed_log_is_refused_as_later_ones_are() -> None:
    """Its records were read meanwhile. While a log is being closed, it is stored; after a failure, nobody takes it."""
    admission = admission_with(Limits())
    calls = [AppendRecords(admission.new_future(), "q", position, [b"x"]) for position in (1, 2)]
    admission.close()
    admission.take_again(calls[0])
    assert [*admission.take_all()] == calls[:1]
    admission.stop(LogFailedError("a cause", "no", {}).copy)
    admission.take_again(calls[1])
    assert isinstance(calls[1].future.exception(), LogFailedError)
    assert not admission.has_pending()


async def test_groups_stay_about_as_large_as_a_batch() -> None:
    """However many records come for one queue, a batch takes a few MiB of them."""
    admission = admission_with(Limits())
    for _ in range(200):
        single(admission, "q", bytes(200_000))
    sizes = []
    while admission.has_pending():
        sizes.append(sum(map(len, taken_payloads(admission.take()))))
    assert sum(sizes) == 200 * 200_000
    assert max(sizes) <= 2 * BATCH_BYTES


async def test_a_batch_holds_a_bounded_number_of_control_calls() -> None:
    """Planning and applying a batch is one turn of the event loop. What is left over comes first in the next one."""
    admission = admission_with(Limits())
    for number in range(BATCH_CONTROLS):
        admission.add_control(CreateQueue(admission.new_future(), f"q{number}", False))
    single(admission, "q0", b"before")
    for number in range(2):
        admission.add_control(CreateQueue(admission.new_future(), f"r{number}", False))
    single(admission, "q0", b"after")
    since, first = admission.waiting_since, admission.take()
    assert len(first) == BATCH_CONTROLS + 1 and taken_payloads(first[-1:]) == [b"before"]
    admission.take_back(first[10:], since)
    second = admission.take()
    assert second[:-3] == first[10:]
    assert taken_payloads(second[-1:]) == [b"after"] and not admission.has_pending()
    admission.refund(sum(command.bytes for command in [*first[:10], *second]))
    assert admission.pending_bytes == 0


async def test_appends_after_a_control_call_do_not_overtake_it() -> None:
    """A truncate or sync stays between the records that came before and after it."""
    admission = admission_with(Limits())
    single(admission, "q", b"before")
    admission.add_control(Sync(asyncio.get_running_loop().create_future()))
    single(admission, "q", b"after")
    kinds = [type(command) for command in admission.take()]
    assert kinds == [AppendGroup, Sync, AppendGroup]
