"""Mark a plain function that returns a coroutine as a coroutine function.

The appends are plain functions, because a coroutine around another one costs time per record. Without the mark,
FastAPI's `BackgroundTasks` runs such a function in a thread and drops the coroutine, so the record is lost, and
`AsyncMock(spec=…)` replaces it by a function that cannot be awaited.
"""

from __future__ import annotations

import asyncio.coroutines
import inspect
import sys
from collections.abc import Callable
from typing import Any, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])


def coroutine_function(function: Function) -> Function:
    """Mark *function*, which returns a coroutine. Calling it costs the same as before."""
    if sys.version_info >= (3, 12):
        return inspect.markcoroutinefunction(function)
    # Python 3.11 has no public way; asyncio and unittest.mock compare with this object.
    marker = asyncio.coroutines._is_coroutine  # type: ignore[attr-defined]  # noqa: SLF001
    function._is_coroutine = marker  # type: ignore[attr-defined]  # noqa: SLF001
    return function
