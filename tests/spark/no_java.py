"""A program that a test runs without Java on PATH: read a log as a table, drain it, print which Java was used."""

from __future__ import annotations

import json
import os
import shutil
import sys

from mrecordlog_async.spark.drain import run_drain
from mrecordlog_async.spark.preflight import DrainJob
from mrecordlog_async.spark.session import spark_session


def main(url: str, place: str) -> None:
    assert shutil.which("java") is None
    session = spark_session("no java", master="local[2]", settings={"spark.ui.enabled": "false"})
    read = session.read.format("mrecordlog").option("servers", url).load().count()
    summary = run_drain(session, DrainJob(url, f"{place}/out", f"{place}/checkpoint"))
    session.stop()
    found = {"java": os.environ["JAVA_HOME"], "read": read, "drained": summary.records, "left": summary.left}
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
