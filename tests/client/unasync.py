"""Write the blocking client from the text of the asyncio client: `python -m tests.client.unasync`.

The two have the same methods, the same readers and the same loop of attempts, so only one of them is written by hand.
What differs is in two modules: `transport` with aiohttp for tasks, `blocking_transport` with `http.client` for threads.
Lines that end with `# asyncio only`, and those between `# asyncio only: begin` and `# asyncio only: end`, are left out.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

CLIENT = Path(__file__).parents[2] / "mrecordlog_async" / "client"
GENERATED = CLIENT / "_sync"
MODULES = ("batches", "client", "consumer", "reads", "sender", "tail")

PACKAGE = '"""The blocking client, written by `tests.client.unasync` from the asyncio client: change that one."""\n'
BATCHES = '''"""Iterators over batches, for threads."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

from mrecordlog_async.batches import BatchLimits
from mrecordlog_async.model import Batch

Given = TypeVar("Given", bound=Batch)


'''
"""Stands before the iterators of `mrecordlog_async.batches`; the rest of that module is for both clients."""

HEAD = "# Written by `python -m tests.client.unasync` from {}: change that file, and run this.\n\n"

SENTENCES = {
    "batches": [
        (
            "An object, because a cancelled `__anext__` would end an async generator.",
            "An object, because an exception would end a generator.",
        ),
    ],
    "client": [
        (
            "from asyncio code, with the method names of `MultiRecordLog`.",
            "from code without asyncio, such as Flask, Django, Celery and scripts.",
        ),
        ("Call one service from asyncio code.", "Call one service from any thread."),
        (
            "The client belongs to one event loop; many tasks may call its methods at once. Each call is retried while the\n"
            "    service",
            "Many threads may share the client. A forked child opens its own connections at its first call: servers may make\n"
            "    the client before they fork their workers. Tails, consumers and producers belong to the process that made\n"
            "    them. Each call is retried while the service",
        ),
        ("A change that is cancelled may", "A change that an exception interrupts may"),
        (
            "or the call was made on another event loop than its first one.",
            "or what was called belongs to the process that forked this one.",
        ),
    ],
    "consumer": [
        (
            "Cancelling a call,\n    even by `asyncio.wait_for`, loses nothing. (On Python 3.11, do not put one `asyncio.wait_for` into "
            "another: it may\n    drop a batch that arrives as it is cancelled.)",
            "An exception\n    in a call, such as one of a signal handler, loses nothing.",
        ),
        ("Cancelling, or an error of the connection, stops", "An exception, such as an error of the connection, stops"),
    ],
    "tail": [
        (
            "Nothing is awaited between a response and the moment at which the position moves, and nothing moves before: a "
            "call that\nis cancelled, even by `wait_for`, loses no record.",
            "A call that ends with an exception, such as one of a signal handler, loses no record: the next one begins "
            "where it began.",
        ),
        (
            "Cancelling a call, even by `asyncio.wait_for` or `asyncio.timeout`, loses nothing and does not end the tail. It "
            "ends\n    when",
            "Any thread may call. An exception in a call, such as one of a signal handler, loses nothing and does not end "
            "the tail.\n    It ends when",
        ),
        ("Cancelling the call loses nothing", "An exception in the call loses nothing"),
        ("tasks that share the tail", "threads that share the tail"),
    ],
}
"""What is said of tasks, and what is said of threads. Each sentence must be there."""

TOKENS = [
    (r"^from collections\.abc import (.*)$", lambda match: _imports(match[1])),
    (r"^import asyncio$", "import threading"),
    (r"\basyncio\.Lock\b", "threading.Lock"),
    (r"async with asyncio\.timeout_at\(deadline\):", "with nullcontext():  # each call ends at the deadline"),
    (r"^from contextlib import suppress$", "from contextlib import nullcontext, suppress"),
    (r"\basyncio\.sleep\b", "blocking_transport.sleep"),
    (r"\basyncio\.get_running_loop\(\)\.time\b", "blocking_transport.clock"),
    (r"\b((?:Available)?Batches)\(", r"Blocking\1("),
    (r"^    @coroutine_function\n", ""),
    (r"^from mrecordlog_async\.support\.coroutine_mark .*\n", ""),
    (r"\basync (def|with|for)\b", r"\1"),
    (r"\bawait ", ""),
    (r"\bAsync(Iterator|Generator)\b", r"\1"),
    (r"\b(Stop)Async(Iteration)\b", r"\1\2"),
    (r"\b__a(enter|exit|iter|next)__\b", r"__\1__"),
    (r"\banext\(", "next("),
    (r"\bProducer\(self,", "BlockingProducer(self.sender.transport,"),
    (r"\bclient\.producer import Producer\b", "client.blocking import BlockingProducer"),
    (r"-> Producer:", "-> BlockingProducer:"),
    (r"\bclient\.transport import Transport\b", "client.blocking_transport import BlockingTransport"),
    (r"\bTransport\b", "BlockingTransport"),
    (r"\b(?<!\.)RecordLogClient\b", "BlockingRecordLogClient"),
    (r"\bClient(Tail|Consumer)\b", r"Blocking\1"),
    (r"\bSender\b", "BlockingSender"),
    (r"\bmrecordlog_async\.client import reads\b", "mrecordlog_async.client._sync import reads"),
    (rf"\bmrecordlog_async\.client\.({'|'.join(MODULES)})\b", r"mrecordlog_async.client._sync.\1"),
]


def blocking(module: str, text: str) -> str:
    """Return the text of a module of the asyncio client as that of the blocking client."""
    text = re.sub(r"^ *# asyncio only: begin\n.*?^ *# asyncio only: end\n\n?", "", text, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"^.*# asyncio only.*\n", "", text, flags=re.MULTILINE)
    for tasks, threads in SENTENCES.get(module, []):
        if tasks not in text:
            raise ValueError(f"{module}: the text has no {tasks!r} any more")
        text = text.replace(tasks, threads)
    for name in ("Coroutine", "Awaitable"):
        text = _unwrapped(text, name)
    for pattern, replacement in TOKENS:
        text = re.sub(pattern, replacement, text, flags=re.MULTILINE)  # type: ignore[call-overload]  # text or function
    if "blocking_transport." in text:
        imported = "from mrecordlog_async.client import blocking_transport\n"
        text = text.replace("import annotations\n", f"import annotations\n{imported}", 1)
    if "Batches(" in text and module != "batches":
        imported = "from mrecordlog_async.client._sync.batches import BlockingAvailableBatches, BlockingBatches\n"
        text = text.replace("import annotations\n", f"import annotations\n{imported}", 1)
    if "threading." not in text:
        text = text.replace("import threading\n", "")
    return HEAD.format("batches.py" if module == "batches" else f"client/{module}.py") + text


def _source(module: str) -> str:
    """Return the text of the asyncio client that is written for threads, too."""
    if module != "batches":
        return (CLIENT / f"{module}.py").read_text()
    text = (CLIENT.parent / "batches.py").read_text()
    return BATCHES + text[text.index("class Batches(") : text.index("def last_position(")]


def _imports(names: str) -> str:
    """Return the import of the names that are used without asyncio."""
    kept = [name for name in names.split(", ") if name not in ("Awaitable", "Coroutine")]
    return f"from collections.abc import {', '.join(kept)}" if kept else ""


def _unwrapped(text: str, name: str) -> str:
    """Replace `name[..., T]` by its last argument."""
    while (at := text.find(f"{name}[")) >= 0:
        begin = end = at + len(name) + 1
        depth, last = 1, begin
        while depth:
            depth += {"[": 1, "]": -1}.get(text[end], 0)
            if depth == 1 and text[end] == ",":
                last = end + 1
            end += 1
        text = text[:at] + text[last : end - 1].strip() + text[end:]
    return text


def generated() -> dict[Path, str]:
    """Return every generated file and its text, formatted."""
    found = {GENERATED / "__init__.py": PACKAGE}
    for module in MODULES:
        path = GENERATED / f"{module}.py"
        text = blocking(module, _source(module))
        for command in (["check", "--fix-only", "--quiet", "--select", "I,F401"], ["format", "--quiet"]):
            done = subprocess.run(
                [sys.executable, "-m", "ruff", *command, "--stdin-filename", str(path), "-"],
                input=text,
                capture_output=True,
                text=True,
                check=True,
            )
            text = done.stdout
        found[path] = text
    return found


if __name__ == "__main__":
    GENERATED.mkdir(exist_ok=True)
    for path, text in generated().items():
        path.write_text(text)
