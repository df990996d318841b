"""The access log: a line per request, in which what a client sent cannot look like anything else."""

from __future__ import annotations

import json
from time import gmtime, strftime
from time import time as now

from aiohttp import web
from aiohttp.abc import AbstractAccessLogger


class AccessLogger(AbstractAccessLogger):
    """Write lines in the combined format of web servers."""

    def log(self, request: web.BaseRequest, response: web.StreamResponse, time: float) -> None:
        """Log a request with its response."""
        sent_at = strftime("%d/%b/%Y:%H:%M:%S +0000", gmtime(now() - time))
        version = f"{request.version.major}.{request.version.minor}"
        self.logger.info(
            '%s [%s] "%s %s HTTP/%s" %d %d "%s" "%s"',
            request.remote or "-",
            sent_at,
            request.method,
            escaped(request.path_qs),
            version,
            response.status,
            response.body_length,
            escaped(request.headers.get("Referer", "-")),
            escaped(request.headers.get("User-Agent", "-")),
        )


def escaped(text: str) -> str:
    """Return *text* in ASCII, without quotes and control characters: terminals obey some that are not ASCII."""
    return json.dumps(text)[1:-1].replace("\x7f", "\\u007f")
