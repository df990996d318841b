"""The HTTP service: one log, its routes, and limits on what clients may make it hold.

A request passes these files, in this order:

    server             runs the service as a process: listen, recover, serve, shut down, exit code
    listening          the sockets of that process
    connections        how many connections are allowed, how long one may be idle, what nobody takes yet
    bridge             the application for each request that aiohttp has parsed; below other servers, nothing
    app                the ASGI application: from the table of routes to handlers, from errors to problems
    http               requests and responses, whichever server is below
    security           who is admitted: token, Host, Origin
    reading/parameters queue name and query parameters
    routes/            the handlers, one file per group of routes
    bodies             request bodies, under limits and deadlines
    splitting          bodies into records, by content type
    formats            records into response bodies, by Accept
    sending            responses being sent, under limits and deadlines

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
    access_log              a line per request
    tls                     the certificate, read again when it changes
    page/                   the page at /: HTML, style and scripts

What keeps it within its bounds:

    options         every limit, with its default
    turns           long work on the event loop, cut into short turns
    watching/trim_memory  memory returned to the system after large requests
"""

from __future__ import annotations

from mrecordlog_async.service.options import ServiceOptions

__all__ = ["ServiceOptions"]
