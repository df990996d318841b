"""The process of one version: prepares a row, measures a round for each line it reads, and checks at the end.

`python -m tests.benchmarks.compare.contestant CONTENDER ROW DIRECTORY AT_MOST`, started by `process` in a directory
that `place` made. Standard input: one line per round, with its length in seconds. Standard output: a line when the row
is prepared or why it cannot be, and one with figures for each round. The end of the input ends the row; exit code 0
says that it was complete.
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import signal
import sys
from collections.abc import Callable

from tests.benchmarks.compare.contenders import CONTENDERS
from tests.benchmarks.compare.rows import Place
from tests.benchmarks.compare.suite import chosen
from tests.benchmarks.peers.peer import MissingPeerError

READY = "ready"
MISSING = "missing:"


def main() -> None:
    """Run the row that the arguments name."""
    contender, name, directory, at_most = sys.argv[1:]
    (row,) = chosen([name])
    signal.signal(signal.SIGTERM, lambda _number, _frame: sys.exit(1))  # runs what is registered for the exit
    _calm_collector()
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        running = row.make(Place(CONTENDERS[contender](), directory, runner, int(at_most)))
        try:
            running.prepare()
        except MissingPeerError as missing:
            print(MISSING, missing, flush=True)
            return
        print(READY, flush=True)
        for line in sys.stdin:
            print(running.round(float(line)).to_json(), flush=True)
        running.finish()


# Both are written out here, not imported from the package: older versions have them elsewhere, or with other settings.
def _calm_collector() -> None:
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 100)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        factory: Callable[[], asyncio.AbstractEventLoop] = importlib.import_module("uvloop").new_event_loop
    except ModuleNotFoundError:
        return None
    return factory


if __name__ == "__main__":
    main()
