"""A batch that the disk refused, in smaller and smaller parts, in order. Pure: `Writer` stores them.

1. A part that is refused is halved. A single append that is refused is dropped, and so is every append of the batch
   that is as large or larger: the disk is never asked for the same space twice.
2. Truncates and deletes are never dropped because an append was refused. No call overtakes another: an append that
   names its position is dropped after an earlier one to the same queue was, or it would leave a gap in its place.
   `Admission` says where the order of calls is decided.
3. After `TRIES_MAX` parts the remaining appends are dropped: a full disk must not keep the writer busy.

What is dropped waits or fails.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator

from mrecordlog_async.engine.intake.commands import AppendGroup, AppendRecords, Command, Reserve

TRIES_MAX = 64
"""Parts of one batch that are written, or refused, before its remaining appends are dropped."""


class Parts:
    """Hands out parts of a batch, and collects in `given_up` what none of them could store. Pure.

    behind: the queues of the appends in `given_up`.
    in_line: appends wait for space in order, so all appends after the first one that is dropped are dropped too.
    """

    def __init__(self, commands: Iterable[Command], *, in_line: bool) -> None:
        self.given_up: list[Command] = []
        self._may_repeat: set[Command] = set()  # of `given_up`, those that were not checked yet
        self._changed: set[str | None] = set()  # the queues that calls before the next one change: these wait, too
        self._in_line = in_line
        self._todo = [list(_units(commands))]
        self._part: list[Command] = []
        self._tries = TRIES_MAX
        self._too_large = sys.maxsize
        self.behind: set[str] = set()

    def next(self) -> list[Command]:
        """Return the next part to try; an empty list once all of the batch was tried."""
        while self._todo:
            self._changed.clear()
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
        self._changed.clear()
        freeing = [command for command in part if _uses_reserve(command)]
        tries_freeing = 0 < len(freeing) < len(part)
        if tries_freeing:
            self._todo.append(freeing)
        for command in part:
            if not _uses_reserve(command):
                self._give_up(command)
                self._too_large = 0 if self._in_line and not for_ever else min(self._too_large, command.bytes)
            elif tries_freeing:
                self._note_change(command)
            else:
                self._give_up(command)

    def withdraw_given_up(self, is_done: Callable[[Command], bool]) -> None:
        """Withdraw from `given_up`, before the next part is stored, what *is_done* by what the log has so far.

        An append that repeats a stored record is, unless a call before it that is still to be stored may delete this
        record. A later append of an equal record does not make it one.
        """
        self.given_up = [each for each in self.given_up if each not in self._may_repeat or not is_done(each)]
        self._may_repeat.clear()

    def one(self) -> Command | None:
        """Return the last part's command if it has exactly one."""
        return self._part[0] if len(self._part) == 1 else None

    def _is_tried(self, command: Command) -> bool:
        if command.withdrawn():
            return False
        if _uses_reserve(command):
            self._note_change(command)
            return True
        is_behind = isinstance(command, AppendRecords) and command.position is not None and command.queue in self.behind
        if is_behind or self._tries <= 0 or command.bytes >= self._too_large:
            self._give_up(command)
            return False
        return True

    def _note_change(self, command: Command) -> None:
        self._changed.add(getattr(command, "queue", None))  # a rule and a sync have none

    def _give_up(self, command: Command) -> None:
        self.given_up.append(command)
        if isinstance(command, AppendRecords):
            self.behind.add(command.queue)
            if command.queue not in self._changed:
                self._may_repeat.add(command)
        elif isinstance(command, AppendGroup):
            self.behind.update(command.queues)


def _uses_reserve(command: Command) -> bool:
    return command.reserve is not Reserve.NOTHING


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
