"""Share of the machine's processors that other programs took while something was measured."""

from __future__ import annotations

import os
import resource
from types import TracebackType

IDLE_FIELDS = (3, 4)
"""Of the first line of /proc/stat: idle, and waiting for a disk. All others, the hypervisor's included, are taken."""
CPU_FIELDS = 8
"""user, nice, system, idle, iowait, irq, softirq, steal; what follows is counted in these too."""


class Neighbors:
    """A context around a measurement; afterwards, `share` of all processors' time was taken by others.

    This process and its children that have ended are not others. 0 where the system does not report it.
    """

    def __init__(self) -> None:
        self.share = 0.0
        self._begun = (0.0, 0.0, 0.0)

    def __enter__(self) -> Neighbors:
        self._begun = _now()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        passed, taken, own = (now - then for now, then in zip(_now(), self._begun, strict=True))
        self.share = max(taken - own, 0.0) / passed if passed > 0 else 0.0


def _now() -> tuple[float, float, float]:
    """Return the seconds of all processors, those that were taken, and those of this process and its children."""
    try:
        with open("/proc/stat", encoding="ascii") as file:
            fields = [int(field) for field in file.readline().split()[1 : CPU_FIELDS + 1]]
    except OSError:
        return 0.0, 0.0, 0.0
    tick = os.sysconf("SC_CLK_TCK")
    used = [resource.getrusage(whose) for whose in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    own = sum(usage.ru_utime + usage.ru_stime for usage in used)
    return sum(fields) / tick, (sum(fields) - sum(fields[at] for at in IDLE_FIELDS)) / tick, own
