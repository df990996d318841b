"""The page at `/`: made of the files in `service/page`, with headers that forbid all other content.

Browsers get one document: style and scripts are put into the HTML when this module is imported, without a build. The
page holds no data, so it needs no token; the routes that it calls do. Its Content-Security-Policy has the digests of
its script and style: code injected by a queue's name or a payload does not run, and nothing is loaded from other
servers.
"""

from __future__ import annotations

import base64
import hashlib
import re
from importlib.resources import files

from mrecordlog_async.service.http import HttpRequest, HttpResponse
from mrecordlog_async.service.routes.route import Route
from mrecordlog_async.service.service import Service

SCRIPTS = ("numbers", "requests", "charts", "state", "queues", "segments", "consumers", "queue", "main")
"""The scripts in the order in which they run. They become one script, so each sees what those before it declare."""

HTML = "text/html"

FRONT = """\
mrecordlog: a durable log of many queues.

    curl -X PUT  HOST/v1/queues/orders
    curl --data-binary hello HOST/v1/queues/orders/records
    curl HOST/v1/queues/orders/records

/v1/queues  /v1/stats  /healthz  /readyz  /metrics  /openapi.json
"""


def _put_together() -> bytes:
    folder = files("mrecordlog_async.service") / "page"
    style = (folder / "style.css").read_bytes()
    scripts = b"".join((folder / f"{name}.js").read_bytes() for name in SCRIPTS)
    page = (folder / "page.html").read_bytes().replace(b"<style></style>", b"<style>\n" + style + b"</style>")
    return page.replace(b"<script></script>", b'<script>\n"use strict";\n' + scripts + b"</script>")


PAGE = _put_together()


def _digest(tag: bytes) -> str:
    (content,) = re.findall(rb"<%s>(.*?)</%s>" % (tag, tag), PAGE, re.DOTALL)
    return f"'sha256-{base64.b64encode(hashlib.sha256(content).digest()).decode()}'"


HEADERS = {
    "Content-Security-Policy": (
        f"default-src 'none'; script-src {_digest(b'script')}; style-src {_digest(b'style')}; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Cache-Control": "no-cache",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


async def front(service: Service, request: HttpRequest) -> HttpResponse:
    """Send the page to browsers, and a few lines of text to other clients."""
    if HTML in (request.header(b"accept") or ""):
        return HttpResponse(PAGE, 200, f"{HTML}; charset=utf-8", HEADERS)
    return HttpResponse(FRONT.encode(), 200, "text/plain; charset=utf-8")


ROUTES = (
    Route(
        "GET", "/", front, "A page that shows the service", formats=(HTML, "text/plain"), open_to_all=True, head=True
    ),
)
