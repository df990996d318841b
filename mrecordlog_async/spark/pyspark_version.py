"""Finds out whether the installed pyspark has data sources in Python, as 4.0 and later have."""

from __future__ import annotations

from importlib.metadata import version
from importlib.util import find_spec

from mrecordlog_async.errors import RecordLogError


class NoDataSourcesError(RecordLogError, ImportError):
    """The installed pyspark has no data sources in Python."""


def refuse_without_data_sources() -> None:
    """Raise NoDataSourcesError if the installed pyspark is older than data sources in Python."""
    if find_spec("pyspark.sql.datasource") is None:
        raise NoDataSourcesError(
            f"pyspark {version('pyspark')} has no data sources in Python: reads, writes and streams of mrecordlog need "
            "pyspark 4.0 or later. If your Spark stays as it is, run `mrecordlog drain` in another environment, with "
            "pip install 'mrecordlog_async[spark]'; your Spark reads the Delta table that it writes"
        )
