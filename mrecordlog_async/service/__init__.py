"""The HTTP service: one log, its routes, and limits on what clients may make it hold.

A request passes these files, in this order:

    server          runs the service as a process: listen, recover, serve, shut down, exit code
    connections     how many connections are allowed, and how long one may be idle
    asgi            the same below an ASGI server, instead of the two above
    app             the aiohttp application: from the table of routes to handlers, from errors to problems
    security        who is admitted: token, Host, Origin
    parameters      queue name and query parameters
    routes/         the handlers, one file per group of routes
    receive         request bodies, under limits and deadlines
    splitting       bodies into records, by content type
    formats         records into response bodies, by Accept
    send            responses being sent, under limits and deadlines

What the routes use:

    service         what all routes of one log share: its state, counters, waiting readers
    queue_checks    id and position of a request, checked against the queue
    plan            what to read of many queues (/v1/plan)
    fetch           many ranges in one response (/v1/fetch)
    cutting         runs cut at limits and into pieces
    queue_names     the sorted names of all queues
    stats           numbers as JSON (/v1/stats)
    prometheus      numbers for Prometheus (/metrics)
    consumer_metrics  … how far consumers are behind
    openapi         the schema (/openapi.json)
    page/           the page at /: HTML, style and scripts

What keeps it within its bounds:

    options         every limit, with its default
    budgets         bytes that all requests share
    turns           long work on the event loop, cut into short turns
    trim_memory     memory returned to the system after large requests
    systemd         readiness and status, reported to systemd
"""

from __future__ import annotations

from mrecordlog_async.service.options import ServiceOptions

__all__ = ["ServiceOptions"]
