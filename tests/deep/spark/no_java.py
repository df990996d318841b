"""A program that a test runs without Java on PATH: read a log as a table, drain it, print which Java was used.

The drain would run forever: after its first batch, the whole process group gets SIGINT, as by Ctrl-C.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys

from mrecordlog_async.spark.drain.command import Stop
from mrecordlog_async.spark.drain.job import run_drain
from mrecordlog_async.spark.session import spark_session
from mrecordlog_async.spark.settings.drain_job import DrainJob


def main(url: str, place: str) -> None:
    assert shutil.which("java") is None
    stop = Stop()
    session = spark_session("no java", master="local[2]", settings={"spark.ui.enabled": "false"})
    read = session.read.format("mrecordlog").option("servers", url).load().count()
    stop.install()
    job = DrainJob(url, f"{place}/out", f"{place}/checkpoint", every_seconds=0.2)
    summary = run_drain(session, job, lambda line: os.killpg(0, signal.SIGINT) if "100 rec" in line else None, stop)
    session.stop()
    found = {"java": os.environ["JAVA_HOME"], "read": read, "drained": summary.records, "left": summary.left}
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
