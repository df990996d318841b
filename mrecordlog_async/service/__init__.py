"""The HTTP service: one log, its routes, and the limits on what clients may make it hold.

A request passes `connections` (how many, how long), `security` (who is let in), `app` (routing, errors as problems),
a handler in `routes/`, `receive` and `splitting` (its body), and leaves through `formats` and `send`. `service` is what
all routes of one log share; `server` runs it as a process.
"""

from __future__ import annotations

from mrecordlog_async.service.options import ServiceOptions

__all__ = ["ServiceOptions"]
