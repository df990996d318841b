"""Runs a history repeatedly, each time with another call to the disk failing, and checks the result.

With every fault: each call ends (the virtual loop detects one that hangs); acknowledged calls exist after a reopen and
after a power cut, refused ones do not; reads continue; a failed log acknowledges nothing; no handle stays open.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Iterator

from mrecordlog_async import LogFailedError
from mrecordlog_async.model import POSITION_MAX

from .disk import Fault, Plan
from .driver import Run
from .explore import Explorer, exploring, recover
from .histories import Case
from .judge import Bounds, State, Verdict, Violation
from .states import few_plans

ERRORS: dict[str, list[tuple[str, int]]] = {
    "write": [
        ("before", errno.EIO),
        ("before", errno.EINVAL),
        ("half", errno.ENOSPC),
        ("after", errno.EIO),
        ("short", 0),
        ("zero", 0),
    ],
    "land": [
        ("before", errno.EIO),
        ("half", errno.ENOSPC),
        ("after", errno.EIO),
        ("short", 0),
        ("zero", 0),
    ],
    "open_writes": [("before", errno.EAGAIN)],
    "start_write": [("before", errno.EAGAIN)],
    "finish_writes": [("before", errno.EINVAL)],
    "write_durable": [
        ("before", errno.EIO),
        ("before", errno.EINVAL),
        ("half", errno.ENOSPC),
        ("after", errno.EIO),
        ("short", 0),
        ("zero", 0),
    ],
    "set_direct": [("before", errno.EINVAL)],
    "read_into": [("before", errno.EINVAL), ("before", errno.EIO)],
    "sync": [("before", errno.EIO), ("after", errno.ENOSPC)],
    "sync_directory": [("before", errno.EIO), ("after", errno.EIO)],
    "reserve": [("before", errno.ENOSPC), ("half", errno.EDQUOT), ("after", errno.EIO)],
    "create": [("before", errno.EMFILE), ("before", errno.ENOSPC), ("after", errno.EIO)],
    "rename": [("before", errno.EIO), ("after", errno.EIO)],
    "unlink": [("before", errno.EACCES), ("after", errno.EIO)],
    "link": [("before", errno.EXDEV), ("before", errno.EMLINK), ("before", errno.EIO), ("after", errno.EIO)],
    "links": [("before", errno.EIO)],
    "is_at": [("before", errno.EIO)],
    "remove_directory": [("before", errno.EIO)],
    "set_size": [("before", errno.EIO), ("after", errno.EIO)],
    "open": [("before", errno.EMFILE)],
    "open_directory": [("before", errno.ENFILE)],
    "make_directory": [("before", errno.ENOSPC), ("after", errno.EIO)],
    "read": [("before", errno.EIO)],
    "size": [("before", errno.EIO)],
    "list_names": [("before", errno.EIO)],
    "space_of": [("before", errno.EIO)],
    "recycles": [("before", errno.EIO)],
    "is_alone": [("before", errno.EAGAIN)],
    "is_replaceable": [("before", errno.EIO)],
    "mode": [("before", errno.EIO)],
    "drop_cache": [("before", errno.EIO)],
    "lock": [("before", errno.ENOLCK)],
}
"""The faults of each call: effect and error number."""


READING = frozenset({"open", "read", "read_into", "size", "drop_cache"})


def faults(call_names: list[str], *, reads_return: bool = False) -> Iterator[Fault]:
    """Yield every fault for a history that makes these calls. *reads_return*: reading does not fail for good.

    What cannot be read of records on the disk cannot be counted exactly, if their positions have gaps.
    """
    for number, call in enumerate(call_names, 1):
        for effect, code in ERRORS[call]:
            for on in (False, True):
                if on and (effect in ("short", "after") or (reads_return and call in READING)):
                    continue
                yield Fault(number, code, on, effect)


def inject(case: Case, fault: Fault, explorer: Explorer) -> Run:
    """Run *case* with *fault*, and check the log that it leaves."""
    run = case.run(fault, moments=False)
    explorer.tally.faults += 1
    where = f"{fault.hit} (call {fault.at}) failed with {errno.errorcode.get(fault.errno)} {fault.effect}"
    where += " and from then on" if fault.on else ""
    _check_order(run, where)
    run.disk.fault = None
    if run.disk.open_handles() or run.disk.misuse:
        raise Violation(f"{where}: {run.disk.open_handles()} handles are open; {run.disk.misuse}")
    with case.sizes(), exploring():
        _judge(run, explorer, where)
        for copy in run.copies:
            _judge_copy(run, copy, explorer, where)
    return run


def _check_order(run: Run, where: str) -> None:
    """Check that after the log failed, no call with an effect was acknowledged in that life."""
    for life in run.lives:
        failed = [call.ended_at for call in life.model.calls if isinstance(call.error, LogFailedError)]
        for call in life.model.calls:
            if failed and call.outcome == "answered" and call.ended_at > min(failed):
                raise Violation(f"{where}: call {call.number} was answered by a failed log")


def _judge_copy(run: Run, copy: Run, explorer: Explorer, where: str) -> None:
    """Check that a copy is absent or whole: as it was when it was made, or as its own calls left it."""
    where = f"{where}; the copy"
    snapshot = run.disk.snapshot()
    for name, plan in few_plans(snapshot, random.Random(0)):
        left = snapshot.cut(plan)
        if not copy.unfinished:
            found = explorer.open_twice(left, where, copy.directory)
            Verdict(copy.model).check(found, copy.model.bounds(), f"{where}; cut, {name}")
        elif left.kill().exists(copy.directory):
            found = explorer.open_twice(left, where, copy.directory)
            Verdict(run.lives[-1].model).check(found, Bounds(0, 1 << 30), where)


def _check_doubts(run: Run, left: State, where: str) -> None:
    """Check that close named each queue of which a power cut took something, and the first of the lost records."""
    if run.seen is None:
        return
    found = {queue.id: queue for queue in left.queues}
    for queue in run.seen.queues:
        kept = found.get(queue.id)
        if kept is None or (kept.start >= queue.start and kept.next >= queue.next):
            continue  # all is there, or a delete with an unknown outcome was stored: a create is always synced
        lost = [position for position, _ in queue.records if position >= kept.next]
        if run.in_doubt.get(queue.name, POSITION_MAX + 1) > min(lost, default=POSITION_MAX):
            raise Violation(f"{where}: {queue.name!r} lost {lost[:1] or 'a change'}, in doubt is {run.in_doubt}")


def _judge(run: Run, explorer: Explorer, where: str) -> None:
    life = run.lives[-1]
    verdict, bounds = Verdict(life.model), life.model.bounds()
    if run.seen is not None:
        verdict.check(run.seen, bounds, f"{where}; seen in memory")
        if run.policy.syncs_each_batch:
            bounds.at_least = max(bounds.at_least, min(verdict.counts(run.seen)))
    snapshot = run.disk.snapshot()
    for name, plan in few_plans(snapshot, random.Random(0)):
        left = explorer.open_twice(snapshot.cut(plan), f"{where}; power cut, {name}")
        verdict.check(left, bounds, f"{where}; cut, {name}")
        _check_doubts(run, left, f"{where}; cut, {name}")
    reopened = snapshot.kill()
    opened = recover(reopened, f"{where}; reopened")
    seen = opened.state()
    found = opened.die()
    verdict.check(seen, bounds, f"{where}; reopened")
    if seen.queues and explorer.open_twice(found.snapshot().cut(Plan()), where) != seen:
        raise Violation(f"{where}: what was seen after reopening did not survive a power cut")
