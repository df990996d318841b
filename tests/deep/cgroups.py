"""A real cgroup with a limit of memory, v1 or v2, for processes that must live in it. Needs root."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

ROOT = Path("/sys/fs/cgroup")


def why_not() -> str:
    """Return why no cgroup can be made here; "" if one can."""
    try:
        with Cgroup(256 << 20) as made:
            return "" if made.limit_bytes == 256 << 20 else f"{made.path} has no limit"
    except OSError as error:
        return f"no cgroup with a limit of memory can be made: {error}"


class Cgroup:
    """A cgroup below the root of its hierarchy. As a context; every process in it must have ended before the end.

    kills: how often the kernel killed a process in it because of its limit.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._v2 = (ROOT / "cgroup.controllers").exists()
        parent = ROOT if self._v2 else ROOT / "memory"
        self.path = parent / f"mrecordlog_{os.getpid()}_{time.monotonic_ns()}"
        self._wanted = limit_bytes

    def __enter__(self) -> Self:
        if self._v2 and "memory" not in (ROOT / "cgroup.subtree_control").read_text().split():
            (ROOT / "cgroup.subtree_control").write_text("+memory")
        self.path.mkdir()
        try:
            self._limit_file.write_text(str(self._wanted))
            # A process that is swapped out is slow, not killed: that is not what these tests are about.
            swap = self.path / ("memory.swap.max" if self._v2 else "memory.memsw.limit_in_bytes")
            if swap.exists():
                swap.write_text("0" if self._v2 else str(self._wanted))
        except OSError:
            self.path.rmdir()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        until = time.monotonic() + 10
        while True:
            try:
                return self.path.rmdir()
            except OSError:  # the kernel is still putting away its last process
                if time.monotonic() > until:
                    raise
                time.sleep(0.05)

    @property
    def _limit_file(self) -> Path:
        return self.path / ("memory.max" if self._v2 else "memory.limit_in_bytes")

    @property
    def limit_bytes(self) -> int:
        return int(self._limit_file.read_text())

    @property
    def kills(self) -> int:
        found = re.search(r"^oom_kill (\d+)", (self.path / self._events).read_text(), re.MULTILINE)
        assert found is not None
        return int(found[1])

    @property
    def _events(self) -> str:
        return "memory.events" if self._v2 else "memory.oom_control"

    def command(self, command: Sequence[str]) -> list[str]:
        """Return *command* so that it runs in the cgroup, from its first instruction on."""
        return ["sh", "-c", f'echo $$ > {self.path}/cgroup.procs && exec "$@"', "sh", *command]
