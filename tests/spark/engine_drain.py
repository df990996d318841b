"""A drain into a Delta table without Spark, as a process: `python -m tests.spark.engine_drain drain …`.

It takes the arguments of the command and stops where a campaign wants it (`stops`). `delta_engine` says how it stands
for Spark. A batch takes milliseconds, so a campaign has many in little time.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from pathlib import Path

from mrecordlog_async.spark.delta.place import TablePlace
from mrecordlog_async.spark.settings.arguments import add_drain_arguments
from tests.spark import stops
from tests.spark.delta_engine import DeltaEngine

IDLE_SECONDS = 0.02


def main() -> None:
    """Drain until the process is killed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("drain")
    add_drain_arguments(parser)
    arguments = parser.parse_args()
    servers, table = ",".join(arguments.servers), TablePlace(arguments.output)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))
    engine = DeltaEngine(
        servers,
        Path(arguments.checkpoint).parent,
        table=table,
        consumer=arguments.consumer,
        retries="5",
        serverWait="120",
        minPartitions="2",
    )
    engine.step = stops.step
    with engine.started() as run:
        print("\n".join(run.said), flush=True)
        while True:
            if not run.batch():
                time.sleep(IDLE_SECONDS)


if __name__ == "__main__":
    main()
