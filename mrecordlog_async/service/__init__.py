"""The HTTP service: one log, its routes, and limits on what clients may make it hold.

A request passes these files, in this order:

    server             runs the service as a process: listen, recover, serve, shut down, exit code
    wire/connections   how many connections are allowed, and how long one may be idle
    asgi               the same below an ASGI server, instead of the two above
    app                the aiohttp application: from the table of routes to handlers, from errors to problems
    wire/security      who is admitted: token, Host, Origin
    reading/parameters queue name and query parameters
    routes/            the handlers, one file per group of routes
    wire/receive       request bodies, under limits and deadlines
    wire/splitting     bodies into records, by content type
    wire/formats       records into response bodies, by Accept
    wire/send          responses being sent, under limits and deadlines

What the routes use:

    service                 what all routes of one log share: its state, counters, waiting readers
    reading/queue_checks    id and position of a request, checked against the queue
    reading/plan            what to read of many queues (/v1/plan), cut into pieces
    reading/fetch           many ranges in one response (/v1/fetch)
    reading/queue_names     the sorted names of all queues
    watching/stats          numbers as JSON (/v1/stats)
    watching/prometheus     numbers for Prometheus (/metrics)
    watching/systemd        readiness and status, reported to systemd
    routes/openapi          the schema (/openapi.json)
    page/                   the page at /: HTML, style and scripts

What keeps it within its bounds:

    options         every limit, with its default
    wire/budgets    bytes that all requests share
    wire/turns      long work on the event loop, cut into short turns
    watching/trim_memory  memory returned to the system after large requests
"""

from __future__ import annotations

from mrecordlog_async.service.options import ServiceOptions

__all__ = ["ServiceOptions"]
