"""The page at `/`: one HTML file, read once, with headers that forbid all other content.

The page holds no data, so it needs no token; the routes that it calls do. Its Content-Security-Policy has the digests
of the page's script and style: code injected by a queue's name or a payload does not run, and nothing is loaded from
other servers.
"""

from __future__ import annotations

import base64
import hashlib
import re
from importlib.resources import files

from aiohttp import web

from mrecordlog_async.service.routes.route import Route
from mrecordlog_async.service.service import Service

PAGE = (files("mrecordlog_async.service") / "page.html").read_bytes()
HTML = "text/html"

FRONT = """\
mrecordlog: a durable log of many queues.

    curl -X PUT  HOST/v1/queues/orders
    curl --data-binary hello HOST/v1/queues/orders/records
    curl HOST/v1/queues/orders/records

/v1/queues  /v1/stats  /healthz  /readyz  /metrics  /openapi.json
"""


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


async def front(service: Service, request: web.Request) -> web.StreamResponse:
    """Send the page to browsers, and a few lines of text to other clients."""
    if HTML in request.headers.get("Accept", ""):
        return web.Response(body=PAGE, content_type=HTML, charset="utf-8", headers=HEADERS)
    return web.Response(text=FRONT)


ROUTES = (Route("GET", "/", front, "A page that shows the service", formats=(HTML, "text/plain"), open_to_all=True),)
