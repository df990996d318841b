"""The few loops that are compiled, each with a twin in Python next to it that does the same.

`_loops.pyx` has the loops and `twins.py` their twins; that of the append of a single record is in
`engine.intake.admission`. The rest of the package does not know which of both runs. The twins run if nothing was
compiled when the package was installed, if `MRECORDLOG_PURE=1` is set, or if the compiled file was built from another
source.

Build it in a checkout with `python hatch_build.py`.
"""

from __future__ import annotations

import os
import sys
import zlib
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

_ROOM = Path(__file__).parent


def _built(name: str) -> ModuleType | str:
    """Import an extension, or return why it does not run."""
    if os.environ.get("MRECORDLOG_PURE", "0") not in ("", "0"):
        return "MRECORDLOG_PURE is set"
    try:
        module = import_module(f"mrecordlog_async.compiled.{name}")
    except ImportError as error:  # also of an interpreter that it does not support, such as a subinterpreter
        try:
            return (_ROOM / "why_pure.txt").read_text().strip()
        except OSError:
            return "it was installed without" if isinstance(error, ModuleNotFoundError) else str(error)
    source = _ROOM / f"{name}.pyx"  # in a checkout; not in a wheel
    if source.exists() and f"{zlib.crc32(source.read_bytes()):08x}" != module.SOURCE:
        why = f"{name} was built from another source: build it again with `python hatch_build.py`"
        print(f"mrecordlog_async runs without compiled loops: {why}", file=sys.stderr)
        return why
    return module


_loops = _built("_loops")

WHY_PURE = _loops if isinstance(_loops, str) else ""
"""The reason if the twins run; empty if the compiled loops do."""

LOOPS = None if isinstance(_loops, str) else _loops
"""The extension, for `engine.intake.admission`; None if the twins run."""

BUILD = "pure" if WHY_PURE else "compiled"
"""The build that runs: `compiled` or `pure`."""

_jobs = _built("_jobs") if sys.platform == "linux" and os.environ.get("MRECORDLOG_DISK_THREAD") != "0" else "it is off"

new_jobs: Callable[[], Any] | None = None if isinstance(_jobs, str) else _jobs.Jobs
"""Makes a queue for the log's thread that makes writes, too, where it was compiled: `engine.commit.thread.WritingJobs`.

`MRECORDLOG_DISK_THREAD=0` turns it off alone.
"""

if TYPE_CHECKING or isinstance(_loops, str):
    from mrecordlog_async.compiled.twins import (
        pairs_of_run,
        payloads_of_run,
        records_of_run,
        runs_in_places,
    )
else:
    pairs_of_run = _loops.pairs_of_run
    payloads_of_run = _loops.payloads_of_run
    records_of_run = _loops.records_of_run
    runs_in_places = _loops.runs_in_places

__all__ = [
    "BUILD",
    "LOOPS",
    "WHY_PURE",
    "new_jobs",
    "pairs_of_run",
    "payloads_of_run",
    "records_of_run",
    "runs_in_places",
]
