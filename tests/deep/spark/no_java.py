"""A program that a test runs without Java on PATH: read a log as a table, drain it, print which Java was used.

The drain would run forever: after its first batch, the whole process group gets SIGINT, as by Ctrl-C.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys

from mrecordlog_async.spark.drain_call import DrainOptions, DrainProgress, drain
from mrecordlog_async.spark.drain_command import Stop
from mrecordlog_async.spark.session import spark_session


def main(url: str, place: str) -> None:
    assert shutil.which("java") is None
    stop = Stop()
    session = spark_session("no java", master="local[2]", settings={"spark.ui.enabled": "false"})
    read = session.read.format("mrecordlog").option("servers", url).load().count()
    stop.install()

    def interrupt(progress: DrainProgress) -> None:
        assert progress.records == 100
        os.killpg(0, signal.SIGINT)

    options = DrainOptions(url, f"{place}/out", every_seconds=0.2)
    summary = drain(options, session, progress=interrupt, stopped=stop, pause=stop.pause)
    session.stop()
    found = {"java": os.environ["JAVA_HOME"], "read": read, "drained": summary.records, "left": summary.left}
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
