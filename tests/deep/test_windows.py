"""On Windows clients and the data source work, and a log says what it needs: `tests/deep/windows.py` stands in."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.serving import Process

ROOT = Path(__file__).parents[2]

CLIENTS = """
import sys
import tests.deep.windows
from mrecordlog_async import LogFullError, QueueOptions, RecordLogError
from mrecordlog_async.client import BlockingRecordLogClient, RecordLogClient

with BlockingRecordLogClient(sys.argv[1]) as client:
    client.append("q", b"from there", create=True)
    print([record.payload for record in client.range("q")])
"""

SPARK = """
import tests.deep.windows
import pyspark_mrecordlog
from mrecordlog_async.spark.session import spark_session
from mrecordlog_async.spark import data_source, log_stream, log_table, log_writer
print(pyspark_mrecordlog.DefaultSource.name(), data_source.RecordLogDataSource({"servers": "http://a"}).schema())
"""

LOG = """
import asyncio
import tests.deep.windows
from mrecordlog_async import MultiRecordLog

async def main():
    async with MultiRecordLog.open("wal"):
        print("it opened")

try:
    asyncio.run(main())
except OSError as error:
    print(error)
"""


def there(script: str, *arguments: str) -> str:
    """Run *script* on that system; return what it printed."""
    ran = subprocess.run([sys.executable, "-c", script, *arguments], cwd=ROOT, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_a_program_there_sends_records_to_a_service(directory: Path) -> None:
    """The clients can be imported, and the blocking one is used, against a service on Linux."""
    with Process(directory) as service:
        assert there(CLIENTS, service.address) == "[b'from there']\n"


def test_the_data_source_of_spark_can_be_imported_there() -> None:
    """Every part that a query loads, in its driver and its workers."""
    pytest.importorskip("pyspark")
    assert there(SPARK).startswith("mrecordlog server string, queue string, ")


def test_a_log_says_what_it_needs_there() -> None:
    """Its directory could be neither locked nor synced: the error names the way that works."""
    said = there(LOG)
    assert said.startswith("a log needs a POSIX system such as Linux")
    assert "use RecordLogClient here" in said


def test_a_log_says_it_too_where_only_the_lock_is_missing() -> None:
    """Every module of the log can be imported without `fcntl`."""
    said = there(LOG.replace("import tests.deep.windows", "import sys; sys.modules['fcntl'] = None"))
    assert said.startswith("a log needs a POSIX system such as Linux")
