"""Take the screenshots of the documentation again: the page and `top`, of a real service under a small load.

    python -m tests.page.screenshots

writes docs/images. It needs Chromium, tmux and two minutes, because the charts show two minutes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from mrecordlog_async import QueueOptions
from mrecordlog_async.client import RecordLogClient
from tests.page.browser import Browser, browser, missing
from tests.serving import Process

IMAGES = Path(__file__).parents[2] / "docs" / "images"
CHART_SECONDS = 125.0
"""The page draws 120 s."""
KEPT = QueueOptions(keep="until_acknowledged")
QUEUES = {"orders": KEPT, "clicks": KEPT, "payments": KEPT, "emails": KEPT, "audit": QueueOptions()}
CONSUMERS = {
    ("orders", "billing"): 0.2,
    ("orders", "lake"): 6.0,
    ("clicks", "lake"): 6.0,
    ("clicks", "dashboard"): 1.0,
    ("payments", "billing"): 0.2,
    ("payments", "lake"): 6.0,
    ("emails", "sender"): 0.2,
}
"""Consumer → seconds that it takes for a batch."""
PACE = {"orders": (40, 0.2), "clicks": (300, 0.2), "payments": (8, 0.3), "emails": (2, 1.0)}
"""Queue → records of one request, seconds until the next."""
TERMINAL_COLUMNS, TERMINAL_LINES = 112, 16

TERMINAL_PAGE = """\
<meta charset="utf-8"><style>{stylesheet}
body {{ margin: 0; background: #0c0c0c; }}
pre {{ display: inline-block; margin: 0; padding: 14px 18px; color: #d8d8de; }}
pre {{ font: 14px/1.3 "DejaVu Sans Mono", monospace; }}
</style><pre id="terminal">{code}</pre>"""


async def produce(client: RecordLogClient, queue: str, records: int, seconds: float) -> None:
    """Append about *records* records every *seconds*, a little more or less each time."""
    async with client.producer(queue) as producer:
        for _ in range(sys.maxsize):
            count = max(1, int(records * random.uniform(0.6, 1.4)))
            await producer.append_records([json.dumps(record()).encode() for _ in range(count)])
            await asyncio.sleep(seconds * random.uniform(0.5, 1.5))


def record() -> dict[str, object]:
    """Return what a shop would store."""
    item = random.choice(("espresso", "ristretto", "flat white", "green tea", "croissant"))
    return {"user": random.randrange(10_000), "item": item, "quantity": random.randint(1, 4), "paid": True}


async def consume(client: RecordLogClient, queue: str, name: str, seconds: float) -> None:
    """Take batches as a worker would that needs *seconds* for each."""
    async with client.consumer(queue, name) as consumer:
        async for batch in consumer.batches(max_records=20_000, max_bytes=16 << 20):
            await asyncio.sleep(seconds * random.uniform(0.7, 1.3))
            await consumer.acknowledge(batch)


async def load(url: str) -> None:
    """Keep the queues busy until cancelled. One old record of `audit` keeps all segments."""
    async with RecordLogClient(url) as client, asyncio.TaskGroup() as tasks:
        await client.wait_ready()
        for queue, options in QUEUES.items():
            await client.create_queue(queue, options=options)
        for queue, name in CONSUMERS:
            await client.create_consumer(queue, name)
        await client.append("audit", b'{"user": 17, "action": "logged in"}')
        for (queue, name), seconds in CONSUMERS.items():
            tasks.create_task(consume(client, queue, name, seconds))
        for queue, (records, seconds) in PACE.items():
            tasks.create_task(produce(client, queue, records, seconds))


@contextmanager
def terminal(command: str) -> Iterator[str]:
    """Run *command* in a terminal and yield the name of its tmux server."""
    server = f"screenshots-{time.monotonic_ns()}"
    size = ["-x", str(TERMINAL_COLUMNS), "-y", str(TERMINAL_LINES)]
    subprocess.run(["tmux", "-L", server, "-f", "/dev/null", "new-session", "-d", *size, command], check=True)
    try:
        yield server
    finally:
        subprocess.run(["tmux", "-L", server, "kill-server"], check=False)


def terminal_page(server: str) -> str:
    """Return what the terminal shows, with its colours, as HTML."""
    from rich.console import Console
    from rich.terminal_theme import MONOKAI
    from rich.text import Text

    command = ["tmux", "-L", server, "capture-pane", "-e", "-p"]
    shown = subprocess.run(command, check=True, capture_output=True, text=True).stdout.rstrip("\n")
    with open("/dev/null", "w") as nowhere:
        console = Console(
            record=True, width=TERMINAL_COLUMNS, file=nowhere, force_terminal=True, color_system="truecolor"
        )
        console.print(Text.from_ansi(shown), soft_wrap=True)
    return console.export_html(theme=MONOKAI, code_format=TERMINAL_PAGE)


def take(window: Browser, url: str, scratch: Path) -> None:
    """Take all pictures: the page is open while its charts fill, and `top` runs next to it."""
    window.resize(1180, 1400, scale=1.0)
    window.open(url)
    window.wait_for(
        "the queues", lambda: window.run("return document.querySelectorAll('#queues tr').length") == len(QUEUES)
    )
    window.run("document.getElementById('column-bytes').firstElementChild.click()")
    window.run(
        "[...document.querySelectorAll('#queues tr')].find(row => row.cells[0].textContent === 'orders').click()"
    )
    with terminal(f"{sys.executable} -m mrecordlog_async top {url}") as top:
        time.sleep(CHART_SECONDS)
        (scratch / "top.html").write_text(terminal_page(top))
    window.run("document.activeElement.blur(); window.scrollTo(0, 0)")
    window.picture(IMAGES / "page.webp", "header", "#numbers")
    # The records that were read when the queue was chosen have been truncated since.
    old = window.text("records")
    window.run("document.getElementById('read-newest').click()")
    window.wait_for("the newest records", lambda: window.text("records") not in ("", old))
    window.run("document.getElementById('records').style.maxHeight = '7.5em'")
    window.picture(IMAGES / "queue.webp", "#queue-panel", "#consumers")
    window.open((scratch / "top.html").as_uri())
    window.picture(IMAGES / "top.webp", "#terminal", "#terminal")


async def run() -> None:
    """Serve a log, keep it busy and take the pictures."""
    IMAGES.mkdir(exist_ok=True)
    with TemporaryDirectory() as name:
        scratch = Path(name)
        options = ["--name", "wal-0", "--segment-bytes", "512KiB", "--memory-bytes", "8MiB", "--disk-bytes", "64MiB"]
        with Process(scratch / "wal", options) as service, browser(scratch / "profile") as window:
            loading = asyncio.create_task(load(service.address))
            await asyncio.to_thread(take, window, service.address, scratch)
            loading.cancel()
            await asyncio.wait([loading])
    for image in sorted(IMAGES.iterdir()):
        print(f"{image.relative_to(IMAGES.parents[1])}: {image.stat().st_size:,} bytes")


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    sys.exit(missing() or asyncio.run(run()))
