"""Load a service, kill it again and again, and count what is lost.

The demo starts a service on a free port, prints the address of its page, appends from many producers and kills the
service with SIGKILL every few seconds. Every acknowledged record is remembered and checked after each kill, and once
more at the end. The exit code is 0 if no record was lost or stored twice, otherwise 1 with what was wrong.

  mrecordlog demo
  mrecordlog demo --seconds 120 --kill-every 5
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

from mrecordlog_async.cli.demo.ledger import DemoVerdict, Ledger, produce, start_producers
from mrecordlog_async.cli.demo.service import ServiceProcess
from mrecordlog_async.cli.shell.exit_codes import FAILED, FINE, UsageError
from mrecordlog_async.cli.shell.parser import COUNT, PORT, SIZE, TIME, Parser
from mrecordlog_async.cli.shell.target import directory_argument
from mrecordlog_async.support.event_loop import loop_factory

if TYPE_CHECKING:
    from rich.table import Table

    from mrecordlog_async.client.client import RecordLogClient

RETRY_SECONDS = 60.0
REDRAW_SECONDS = 0.25


def add_parser(command_line: Parser) -> Parser:
    """Describe the command."""
    parser = command_line.add_command("demo", "Kill a service under load and count what is lost", __doc__)
    add = parser.add_argument
    add("--seconds", type=TIME, default=30.0, metavar="TIME", help="how long to run (default: 30s)")
    add("--producers", type=COUNT, default=256, metavar="COUNT", help="concurrent callers (default: 256)")
    add("--queues", type=COUNT, default=16, metavar="COUNT", help="queues they append to (default: 16)")
    add("--kill-every", type=TIME, default=4.0, metavar="TIME", help="pause between two kills (default: 4s)")
    add("--record-bytes", type=SIZE, default=256, metavar="SIZE", help="size of a record (default: 256)")
    add("--port", type=PORT, default=0, metavar="PORT", help="port of the service (default: a free one)")
    add(
        "--keep",
        metavar="DIR",
        type=directory_argument,
        help="write the log here and keep it (default: a temporary directory)",
    )
    add("--json", action="store_true", help="print the verdict as one JSON object")
    return parser


def run(arguments: argparse.Namespace) -> int:
    """Run the demo."""
    for name in ("producers", "queues"):
        if getattr(arguments, name) < 1:
            raise UsageError(f"--{name} must be at least 1")
    if arguments.keep and os.path.exists(f"{arguments.keep}/wal"):
        raise UsageError(
            f"{arguments.keep}/wal exists, and the demo counts the records of a new log: remove it, or name another "
            "directory with --keep"
        )
    ending = _Ending()
    directory = arguments.keep or tempfile.mkdtemp(prefix="mrecordlog-demo-")
    verdict = None
    try:
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            verdict = runner.run(ending.unless_signalled(_demo(arguments, f"{directory}/wal")))
    except asyncio.CancelledError:
        return 128 + ending.number
    finally:
        if arguments.keep or (verdict is not None and not verdict.good):
            if os.path.isdir(f"{directory}/wal"):
                print(f"the log is kept in {directory}/wal", file=sys.stderr)
        else:
            shutil.rmtree(directory, ignore_errors=True)
    if arguments.json:
        print(json.dumps(verdict.facts()))
    else:
        print(verdict.sentence())
    return FINE if verdict.good else FAILED


class _Ending:
    """Notes the first signal that ends the demo, and cancels it: it kills its service and removes its directory.

    Others change nothing, because that takes a moment. A handler that raised would do so in whatever code runs, even
    inside the event loop, which then leaves tasks and connections behind that complain when they are freed.
    """

    def __init__(self) -> None:
        self.number = 0
        self._cancel: Callable[[], object] = lambda: None
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:  # nohup ignores SIGHUP
                signal.signal(number, self._note)

    def _note(self, number: int, frame: object) -> None:
        if not self.number:
            self.number = number
            self._cancel()

    async def unless_signalled(self, demo: Coroutine[Any, Any, DemoVerdict]) -> DemoVerdict:
        """Run *demo*; cancel it at the first signal. Raises CancelledError."""
        task = asyncio.create_task(demo)
        self._cancel = partial(asyncio.get_running_loop().call_soon_threadsafe, task.cancel)
        if self.number:  # it came before
            task.cancel()
        try:
            return await task
        finally:
            self._cancel = lambda: None


async def _demo(arguments: argparse.Namespace, directory: str) -> DemoVerdict:
    from mrecordlog_async.client.client import RecordLogClient

    ledger = Ledger(arguments.record_bytes)
    service = ServiceProcess(directory, arguments.port)
    try:
        await service.start()
        print(f"watch it: {service.address}", file=sys.stderr, flush=True)
        async with RecordLogClient(service.address, retry_seconds=RETRY_SECONDS) as client:
            producers = await start_producers(client, min(arguments.queues, arguments.producers))
            stop = asyncio.Event()
            tasks = [
                asyncio.create_task(produce(producers[number % len(producers)], number, ledger, stop))
                for number in range(arguments.producers)
            ]
            await _torment(arguments, service, client, ledger)
            stop.set()
            await asyncio.gather(*tasks)
            await service.kill()
            await service.start()
            return await ledger.check(client, service)
    finally:
        await service.kill()


async def _torment(
    arguments: argparse.Namespace, service: ServiceProcess, client: RecordLogClient, ledger: Ledger
) -> None:
    """Kill the service every few seconds until the time is over, and show the counts."""
    begun = time.monotonic()
    end, kill_at = begun + arguments.seconds, begun + arguments.kill_every
    with _screen(arguments) as screen:
        while (now := time.monotonic()) < end:
            if now >= kill_at:
                await service.kill()
                await service.start()
                await ledger.look_again(client)
                kill_at = time.monotonic() + arguments.kill_every
                if screen is None and not arguments.json:
                    print(_line(now - begun, service, ledger), flush=True)
            if screen is not None:
                screen.update(_table(now - begun, arguments.seconds, service, ledger), refresh=True)
            await asyncio.sleep(REDRAW_SECONDS)


def _screen(arguments: argparse.Namespace) -> Any:
    """Return rich's live display on a terminal where rich is installed; otherwise lines are printed."""
    if arguments.json or not sys.stdout.isatty():
        return nullcontext()
    try:
        from rich.live import Live
    except ModuleNotFoundError:
        return nullcontext()
    live = Live(auto_refresh=False)  # an error in its own thread would not end the demo
    return nullcontext() if live.console.is_dumb_terminal else live


