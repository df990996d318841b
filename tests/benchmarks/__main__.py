"""`python -m tests.benchmarks COMMAND`: suite, publish, compare, rust-crate, beyond-memory and others."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace

import tests.benchmarks
from mrecordlog_async.bench.disk import machine
from mrecordlog_async.support.event_loop import loop_name
from tests.benchmarks import beyond_memory, chart, http_service, publish, report, rust_crate, spark_throughput
from tests.benchmarks.compare import command as compare
from tests.benchmarks.compare.place import UnknownVersionError
from tests.benchmarks.compare.process import ContestantError
from tests.benchmarks.report import Report, to_json
from tests.benchmarks.scale import FULL, QUICK
from tests.benchmarks.suite import WORKLOADS, chosen, run_all


def main(words: list[str] | None = None) -> int:
    """Run one command."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks",
        description=tests.benchmarks.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    suite = commands.add_parser("suite", help="run the workloads and check the targets")
    _add_suite_options(suite)
    suite.set_defaults(run=run_suite)
    for name, module in (
        ("publish", publish),
        ("compare", compare),
        ("rust-crate", rust_crate),
        ("beyond-memory", beyond_memory),
        ("http-service", http_service),
        ("spark-throughput", spark_throughput),
    ):
        summary, _, _ = (module.__doc__ or "").partition("\n")
        command = commands.add_parser(
            name, help=summary, description=module.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        module.add_options(command)
        command.set_defaults(run=module.run)
    arguments = parser.parse_args(words)
    try:
        code: int = arguments.run(arguments)
    except (ValueError, UnknownVersionError) as error:  # an argument that names nothing
        parser.error(str(error))
    except ContestantError as error:
        print(error, file=sys.stderr)
        return 1
    return code


def run_suite(arguments: argparse.Namespace) -> int:
    """Measure, check the targets, and report; return 1 if a workload failed."""
    if arguments.list:
        sys.stdout.writelines(f"{workload.name:<14}{workload.what}\n" for workload in WORKLOADS)
        return 0
    workloads = chosen(arguments.only, WORKLOADS)
    scale = replace(QUICK if arguments.quick else FULL, gc_threshold=arguments.gc_threshold)
    rows = [row for rows in run_all(workloads, scale, arguments.dir, _say) for row in rows]
    found = Report(machine(arguments.dir), _command(arguments), loop_name(), tuple(rows))
    points = [row.point for row in rows if row.point is not None]
    if arguments.svg is not None and points:
        with open(arguments.svg, "w", encoding="utf-8") as file:
            file.write(chart.svg(points, found.machine))
    if arguments.json:
        print(to_json(found))
    else:
        lines = report.markdown(found) if arguments.markdown else report.text(found)
        sys.stdout.writelines(line + "\n" for line in lines)
    return int(any(row.failed for row in rows))


def _add_suite_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dir", default=".", help="directory to write in; cleaned up afterwards (default: here)")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="run these workloads only (see --list)")
    parser.add_argument("--quick", action="store_true", help="run for two minutes instead of ten")
    parser.add_argument(
        "--gc-threshold", type=int, metavar="N", help="have Python look for cycles only after N new objects"
    )
    parser.add_argument("--list", action="store_true", help="print the workloads and stop")
    parser.add_argument("--svg", metavar="FILE", help="draw callers against appends per second (workload callers)")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print the rows as JSON")
    form.add_argument("--markdown", action="store_true", help="print the report as Markdown")


def _command(arguments: argparse.Namespace) -> str:
    words = ["python -m tests.benchmarks suite"]
    words += ["--quick"] if arguments.quick else []
    words += [] if arguments.gc_threshold is None else [f"--gc-threshold {arguments.gc_threshold}"]
    words += ["--only", *arguments.only] if arguments.only else []
    return " ".join(words)


def _say(what: str) -> None:
    print(what, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
