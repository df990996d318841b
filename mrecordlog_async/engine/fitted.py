"""Limits of a log that fit the machine: finds the limit of memory that its user did not set.

It is known before the log is read where the oldest records leave memory. Where they do not, a log that holds more than
the machine's default keeps 4 GiB, which was the default everywhere: with less, each of its appends would be refused.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

from mrecordlog_async.options import MIB, Limits
from mrecordlog_async.support.machine import MEMORY_BYTES, default_memory_bytes, machine_memory

logger = logging.getLogger("mrecordlog_async")


class FittedLimits:
    """Limits of the log in *directory*, which has a limit of memory in any case.

    limits: as they were set, with that limit. exceeded: called on the log's thread once the log holds more while it is
    read; returns the limit that it has from then on. None if the limit is as it is.
    """

    def __init__(self, limits: Limits, directory: str) -> None:
        self.limits = limits
        self.exceeded: Callable[[], int] | None = None
        if limits.memory_bytes is not None:
            return
        self._directory, self._machine = directory, machine_memory()
        size = default_memory_bytes(self._machine)
        if limits.beyond_memory == "disk":
            size = min(size, limits.disk_bytes)
        elif size < MEMORY_BYTES:
            self.exceeded = self._keep_more
        self.limits = replace(limits, memory_bytes=size)

    def _keep_more(self) -> int:
        if self.limits.memory_bytes != MEMORY_BYTES:  # otherwise the log is read again
            assert self.limits.memory_bytes is not None and self._machine is not None
            logger.warning(
                "%s: the log holds more than %d MiB, the default memory limit for %d MiB (%s): its limit stays 4 GiB, "
                "and the kernel may end the process; set Limits(memory_bytes=...) to what records may take, or "
                'beyond_memory="disk" to have the oldest ones leave memory',
                *(self._directory, self.limits.memory_bytes // MIB, self._machine.bytes // MIB, self._machine.source),
                extra={"facts": {"event": "above_memory", "machine_bytes": self._machine.bytes}},
            )
            self.limits = replace(self.limits, memory_bytes=MEMORY_BYTES)
        return MEMORY_BYTES
