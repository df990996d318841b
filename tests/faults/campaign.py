"""A longer campaign: `python -m tests.faults.campaign --seed 1 --seconds 600`.

Each round has its own seed. It runs a random history, explores its crash states, lets its disk calls fail, and damages
the log that it leaves. Every violation is printed with the seed that reproduces it (`--seed N --rounds 1`), and the
exit code is then 1. With `--all` the written histories come first, and no state is skipped to save time: hours.
`--history NAME` takes one of them alone. `--only crash` (`faults`, `damage`) leaves the other kinds out. The last lines
say what was done, even after Ctrl-C, and the CPU time that each kind took. A history that is not finished a minute
after the time is up is left there; what was tried of it counts.
"""

from __future__ import annotations

import argparse
import errno
import logging
import random
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from functools import partial

from mrecordlog_async import CorruptionError
from mrecordlog_async.readonly import ReadOnlyLog
from mrecordlog_async.storage.gathered_files import GATHERED_SUFFIX

from .consumer_histories import CONSUMER_CASES
from .damage import Intact, on_disk
from .driver import DIRECTORY, without_chance
from .explore import Explorer, Tally, exploring, open_twice, recover
from .histories import CASES, LITTLE_MEMORY, Case
from .inject import faults, inject
from .judge import State, state_in
from .random_history import random_case

WRITTEN = CASES | CONSUMER_CASES | {f"{name}, little memory": case for name, case in LITTLE_MEMORY.items()}
FAULTS_A_ROUND = 40
DAMAGES_A_ROUND = 60
LAST_HISTORY_SECONDS = 60.0
"""Time that a campaign may spend on its last history after its own time is up."""


def crash_round(case: Case, seed: int, tally: Tally) -> None:
    """Explore the crash states of one history."""
    explorer = Explorer(seed, subsets=3, deep_every=40, kill_every=9)
    try:
        with case.sizes():
            explorer.explore(case.run(), every=1 + seed % 3)
    finally:
        tally.add(explorer.tally)


def fault_round(case: Case, seed: int, tally: Tally) -> None:
    """Let some calls of one history fail."""
    chance = random.Random(seed)
    every = list(faults(case.run(moments=False).disk.call_names, reads_return=bool(case.memory_bytes)))
    explorer = Explorer(seed)
    try:
        for fault in chance.sample(every, min(len(every), FAULTS_A_ROUND)):
            fault.errno = chance.choice([fault.errno, errno.EIO, errno.ENOSPC, errno.EMFILE, errno.EDQUOT])
            inject(case, fault, explorer)
    finally:
        tally.add(explorer.tally)


