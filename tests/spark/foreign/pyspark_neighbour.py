"""Another project's data source, which Spark discovers in the same environment as this package's."""

from __future__ import annotations

from collections.abc import Iterator

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType


class Reader(DataSourceReader):
    def read(self, partition: InputPartition) -> Iterator[tuple[int]]:
        yield from ((number,) for number in range(3))


class DefaultSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "neighbour"

    def schema(self) -> str:
        return "number int"

    def reader(self, schema: StructType) -> DataSourceReader:
        return Reader()
