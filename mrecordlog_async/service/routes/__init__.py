"""The routes, one module per group. `TABLE` lists them; `openapi` adds the schema, which is generated from it."""

from __future__ import annotations

from mrecordlog_async.service.routes import (
    bulk,
    bulk_consumers,
    consumers,
    page,
    queue_options,
    queues,
    records,
    system,
    tails,
)
from mrecordlog_async.service.routes.route import Route

TABLE: tuple[Route, ...] = (
    *records.ROUTES,
    *queues.ROUTES,
    *queue_options.ROUTES,
    *consumers.ROUTES,
    *tails.ROUTES,
    *bulk.ROUTES,
    *bulk_consumers.ROUTES,
    *system.ROUTES,
    *page.ROUTES,
)
"""Every route except the schema's; if several match, the first wins."""