def damage_round(case: Case, seed: int, tally: Tally) -> None:
    """Damage the log of one history in several ways. Opening must refuse it, or show a state that it once had."""
    chance = random.Random(seed)
    run = case.run(moments=False)
    if "CLOSED" not in run.disk.content(DIRECTORY):
        return
    with without_chance():
        for closed in (True, False):
            intact = Intact.of(run, closed=closed)
            for _ in range(DAMAGES_A_ROUND // 2):
                with case.sizes() if case.memory_bytes else nullcontext():
                    _damaged(intact, chance, case.memory_bytes // 2)
                tally.damaged_logs += 1


def _damaged(intact: Intact, chance: random.Random, memory_bytes: int) -> None:
    files: dict[str, bytes | None] = dict(intact.files)
    changed: list[tuple[str, int]] = []
    ends = intact.ends | {name: len(data) for name, data in intact.files.items() if name.endswith(GATHERED_SUFFIX)}
    for _ in range(chance.choice([1, 1, 2, 3])):
        name = chance.choice(sorted(ends))
        content = bytearray(files[name] or b"")
        at = chance.randrange(ends[name] + 200)
        length = chance.choice([1, 1, 4, 64, 512, 4_096])
        old = bytes(content[at : at + length])
        new = chance.choice([bytes(len(old)), chance.randbytes(len(old)), bytes(byte ^ 1 for byte in old)])
        content[at : at + len(old)] = new
        files[name] = bytes(content)
        if old != new:
            changed.append((name, at))
    disk = on_disk(files)
    try:
        log = ReadOnlyLog.open(DIRECTORY, filesystem=disk)
        seen = state_in(log)
        on_disk_only = ReadOnlyLog.open(DIRECTORY, filesystem=disk, keep_records=False)
        for queue in log.list_queues():
            assert list(on_disk_only.read(queue)) == list(log.range(queue)), f"other records after {changed}"
    except CorruptionError:
        return
    before_end = [name for name, at in changed if at < ends[name]]
    known = [state and without_ticks(state) for state in intact.states]
    seen = without_ticks(seen)
    assert seen in known, f"a wrong state after damage at {changed}"
    assert seen == known[-1] or (not intact.closed and intact.last in before_end), f"lost after {changed}"
    if not memory_bytes:
        assert without_ticks(open_twice(on_disk(files), "damaged")) == seen
        return
    with exploring():
        opened = recover(on_disk(files), "damaged")  # an old segment may be, which nothing reads
        assert without_ticks(opened.state()) == seen
        opened.die()


def without_ticks(state: State) -> State:
    """Return what a reader with little memory sees: it does not know when records on the disk were stored."""
    return State(0, tuple(queue._replace(ticks=()) for queue in state.queues), state.rules)


KINDS: dict[str, Callable[[Case, int, Tally], None]] = {
    "crash": crash_round,
    "faults": fault_round,
    "damage": damage_round,
}


class Campaign:
    """One campaign, and what it did.

    tally, cpu_seconds (by kind), written and rounds: what is finished. failed: in how many of these was a violation.
    """

    def __init__(self, kinds: Sequence[str]) -> None:
        self.kinds = kinds
        self.tally = Tally()
        self.cpu_seconds = dict.fromkeys(kinds, 0.0)
        self.failed = 0
        self.written = 0
        self.rounds = 0

    def run_written(self, names: Iterable[str]) -> None:
        """Explore every state, and every fault, of written histories; print the violations."""
        for name in names:
            case = WRITTEN[name]
            print(f"{name} …", file=sys.stderr)
            self._try("crash", partial(_every_state, case, self.tally), f"--only crash --history {name!r} --rounds 0")
            self._try("faults", partial(_every_fault, case, self.tally), f"--only faults --history {name!r} --rounds 0")
            self.written += 1

    def run_random(self, seed: int, deadline: float, rounds: int | None) -> None:
        """Run random histories until *deadline* of the monotonic clock; print the violations."""
        while (rounds is None or self.rounds < rounds) and time.monotonic() < deadline:
            case = random_case(seed + self.rounds)
            for kind in self.kinds:
                work = partial(KINDS[kind], case, seed + self.rounds, self.tally)
                self._try(kind, work, f"--only {kind} --seed {seed + self.rounds} --rounds 1")
            self.rounds += 1

    def closing_lines(self, seed: int) -> str:
        """Return what is finished, with the number of violations."""
        taken = ", ".join(f"{kind} {spent / 60:.1f} min" for kind, spent in self.cpu_seconds.items())
        written = f"{self.written} written histories, " if self.written else ""
        done = f"{written}{self.rounds} random histories from seed {seed}: {self.tally.line()}"
        return f"{done}; {self.failed or 'no'} violation(s)\nCPU time: {taken}"

    def _try(self, kind: str, work: Callable[[], None], what: str) -> None:
        if kind not in self.kinds:
            return
        begun = time.process_time()
        try:
            work()
        except Exception:
            print(f"VIOLATION in {what}", file=sys.stderr)
            traceback.print_exc()
            self.failed += 1
        finally:
            self.cpu_seconds[kind] += time.process_time() - begun


def _every_state(case: Case, tally: Tally) -> None:
    explorer = Explorer(deep_every=10, subsets=12, kill_every=3)
    try:
        with case.sizes():
            explorer.explore(case.run())
    finally:
        tally.add(explorer.tally)


def _every_fault(case: Case, tally: Tally) -> None:
    explorer = Explorer(deep_every=10, subsets=12, kill_every=3)
    try:
        for fault in faults(case.run(moments=False).disk.call_names, reads_return=bool(case.memory_bytes)):
            inject(case, fault, explorer)
    finally:
        tally.add(explorer.tally)


def main() -> int:
    """Read the arguments and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--all", action="store_true", help="the written histories first, in full")
    parser.add_argument("--history", choices=WRITTEN, metavar="NAME", action="append", help="first this one, in full")
    parser.add_argument("--only", choices=KINDS, action="append", help="this kind alone; may be given twice")
    arguments = parser.parse_args()
    logging.disable(logging.CRITICAL)
    campaign = Campaign(arguments.only or list(KINDS))
    deadline = time.monotonic() + arguments.seconds
    try:
        campaign.run_written(WRITTEN if arguments.all else arguments.history or ())
        if arguments.rounds is None:
            signal.signal(signal.SIGALRM, signal.default_int_handler)
            signal.setitimer(signal.ITIMER_REAL, max(deadline - time.monotonic(), 0) + LAST_HISTORY_SECONDS)
        campaign.run_random(arguments.seed, deadline, arguments.rounds)
        signal.setitimer(signal.ITIMER_REAL, 0)
    except KeyboardInterrupt:
        print("interrupted" if time.monotonic() < deadline else "the last history is not finished")
    print(campaign.closing_lines(arguments.seed))
    return 1 if campaign.failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
