"""Makes one change to the log that LOG names, a directory or a service, and prints what was done."""

from __future__ import annotations

import argparse
import json
from collections.abc import Awaitable, Callable
from typing import Any

from mrecordlog_async.cli.shell.exit_codes import FINE
from mrecordlog_async.cli.shell.target import open_change_target

Done = tuple[dict[str, Any], str]
"""Result of a command: facts for --json, and a sentence."""


async def change(
    arguments: argparse.Namespace,
    call: Callable[[Any], Awaitable[Done]],
    *,
    create: bool = False,
    limits_of: str | None = None,
) -> int:
    """Make a change to the log that LOG names, and print what was done.

    Args:
        arguments: LOG, and whether to print JSON.
        call: Makes the change, in a log without its records or through a client.
        create: Create the log in a directory that has none.
        limits_of: See `open_change_target`.
    """
    async with open_change_target(arguments, create=create, limits_of=limits_of) as log:
        facts, text = await call(log)
    print(json.dumps(facts) if arguments.json else text)
    return FINE
