"""The Python of Spark's workers, when they run on this machine.

Spark puts zips of pyspark's sources in front of everything that a worker imports. They hold no bytecode, so every
process compiles pyspark again: 0.6 s instead of 0.16 s, once for each streaming query (its reader lives in a process
of its own) and once for each pool of workers. With the same pyspark installed as a package the zips are not needed.
No setting of Spark removes them, so PYSPARK_PYTHON becomes a script that takes them off the path. Measured: a drain
of 1 M records takes 1.6 s instead of 2.25 s.
"""

from __future__ import annotations

import os
import shlex
import sys

from mrecordlog_async.spark.shims import stand_in

_WRAPPER = """#!/bin/sh
# Takes Spark's zips of pyspark off the path: the installed package has the same, compiled.
set -f
IFS=:
kept=
for entry in $PYTHONPATH; do
    case $entry in
    */python/lib/pyspark.zip | */python/lib/py4j-*-src.zip) ;;
    *) kept=$kept:$entry ;;
    esac
done
PYTHONPATH=${{kept#:}}
export PYTHONPATH
exec {python} "$@"
"""


def ensure_python(*, local: bool) -> str:
    """Make sure that workers run this Python, and return what starts it; call it before the first SparkSession.

    local: workers run on this machine, so that a path of ours means something to them. Sets PYSPARK_PYTHON in this
    process where it was not set: otherwise workers take the first python3 on PATH, which may lack pyarrow and this
    package.
    """
    if "PYSPARK_PYTHON" not in os.environ:
        os.environ["PYSPARK_PYTHON"] = _without_zips() if local and "SPARK_HOME" not in os.environ else sys.executable
    return os.environ["PYSPARK_PYTHON"]


def wrapper(python: str) -> str:
    """Return the script that stands in for *python*."""
    return _WRAPPER.format(python=shlex.quote(python))


def _without_zips() -> str:
    """Return the script, or this Python itself where no script can be written: slower to start, otherwise the same."""
    try:
        return str(stand_in("python", wrapper(sys.executable)) / "python")
    except OSError:
        return sys.executable
