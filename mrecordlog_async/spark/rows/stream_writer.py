"""The base of writers that get the rows of a stream as Arrow batches, for each Spark with data sources in Python."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceStreamArrowWriter as StreamArrowWriter
else:
    try:
        from pyspark.sql.datasource import DataSourceStreamArrowWriter as StreamArrowWriter
    except ImportError:
        from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamWriter

        class StreamArrowWriter(DataSourceStreamWriter, DataSourceArrowWriter):
            """Writer for Spark 4.0, where a DataSourceArrowWriter gets Arrow batches even in a stream."""


__all__ = ["StreamArrowWriter"]
