"""An asyncio write-ahead log: many named queues in one directory, and one fsync for all waiting callers.

    async with MultiRecordLog.open("./wal", queues=["orders"]) as log:
        position = await log.append("orders", b"hello")                # on the disk when this returns
        for position, payload in log.range("orders"):
            ...
        await log.truncate("orders", position)                         # the downstream has it

The layout of the package: `log` is the facade, `engine` decides and moves, `memory` retains, `storage` speaks to the
disk, `format` says what the bytes mean (its docstring is the specification). Imports go down only.

The names in `public` are the package's, and are imported when the first of them is used. Until then the package costs
nothing, so the command line can catch a Ctrl-C while everything else is imported.
"""

from __future__ import annotations

TYPE_CHECKING = False  # that of `typing`, without the import

if TYPE_CHECKING:
    from mrecordlog_async.public import *  # noqa: F403  # `public` lists them
    from mrecordlog_async.public import __all__ as __all__
else:

    def __getattr__(name: str) -> object:
        # Python asks for __path__ and the like while it imports the package.
        if not name.startswith("__") or name in ("__all__", "__version__"):
            public = _public()
            globals().update({each: getattr(public, each) for each in ("__all__", *public.__all__)})
            if name in globals():
                return globals()[name]
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted({*globals(), *_public().__all__})

    def _public() -> object:
        from importlib import import_module

        return import_module("mrecordlog_async.public")  # `from mrecordlog_async` would ask __getattr__
