"""A drain that dies inside the commit of a batch: `python -m tests.spark.deadly_drain drain …`.

The environment says where: DEADLY_STEP is the step before which driver, Java and workers are killed, DEADLY_BATCH the
first batch in which that happens, DEADLY_GROUP the group of the driver's processes.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from pyspark.sql.datasource import DataSourceStreamArrowWriter
from pyspark.sql.types import StructType

from mrecordlog_async.spark.__main__ import main
from mrecordlog_async.spark.delta import sink
from mrecordlog_async.spark.delta.content import Verdict
from mrecordlog_async.spark.delta.place import Place
from mrecordlog_async.spark.delta.sink import DeltaSink, DeltaWriter, SinkOptions
from mrecordlog_async.spark.delta.table import NewBatch, Table


class DeadlyTable(Table):
    """Kills the drain before a step of a commit."""

    def __init__(self, place: Place) -> None:
        super().__init__(place, step=self.die)
        self.batch = -1

    def die(self, step: str) -> None:
        if step == os.environ["DEADLY_STEP"] and self.batch >= int(os.environ["DEADLY_BATCH"]):
            os.killpg(int(os.environ["DEADLY_GROUP"]), signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)  # Spark's workers have their own group

    def store(self, batch: NewBatch, *arguments: Any, **named: Any) -> Verdict:
        self.batch = batch.number
        return super().store(batch, *arguments, **named)


class DeadlyWriter(DeltaWriter):
    def _table(self, place: Place) -> Table:
        return DeadlyTable(place)


class DeadlySink(DeltaSink):
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        return DeadlyWriter(SinkOptions.decode(self.options), schema)


if __name__ == "__main__":
    from tests.spark.deadly_drain import DeadlySink as Importable  # Spark's processes import it under this name

    os.environ["DEADLY_GROUP"] = str(os.getpgid(0))
    sink.DeltaSink = Importable  # type: ignore[misc]  # the drain registers what it finds here
    sys.exit(main())
