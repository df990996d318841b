"""What is tried of a batch that found no room as a whole: smaller and smaller parts of it, in order. Pure.

1. A part that is refused is halved. A single append that is refused is given up, and with it every one of the batch
   that is as large or larger: nothing is asked of the disk twice.
2. Truncates and deletes are never given up for an append's sake. Nothing overtakes: a call at a position of its own
   choice is given up behind one of the same queue that was, or it would leave a gap where that one belongs.
3. After `TRIES_MAX` parts the rest of the appends is given up: a full disk must not keep the writer busy.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator

from mrecordlog_async.engine.commands import Append, AppendGroup, Command

TRIES_MAX = 64


class Parts:
    """Hands out parts of a batch, and collects in `given_up` what none of them could store.

    in_line: who waits for space waits in order, so that behind the first append that is given up all others are.
    """

    def __init__(self, commands: Iterable[Command], *, in_line: bool) -> None:
        self.given_up: list[Command] = []
        self._in_line = in_line
        self._todo = [list(_units(commands))]
        self._part: list[Command] = []
        self._tries = TRIES_MAX
        self._too_large = sys.maxsize
        self._behind: set[str] = set()

    def next(self) -> list[Command]:
        """Return the next part to try; nothing when all of the batch was tried."""
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
        """Halve the last part, or give it up where it is one command. for_ever: it can never fit.

        When there were enough tries, a part of several is given up, but for its truncates and deletes.
        """
        part = self._part
        if len(part) > 1 and self._tries > 0:
            middle = len(part) // 2
            self._todo += [part[middle:], part[:middle]]
            return
        freeing = [command for command in part if command.frees_space]
        if 0 < len(freeing) < len(part):
            self._todo.append(freeing)
            part = [command for command in part if not command.frees_space]
        for command in part:
            self._give_up(command)
            if not command.frees_space:
                self._too_large = 0 if self._in_line and not for_ever else min(self._too_large, command.bytes)

    def one(self) -> Command | None:
        """Return the last part's command if there is but one."""
        return self._part[0] if len(self._part) == 1 else None

    def _is_tried(self, command: Command) -> bool:
        if command.withdrawn():
            return False
        if command.frees_space:
            return True
        is_behind = isinstance(command, Append) and command.position is not None and command.queue in self._behind
        if is_behind or self._tries <= 0 or command.bytes >= self._too_large:
            self._give_up(command)
            return False
        return True

    def _give_up(self, command: Command) -> None:
        self.given_up.append(command)
        if isinstance(command, Append):
            self._behind.add(command.queue)


def _units(commands: Iterable[Command]) -> Iterator[Command]:
    """Yield the commands that still wait, each record of a group as a group of its own."""
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
