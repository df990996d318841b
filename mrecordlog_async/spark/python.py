"""The Python of Spark's workers, when they run on this machine.

Spark puts zips of pyspark's sources first on a worker's import path. They contain no bytecode, so every process
recompiles pyspark: 0.6 s instead of 0.16 s, once for each streaming query (its reader has its own process) and once for
each pool of workers. With the same pyspark installed as a package the zips are not needed. None of Spark's settings
removes them, so PYSPARK_PYTHON becomes a script that removes them from the path. Measured: a drain of 1 M records takes
1.6 s instead of 2.25 s.
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

    local: workers run on this machine, so that our paths are valid for them. Sets PYSPARK_PYTHON in this process if it
    was not set: otherwise workers use the first python3 on PATH, which may lack pyarrow and this package.
    """
    if "PYSPARK_PYTHON" not in os.environ:
        os.environ["PYSPARK_PYTHON"] = _without_zips() if local and "SPARK_HOME" not in os.environ else sys.executable
    return os.environ["PYSPARK_PYTHON"]


def wrapper(python: str) -> str:
    """Return the script that replaces *python*."""
    return _WRAPPER.format(python=shlex.quote(python))


def _without_zips() -> str:
    """Return the script, or this Python itself if no script can be written: slower to start, otherwise the same."""
    try:
        return str(stand_in("python", wrapper(sys.executable)) / "python")
    except OSError:
        return sys.executable
