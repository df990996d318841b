"""`python -m tests.benchmarks PROGRAM`: run its cases in turns and print a table."""

from __future__ import annotations

import argparse
import importlib
import sys
import tempfile
from pathlib import Path

from tests import benchmarks
from tests.benchmarks.turns import MissingError, Table, run_case

PROGRAMS = {"core": 3.0, "recovery": 0.0, "service": 3.0, "pipeline": 0.0, "stores": 3.0}
"""Program → seconds of a round by default; 0 where a round takes as long as the work."""


def main() -> int:
    """Measure, and print one line of the table after each case."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks",
        description=benchmarks.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("program", choices=PROGRAMS)
    parser.add_argument("--only", metavar="WORDS", default="", help="run the cases whose names contain this")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each contender (default: 5)")
    parser.add_argument("--seconds", type=float, help="length of a round (default: 3)")
    parser.add_argument(
        "--dir", type=Path, default=Path(), help="where to write; cleaned up afterwards (default: here)"
    )
    parser.add_argument("--against", type=Path, action="append", default=[], help="a checkout of another version")
    parser.add_argument("--svg", type=Path, help="draw callers against appends per second (core; needs matplotlib)")
    arguments = parser.parse_args()
    program = importlib.import_module(f"tests.benchmarks.{arguments.program}")
    seconds = PROGRAMS[arguments.program] if arguments.seconds is None else arguments.seconds
    chosen = [case for case in program.CASES if arguments.only in case]
    if not chosen:
        parser.error(f"no case contains {arguments.only!r}: choose from {', '.join(program.CASES)}")
    table, failed = Table(arguments.program), False
    with tempfile.TemporaryDirectory(prefix="benchmark-", dir=arguments.dir) as place:
        for case in chosen:
            try:
                rows = run_case(arguments.program, case, Path(place), arguments.against, arguments.rounds, seconds)
            except MissingError as missing:
                print(f"{case}: left out, {missing}", file=sys.stderr)
                failed = True
                continue
            table.add(case, rows)
    if arguments.svg is not None:
        from tests.benchmarks.core import draw

        draw(table.rows, arguments.svg)
    print(f"\n{table.machine(arguments.dir)}; {arguments.rounds} rounds")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
