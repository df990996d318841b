"""Calls a function in every child process that this one forks."""

from __future__ import annotations

import os
from collections.abc import Callable


def call_in_children(call: Callable[[], object]) -> None:
    """Call *call* first thing in each forked child, on systems whose processes fork: Windows has no such processes."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=call)
