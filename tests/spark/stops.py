"""Stop a drain's processes before a named step, so that a campaign can kill or cut the power exactly there.

The campaign writes a step's name to `wanted`. The first process that comes to it renames the file to `reached-PID` and
waits until it is killed, or until the campaign lets it continue by removing that file.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

PLACE = "DRAIN_STOPS"
"""The variable of the environment that names the directory."""

REACHED = "reached-"
POLL_SECONDS = 0.005


def step(name: str) -> None:
    """Wait here if the campaign wants this step. Called in a drain's processes."""
    place = Path(os.environ[PLACE])
    try:
        if (place / "wanted").read_text() != name:
            return
        reached = (place / "wanted").rename(place / f"{REACHED}{os.getpid()}")
    except FileNotFoundError:
        return  # nothing is wanted, or another process was first
    while reached.exists():
        time.sleep(POLL_SECONDS)


class Stops:
    """The campaign's side: stops the processes of one drain, one at a time."""

    def __init__(self, place: Path) -> None:
        place.mkdir(parents=True, exist_ok=True)
        self.place = place

    def want(self, name: str) -> None:
        """Stop the first process that comes to the step *name*."""
        temporary = self.place / "new"
        temporary.write_text(name)
        temporary.rename(self.place / "wanted")

    def wait(self, still: Callable[[], None]) -> int:
        """Wait until a process stopped; return its id. still: called meanwhile, and raises if waiting is useless."""
        while not (found := self._reached()):
            still()
            time.sleep(POLL_SECONDS)
        return int(found[0].name.removeprefix(REACHED))

    def release(self) -> None:
        """Let a stopped process continue, and want nothing any more."""
        for path in (self.place / "wanted", *self._reached()):
            path.unlink(missing_ok=True)

    def _reached(self) -> list[Path]:
        return sorted(self.place.glob(f"{REACHED}*"))
