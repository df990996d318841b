"""The access log: a line per request, in which what a client sent cannot look like anything else."""

from __future__ import annotations

import json
import logging
from time import gmtime, strftime
from time import time as now

from mrecordlog_async.service.http import Scope

logger = logging.getLogger("mrecordlog_async.access")

NO_REQUEST: Scope = {
    "method": "-", "raw_path": b"-", "query_string": b"", "http_version": "-", "headers": [],
}  # fmt: skip
"""In place of a request that nobody could read: it is refused for what it looks like, or for who else is there."""


def log_access(scope: Scope, status: int, size: int, seconds: float) -> None:
    """Log a request in the combined format of web servers. size: bytes of the response's body."""
    headers, client = dict(scope["headers"]), scope.get("client")
    query = scope["query_string"].decode("latin-1")
    path = scope["raw_path"].decode("latin-1") + (f"?{query}" if query else "")
    logger.info(
        '%s [%s] "%s %s HTTP/%s" %d %d "%s" "%s"',
        client[0] if client else "-",
        strftime("%d/%b/%Y:%H:%M:%S +0000", gmtime(now() - seconds)),
        scope["method"],
        escaped(path),
        scope["http_version"],
        status,
        size,
        escaped(headers.get(b"referer", b"-").decode(errors="surrogateescape")),
        escaped(headers.get(b"user-agent", b"-").decode(errors="surrogateescape")),
    )


def escaped(text: str) -> str:
    """Return *text* in ASCII, without quotes and control characters: terminals obey some that are not ASCII."""
    return json.dumps(text)[1:-1].replace("\x7f", "\\u007f")
