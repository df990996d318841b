"""What Spark loads first: a light module, and a schema that matches the rows."""

from __future__ import annotations

import subprocess
import sys

import pytest
from pyspark.sql.datasource import DataSourceReader
from pyspark.sql.types import StructType

from mrecordlog_async.spark.blocks import POSITIONS_SCHEMA as POSITIONS_ARROW
from mrecordlog_async.spark.blocks import READ_SCHEMA
from mrecordlog_async.spark.data_source import POSITIONS_SCHEMA, SCHEMA, RecordLogDataSource
from mrecordlog_async.spark.log_table import LogTable
from mrecordlog_async.spark.options import OptionError

OPTIONS = {"servers": "http://127.0.0.1:1"}
TYPES = {"string": "string", "int64": "bigint", "binary": "binary", "timestamp[us, tz=UTC]": "timestamp"}


def test_the_module_that_spark_imports_is_light() -> None:
    """The module is imported for every user of an environment, so it imports no Arrow, no web server and no Java."""
    program = (
        "import sys; sys.modules.update(pyarrow=None, aiohttp=None, msgspec=None)\n"
        "import pyspark_mrecordlog; print(pyspark_mrecordlog.DefaultSource.name())"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert said.stdout == "mrecordlog\n"


def test_executors_need_no_web_server() -> None:
    """Readers and writers need only pyspark, pyarrow and msgspec, all of the extra `spark`."""
    program = (
        "import sys; sys.modules.update(aiohttp=None, fastapi=None, prometheus_client=None, uvloop=None)\n"
        "from mrecordlog_async.spark import data_source, log_stream, log_table, log_writer"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize(("ddl", "arrow"), [(SCHEMA, READ_SCHEMA), (POSITIONS_SCHEMA, POSITIONS_ARROW)])
def test_rows_have_the_schema_that_is_declared(ddl: str, arrow: object) -> None:
    """The rows have the columns that the source declares, because Spark compares them."""
    assert isinstance(arrow, type(READ_SCHEMA))
    assert ddl == ", ".join(f"{field.name} {TYPES[str(field.type)]}" for field in arrow)


def test_a_schema_that_is_not_read_is_refused() -> None:
    """A schema that differs from the source's columns is refused."""
    source = RecordLogDataSource(OPTIONS)
    with pytest.raises(OptionError, match="this source reads"):
        source.reader(StructType().add("payload", "string"))


def test_without_the_modules_of_limits_everything_works() -> None:
    """With pyspark 4.1, which lacks them, batch reads, writes and streams have what they need."""
    program = (
        "import sys\n"
        "from pyspark.sql.types import StructType\n"
        "from mrecordlog_async.spark.data_source import RecordLogDataSource\n"
        "sys.modules['pyspark.sql.streaming.datasource'] = None  # as in 4.1; newer ones import it themselves\n"
        "from mrecordlog_async.spark import log_table, log_writer\n"
        "source = RecordLogDataSource({'servers': 'http://h:1'})\n"
        "schema = StructType().add('server', 'string').add('queue', 'string').add('queue_id', 'long')\n"
        "schema = schema.add('position', 'long').add('timestamp', 'timestamp').add('payload', 'binary')\n"
        "source.reader(schema)\n"
        "print(type(source.streamReader(schema)).__name__)"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert said.stdout == "StartlessLogStream\n"


def test_options_that_spark_forgot_are_named() -> None:
    """If Spark drops the options of a table of its catalog, the error says what to write instead."""
    source = RecordLogDataSource({})
    assert source.schema() == SCHEMA
    with pytest.raises(OptionError, match=r"WITH \('servers' = …\)"):
        source.reader(StructType())


def test_no_reader_takes_filters_from_spark() -> None:
    """Spark reuses what it planned with a filter for queries without it, so no reader may be narrowed by one."""
    assert LogTable.pushFilters is DataSourceReader.pushFilters
