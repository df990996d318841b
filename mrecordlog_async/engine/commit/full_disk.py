"""A batch that the disk refused as a whole is stored in smaller and smaller parts, in order. The rest waits or fails.

1. A part that is refused is halved. A single append that is refused is dropped, and so is every append of the batch
   that is as large or larger: the disk is never asked for the same space twice.
2. Truncates and deletes are never dropped because an append was refused. No call overtakes another: an append that
   names its position is dropped after an earlier one to the same queue was, or it would leave a gap in its place.
   `Admission` says where the order of calls is decided.
3. After `TRIES_MAX` parts the remaining appends are dropped: a full disk must not keep the writer busy.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator

from mrecordlog_async.engine.commit.batch import Roll
from mrecordlog_async.engine.commit.disk_space import is_full
from mrecordlog_async.engine.commit.storing import BatchStore
from mrecordlog_async.engine.commit.upkeep import LogParts, Upkeep
from mrecordlog_async.engine.intake.commands import AppendGroup, AppendRecords, Command, Reserve
from mrecordlog_async.errors import LogFullError

TRIES_MAX = 64
"""Parts of one batch that are written, or refused, before its remaining appends are dropped."""


class FullDisk:
    """Stores what a full disk allows of a batch. Runs in the writer's task.

    part: the commands that are being stored, while there are any; whether they are is unknown if the log fails.
    """

    def __init__(self, store: BatchStore, parts: LogParts, upkeep: Upkeep) -> None:
        self.part: list[Command] = []
        self._store = store
        self._admission = parts.admission
        self._counters = parts.counters
        self._upkeep = upkeep
        self._parts: Parts | None = None  # of the batch in flight

    async def store(self, commands: list[Command], refusal: OSError | LogFullError, since: float) -> int:
        """Store in parts and in order what the space allows; refuse the rest, or have it wait.

        Truncates and deletes are stored in the reserve.

        Args:
            commands: The batch.
            refusal: Why the disk refused the whole of it.
            since: When its oldest call was made.

        Returns:
            The charge of the commands that wait again. What the batch took from `Admission` besides counts negative.
        """
        self._counters.io_errors += isinstance(refusal, OSError)
        waits = self._admission.limits.on_full == "wait"
        parts = self._parts = Parts(commands, in_line=waits)
        if not is_full(refusal):
            parts.give_up_appends()
        # In order: each part is planned on what the parts before it have stored.
        while part := parts.next():
            parts.withdraw_given_up(self._is_repeat)
            self.part = part
            if (again := await self._store_part(part)) is not None:
                refusal = again
                self._note_refused(parts, refusal)
        parts.withdraw_given_up(self._is_repeat)
        # From here on nothing is in flight: what was given up is not on the disk.
        self._parts, self.part = None, []
        self._upkeep.state.disk_refused()
        given_up = parts.given_up
        if not waits or not is_full(refusal):
            # Appends at fixed positions that wait for the next batch would leave a gap in the place of what fails here.
            behind = self._admission.take_behind(parts.behind)
            self._store.refuse(given_up + behind, refusal)
            return -sum(command.bytes for command in behind)
        waiting = joined(command for command in given_up if _may_wait(command))
        self._store.refuse([command for command in given_up if not _may_wait(command)], refusal)
        if waiting:
            self._admission.park(waiting, since)
            self._upkeep.timers.arm_retry(self._upkeep.retry_parked)
        return sum(command.bytes for command in waiting)

    def not_written(self) -> list[Command]:
        """Return the commands of the batch in flight of which nothing is on the disk, but for those in `part`."""
        return self._parts.not_written() if self._parts is not None else []

    def give_up(self) -> None:
        """Forget the batch in flight: the log has failed."""
        self._parts, self.part = None, []

    async def _store_part(self, commands: list[Command]) -> OSError | LogFullError | None:
        """Store *commands* as one batch. Returns why the disk refused it, or None."""
        batch = self._store.plan(commands)
        self._store.finish_at_once(batch)
        if not batch.records and not batch.must_sync:
            self._store.finish_calls(batch.outcomes)
            return None
        try:
            # Without a roll for a full segment: the whole batch could have rolled, and was refused.
            result = await self._store.commit(batch, Roll.IF_SHARED)
        except (OSError, LogFullError) as refusal:
            return refusal
        await self._store.acknowledge(batch, result)
        return None

    def _is_repeat(self, command: Command) -> bool:
        """Acknowledge an append that repeats what is stored, which needs no space; return whether it was one."""
        if not isinstance(command, AppendRecords) or command.position is None:
            return False
        batch = self._store.plan([command])
        if not batch.duplicates and not batch.on_disk:
            return False
        self._store.finish_at_once(batch)
        return True

    def _note_refused(self, parts: Parts, refusal: OSError | LogFullError) -> None:
        """Have the refused part tried in halves. A call that an empty log could not store is refused for good."""
        command = parts.one()
        never = self._admission.capacity.never_fits
        error = never(command) if isinstance(command, AppendRecords | AppendGroup) else None
        parts.refused(for_ever=error is not None)
        if command is not None and error is not None:
            self._store.refuse([command], error)
        if not is_full(refusal):
            parts.give_up_appends()


class Parts:
    """Hands out parts of a batch, and collects in `given_up` what none of them could store. Pure.

    behind: the queues of the appends in `given_up`.
    in_line: appends wait for space in order, so all appends after the first one that is dropped are dropped too.
    """

    def __init__(self, commands: Iterable[Command], *, in_line: bool) -> None:
        self.given_up: list[Command] = []
        self._looked_at = 0  # how many of `given_up` were already checked
        self._in_line = in_line
        self._todo = [list(_units(commands))]
        self._part: list[Command] = []
        self._tries = TRIES_MAX
        self._too_large = sys.maxsize
        self.behind: set[str] = set()

    def next(self) -> list[Command]:
        """Return the next part to try; an empty list once all of the batch was tried."""
        while self._todo:
            self._part = [command for command in self._todo.pop() if self._is_tried(command)]
            if self._part:
                self._tries -= 1
                return joined(self._part)
        return []

    def give_up_appends(self) -> None:
        """Try nothing more that needs space."""
        self._too_large = 0

    def refused(self, *, for_ever: bool = False) -> None:
        """Halve the last part, or drop it if it is a single command.

        After `TRIES_MAX` parts, a part of several commands is dropped except for its truncates and deletes.

        Args:
            for_ever: The part can never fit, whatever is removed from the disk.
        """
        part = self._part
        # Of commands that use the reserve, an attach can be refused where a truncate still fits: halved in any case.
        all_freeing = all(_uses_reserve(command) for command in part)
        if len(part) > 1 and (self._tries > 0 or all_freeing):
            middle = len(part) // 2
            self._todo += [part[middle:], part[:middle]]  # taken from the end: the first half comes first
            return
        freeing = [command for command in part if _uses_reserve(command)]
        if 0 < len(freeing) < len(part):
            self._todo.append(freeing)
            part = [command for command in part if not _uses_reserve(command)]
        for command in part:
            self._give_up(command)
            if not _uses_reserve(command):
                self._too_large = 0 if self._in_line and not for_ever else min(self._too_large, command.bytes)

    def withdraw_given_up(self, is_done: Callable[[Command], bool]) -> None:
        """Withdraw from `given_up`, before the next part is stored, what *is_done* by what the log has so far.

        An append that repeats a stored record is. A later append of an equal record does not make it one.
        """
        self.given_up[self._looked_at :] = [each for each in self.given_up[self._looked_at :] if not is_done(each)]
        self._looked_at = len(self.given_up)

    def not_written(self) -> list[Command]:
        """Return what was dropped or not tried yet: nothing of it is on the disk, whatever became of the last part."""
        return [*self.given_up, *(command for part in self._todo for command in part)]

    def one(self) -> Command | None:
        """Return the last part's command if it has exactly one."""
        return self._part[0] if len(self._part) == 1 else None

    def _is_tried(self, command: Command) -> bool:
        if command.withdrawn():
            return False
        if _uses_reserve(command):
            return True
        is_behind = isinstance(command, AppendRecords) and command.position is not None and command.queue in self.behind
        if is_behind or self._tries <= 0 or command.bytes >= self._too_large:
            self._give_up(command)
            return False
        return True

    def _give_up(self, command: Command) -> None:
        self.given_up.append(command)
        if isinstance(command, AppendRecords):
            self.behind.add(command.queue)
        elif isinstance(command, AppendGroup):
            self.behind.update(command.queues)


def _uses_reserve(command: Command) -> bool:
    return command.reserve is not Reserve.NOTHING


def _may_wait(command: Command) -> bool:
    return isinstance(command, AppendRecords | AppendGroup) and not command.withdrawn()


def _units(commands: Iterable[Command]) -> Iterator[Command]:
    """Yield the commands whose callers still wait, each record of a group as its own group."""
    for command in commands:
        if command.withdrawn():
            continue
        if isinstance(command, AppendGroup):
            yield from command.each()
        else:
            yield command


def joined(units: Iterable[Command]) -> list[Command]:
    """Put neighbouring single records into one group again."""
    commands: list[Command] = []
    for unit in units:
        if isinstance(unit, AppendGroup):
            last = commands[-1] if commands else None
            if not isinstance(last, AppendGroup):
                commands.append(last := AppendGroup())
            last.add(unit)
        else:
            commands.append(unit)
    return commands
