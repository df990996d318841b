"""Limits of `serve` that follow from the machine: of memory and of the disk. Each is printed with what it follows from.

Both are computed at every start: other programs share the volume, and a container may get more memory.
"""

from __future__ import annotations

import logging
import os

from mrecordlog_async.cli.output.text import size
from mrecordlog_async.cli.shell.exit_codes import UsageError
from mrecordlog_async.options import DISK_BYTES, MIB
from mrecordlog_async.support.disk_errors import is_refusal
from mrecordlog_async.support.machine import (
    HELD,
    LEFT_BYTES_MIN,
    MEMORY_BYTES,
    PROCESS_BYTES,
    SERVICE_BYTES_MIN,
    MachineMemory,
    default_memory_bytes,
    machine_memory,
)

logger = logging.getLogger("mrecordlog_async.serve")

DISK_SHARE = 0.8
DISK_SHARE_MIN = 64 * MIB
"""A volume that is full already must not give a limit that no log can work with: then the disk itself refuses."""


def memory_share(wanted: int | None, held_bytes: int, disk_bytes: int | None) -> int:
    """Return the limit of the memory of records, and log where it comes from.

    Args:
        wanted: The limit that was set; None for the default.
        held_bytes: All that clients can fill besides, whatever the log holds: waiting records, bodies and responses.
        disk_bytes: The limit of the disk, where that of memory is not to be above it.

    Raises:
        UsageError: The machine has too little memory for the service, and *wanted* is None.
    """
    machine, besides = machine_memory(), PROCESS_BYTES + held_bytes
    if wanted is None and machine is not None:
        _refuse_too_little(machine, besides)
    limit = default_memory_bytes(machine, held_bytes) if wanted is None else wanted
    of = "memory of unknown size" if machine is None else f"{size(machine.bytes)} ({machine.source})"
    if wanted is not None:
        why = f"as set, of {of}"
    elif limit == MEMORY_BYTES:
        why = f"the largest default, of {of}"
    else:
        why = f"half of what the process and its budgets ({size(besides)}) leave of {of}"
    if disk_bytes is not None and disk_bytes < limit:
        limit, why = disk_bytes, "the disk limit, which is less than the memory"
    facts = {"event": "memory_limit", "memory_bytes": limit, "machine_bytes": machine and machine.bytes}
    text = "memory limit %s: %s; set --memory-bytes to change it"
    logger.info(text, size(limit), why, extra={"facts": facts})
    if machine is not None and limit + besides > machine.bytes:
        logger.warning(
            "the process and its budgets (%s) and the memory limit (%s) are more than the memory (%s): the kernel may "
            "end the process; lower --memory-bytes, or give it more",
            *(size(besides), size(limit), of),
            extra={"facts": facts | {"event": "little_memory", "besides_bytes": besides}},
        )
    return limit


def _refuse_too_little(machine: MachineMemory, besides: int) -> None:
    needed = max(SERVICE_BYTES_MIN, besides + LEFT_BYTES_MIN)
    if machine.bytes < needed:
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in HELD)
        raise UsageError(
            f"the service needs {size(needed)} of memory and has {size(machine.bytes)} ({machine.source}); give it "
            f"more, lower {flags} if they were set, or set --memory-bytes"
        )


def disk_share(wanted: int | None, directory: str) -> int:
    """Return the limit of the disk, and log where it comes from.

    Args:
        wanted: The limit that was set; None for a part of what is free on the volume and what the log takes.
        directory: The directory of the log.
    """
    if wanted is not None:
        facts = {"event": "disk_limit", "disk_bytes": wanted}
        logger.info("disk limit %s: as set", size(wanted), extra={"facts": facts})
        return wanted
    place = os.path.abspath(directory)
    while not os.path.exists(place):
        place = os.path.dirname(place)
    try:
        found = os.statvfs(place)
    except OSError as error:
        if not is_refusal(error):
            raise
        logger.warning("the volume does not report its space: the disk limit is %s; set --disk-bytes", size(DISK_BYTES))
        return DISK_BYTES
    free = found.f_bavail * found.f_frsize
    taken = sum(entry.stat().st_blocks * 512 for entry in _files_in(directory))
    share = max(int(DISK_SHARE * (free + taken)), DISK_SHARE_MIN)
    why = "80 % of" if share > DISK_SHARE_MIN else "the least limit, more than 80 % of"
    logger.info(
        "disk limit %s: %s the %s that are free on the volume plus the %s that the log takes; set --disk-bytes to "
        "change it, and on each of several logs on one volume",
        *(size(share), why, size(free), size(taken)),
        extra={"facts": {"event": "disk_limit", "disk_bytes": share, "free_bytes": free, "taken_bytes": taken}},
    )
    return share


def _files_in(directory: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(directory) as entries:
            return [entry for entry in entries if entry.is_file(follow_symlinks=False)]
    except FileNotFoundError:
        return []
