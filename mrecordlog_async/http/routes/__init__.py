"""The routes, one module a group. `TABLE` is the one list of them: the application and the schema are made from it."""

from __future__ import annotations

from mrecordlog_async.http.routes import bulk, page, queues, records, system, tails
from mrecordlog_async.http.routes.route import Route

TABLE: tuple[Route, ...] = (*records.ROUTES, *queues.ROUTES, *tails.ROUTES, *bulk.ROUTES, *system.ROUTES, *page.ROUTES)
"""Every route of the service; the first are found first."""
