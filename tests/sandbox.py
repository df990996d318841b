"""A process in which the kernel refuses chosen system calls, as a sandbox or an old file system does: a seccomp filter.

`refuse` cannot be undone; it applies to this process, to the threads and to the processes that it starts later.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

MACHINE = os.uname().machine
IS_SUPPORTED = sys.platform == "linux" and MACHINE in ("x86_64", "aarch64")

PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS, SECCOMP_MODE_FILTER = 22, 38, 2
LOAD, EQUAL, RETURN = 0x20, 0x15, 0x06  # of BPF: load 32 bits, jump if equal, return
ALLOW, ERRNO = 0x7FFF0000, 0x00050000
NUMBER_AT, ARGUMENTS_AT = 0, 16  # offsets in struct seccomp_data


class Call(NamedTuple):
    """A system call: its numbers on x86_64 and aarch64, -1 where it does not exist.

    equal, unequal: only calls of which these arguments, by their index, have the value, or another one.
    """

    x86_64: int
    aarch64: int
    equal: Mapping[int, int] = MappingProxyType({})
    unequal: Mapping[int, int] = MappingProxyType({})


F_SETFL, F_SETSIG, F_SETLEASE, F_DUPFD_CLOEXEC, RWF_DSYNC = 4, 10, 1024, 1030, 2

CALLS = {
    "chown": Call(93, 55),  # fchown
    "direct": Call(72, 25, {1: F_SETFL}),
    "direct writes": Call(328, 287, {2: 1, 5: 0}, {3: 0}),  # pwritev2 of one buffer behind the beginning of a file
    "durable": Call(328, 287, {5: RWF_DSYNC}),
    "durable later": Call(328, 287, {5: RWF_DSYNC}, {3: 0}),  # not the one that finds out whether the call exists
    "duplicate": Call(72, 25, {1: F_DUPFD_CLOEXEC}),
    "eventfd2": Call(290, 19),
    "fadvise64": Call(221, 223),
    "fallocate": Call(285, 47),
    "fstatfs": Call(138, 44),
    "io_destroy": Call(207, 1),
    "io_getevents": Call(208, 4),
    "io_setup": Call(206, 0),
    "io_submit": Call(209, 2),
    "lease": Call(72, 25, {1: F_SETLEASE}),
    "lease signal": Call(72, 25, {1: F_SETSIG}),
    "link": Call(86, -1),
    "linkat": Call(265, 37),
    "madvise": Call(28, 233),
    "prctl": Call(157, 167),
    "preadv2": Call(327, 286),
    "pwritev2": Call(328, 287),
    "statfs": Call(137, 43),
    "statx": Call(332, 291),
    "flock": Call(73, 32),
    "fdatasync": Call(75, 83),
    "fsync": Call(74, 82),
}


def refuse(*names: str, error: int) -> None:
    """Have the kernel refuse these calls of `CALLS` with *error* from now on."""
    program = b"".join(_rule(CALLS[name], error) for name in names) + _step(RETURN, ALLOW)
    held = ctypes.create_string_buffer(program)
    filtering = struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(held))
    library = ctypes.CDLL(None, use_errno=True)
    zeros = (ctypes.c_ulong(0),) * 3
    for arguments in (
        (PR_SET_NO_NEW_PRIVS, ctypes.c_ulong(1), *zeros),
        (PR_SET_SECCOMP, ctypes.c_ulong(SECCOMP_MODE_FILTER), ctypes.c_char_p(filtering), *zeros[1:]),
    ):
        if library.prctl(*arguments) != 0:
            raise OSError(ctypes.get_errno(), "the kernel takes no filter")


def _rule(call: Call, error: int) -> bytes:
    """Return the steps that refuse *call*, and go on after themselves for any other."""
    number = call.x86_64 if MACHINE == "x86_64" else call.aarch64
    if number < 0:
        return b""
    steps = _step(RETURN, ERRNO | error)
    for argument, value in call.equal.items():
        steps = _load(argument) + _skip_unless(value, steps)
    for argument, value in call.unequal.items():
        steps = _load(argument) + _step(EQUAL, value, equal=len(steps) // 8) + steps
    return _step(LOAD, NUMBER_AT) + _skip_unless(number, steps)


def _load(argument: int) -> bytes:
    return _step(LOAD, ARGUMENTS_AT + 8 * argument)


def _skip_unless(value: int, steps: bytes) -> bytes:
    return _step(EQUAL, value, unequal=len(steps) // 8) + steps


def _step(code: int, value: int, *, equal: int = 0, unequal: int = 0) -> bytes:
    return struct.pack("HBBI", code, equal, unequal, value)
