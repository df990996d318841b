"""The sleep of the writer: who wakes it, and when its first case takes a turn instead.

| the writer | what waits is stored by | `wake` |
|---|---|---|
| is awake | the writer: it looks again before it sleeps | does nothing |
| sleeps | `commit.small`, the first case, if it is a group and the only thing; else the writer | wakes it |
| is held: a small batch is in flight | either of them, after `release` | is remembered |

The writer's task and its first case take turns and never run next to each other: the positions of a batch follow from
the queues as the one before left them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class WriterSleep:
    """The place where the writer waits for calls. Everything here runs on the log's event loop.

    begin_small: begins to store a group while the writer sleeps, unless the policy does without. scheduled: the loop is
    about to call it. held: a group is in flight that way.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.begin_small: Callable[[], object] | None = None
        self.scheduled = False
        self.held = False
        self._loop = loop
        # Not a flag: a writer that is cancelled in its sleep must count as awake at once, not when it runs next.
        self._sleeper: asyncio.Future[None] | None = None
        self._wanted = False  # somebody wanted to wake the writer while it was held

    async def wait(self) -> None:
        """Sleep until `wake`."""
        self._sleeper = self._loop.create_future()
        try:
            await self._sleeper
        finally:
            self._sleeper = None

    def is_asleep(self) -> bool:
        """Return whether the writer sleeps and was not woken."""
        return self._sleeper is not None and not self._sleeper.done()

    def wake(self) -> None:
        """Wake the writer if it sleeps, or once the group in flight is applied."""
        if self.held:
            self._wanted = True
        elif self._sleeper is not None and not self._sleeper.done():
            self._sleeper.set_result(None)

    def group_waits(self) -> None:
        """Have the first case tried on the group that waits, once the callers of this turn have joined it."""
        if self.begin_small is None:
            self.wake()
        elif not self.held and not self.scheduled and self.is_asleep():
            self.scheduled = True
            self._loop.call_soon(self.begin_small)

    def begins(self) -> bool:
        """Return whether the first case may begin. It calls this first, when the loop calls it."""
        self.scheduled = False
        return not self.held and self.is_asleep()

    def leave_to_writer(self) -> None:
        """Have `release` wake the writer: it must store what its first case could not."""
        self._wanted = True

    def release(self, something_waits: bool) -> None:
        """Let the writer be woken again. What waits is tried as its first case if nobody wanted to wake it."""
        self.held = False
        if self._wanted:
            self._wanted = False
            self.wake()
        elif something_waits:
            self.group_waits()

    def fail(self, error: BaseException) -> None:
        """Have the writer, which sleeps, raise *error*."""
        assert self._sleeper is not None
        self.held = self._wanted = False
        self._sleeper.set_exception(error)