def _line(seconds: float, service: ServiceProcess, ledger: Ledger) -> str:
    last = service.recovery_seconds[-1]
    return (
        f"{seconds:6.1f} s  killed {service.kills:>3}  recovered in {last * 1e3:>5.0f} ms  "
        f"acknowledged {ledger.acknowledged:>9,}  found again {ledger.count.found:>9,}  "
        f"lost {ledger.count.lost}  doubled {ledger.count.doubled}"
    )


def _table(seconds: float, total: float, service: ServiceProcess, ledger: Ledger) -> Table:
    from rich.table import Table

    recoveries = service.recovery_seconds
    table = Table(title=f"{service.address}   {seconds:.0f} of {total:g} s", title_justify="left", show_header=False)
    table.add_column()
    table.add_column(justify="right")
    for name, value in (
        ("acknowledged", f"{ledger.acknowledged:,}"),
        ("per second", f"{ledger.acknowledged / max(seconds, 0.1):,.0f}"),
        ("found again", f"{ledger.count.found:,}"),
        ("lost", str(ledger.count.lost)),
        ("doubled", str(ledger.count.doubled)),
        ("killed", str(service.kills)),
        ("last recovery", f"{recoveries[-1] * 1e3:.0f} ms" if recoveries else "-"),
        ("longest recovery", f"{max(recoveries) * 1e3:.0f} ms" if recoveries else "-"),
    ):
        table.add_row(name, value)
    return table
