"""The Python of Spark's workers, when they run on this machine.

Spark puts zips of pyspark's sources first on a worker's import path. They contain no bytecode, so every process
recompiles pyspark and starts in 0.6 s instead of 0.16 s: once for each streaming query, whose reader has its own
process, and once for each pool of workers. If the same pyspark is installed as a package, the zips are not needed. No
setting of Spark removes them, so PYSPARK_PYTHON becomes a script that takes them off the path. Measured: a drain of 1 M
records takes 1.6 s instead of 2.25 s.

The script also starts this package's daemon in place of pyspark's, so that no worker prints a traceback when Java
closes its connection. Spark's setting for that does not reach the workers that plan a query.
"""

from __future__ import annotations

import os
import shlex
import sys

from mrecordlog_async.spark.shims import install_shim

_WRAPPER = """#!/bin/sh
# Takes Spark's zips of pyspark off the path: the installed package has the same, compiled.
# Its jar holds no Python; in Python 3.13, the search for data sources fails on it.
set -f
IFS=:
kept=
for entry in $PYTHONPATH; do
    case $entry in
    */python/lib/pyspark.zip | */python/lib/py4j-*-src.zip | */jars/spark-core_*.jar) ;;
    *) kept=$kept:$entry ;;
    esac
done
PYTHONPATH=${{kept#:}}
export PYTHONPATH
# The workers that plan a query are started by pyspark's own daemon whatever the settings say.
if [ "$1 $2" = "-m pyspark.daemon" ]; then
    shift 2
    set -- -m mrecordlog_async.spark.worker_daemon "$@"
fi
exec {python} "$@"
"""


def ensure_python(*, local: bool) -> str:
    """Make sure that workers run this Python, and return its command. Call it before the first SparkSession.

    Sets PYSPARK_PYTHON in this process if it was not set: otherwise workers use the first python3 on PATH, which may
    lack pyarrow and this package. local: workers run on this machine, so that its paths are valid for them.
    """
    if "PYSPARK_PYTHON" not in os.environ:
        os.environ["PYSPARK_PYTHON"] = _without_zips() if local and "SPARK_HOME" not in os.environ else sys.executable
    return os.environ["PYSPARK_PYTHON"]


def wrapper(python: str) -> str:
    """Return the script that replaces *python*."""
    return _WRAPPER.format(python=shlex.quote(python))


def _without_zips() -> str:
    """Return the script, or this Python itself if the script cannot be written: it only starts more slowly."""
    try:
        return str(install_shim("python", wrapper(sys.executable)) / "python")
    except OSError:
        return sys.executable
