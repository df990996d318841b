"""What the service allows: sizes, counts and deadlines. Every value is bounded; nothing is unlimited."""

from __future__ import annotations

from dataclasses import dataclass

from mrecordlog_async.options import KIB, MIB


@dataclass(frozen=True, slots=True)
class ServiceOptions:
    """Limits for clients, and who is admitted.

    What one request may ask for; above it the response is 413, or shorter where that is a read:

    body_bytes: one request body. control_bytes: a JSON body other than an append. body_records: records in one body.
    read_bytes and read_records: payload and records in one response to a read, however much was asked for. entries:
    queues or ranges in one plan, fetch or truncate. pieces: cut points in one plan. fetch_runs: runs in one fetch.
    list_queues: queues on one page of a listing that was asked for with `limit`. metrics_queues: queues with series
    of their own in /metrics.

    What all requests may hold together, in bytes; above it the response is 429:

    bodies_bytes: request bodies, charged as they arrive until the response, with 64 bytes for each record.
    An eighth is kept for bodies below 1 MiB; JSON bodies up to 64 KiB, such as truncates, are not charged at all.
    sending_bytes: responses above 64 KiB, charged what they hold at a time (1 MiB, or a whole JSON response) until they
    are sent, and truncated records that they still hold.

    unread_bytes: requests that wait for another one on their connection, and small responses that nobody has taken;
    above it the connections that hold most are cut.

    Time: body_seconds + size / body_rate_bytes: how long a body may take, and body_seconds the longest pause in it.
    write_seconds + size / write_rate_bytes: how long a reader may take for its response, and write_seconds its longest
    pause. header_seconds: from connecting to a whole request head. idle_seconds: between two requests; a fraction of
    it when connections run out. wait_seconds: the longest long poll. drain_seconds: how long requests may go on after
    SIGTERM.

    tokens: bearer tokens, any of which admits a request; none admits every request. hosts: allowed Host names; none:
    all. metrics_per_queue: series for each queue in /metrics, which costs a line per queue and shows their names.
    """

    body_bytes: int = 80 * MIB
    bodies_bytes: int = 96 * MIB
    body_records: int = 250_000
    control_bytes: int = 16 * MIB
    read_bytes: int = 64 * MIB
    read_records: int = 100_000
    sending_bytes: int = 96 * MIB
    unread_bytes: int = 64 * MIB
    entries: int = 100_000
    pieces: int = 100_000
    fetch_runs: int = 1_000_000
    list_queues: int = 10_000
    metrics_queues: int = 10_000
    body_seconds: float = 10.0
    body_rate_bytes: int = 64 * KIB
    write_seconds: float = 30.0
    write_rate_bytes: int = 64 * KIB
    header_seconds: float = 10.0
    idle_seconds: float = 75.0
    wait_seconds: float = 60.0
    heartbeat_seconds: float = 15.0
    drain_seconds: float = 20.0
    connections: int = 4_096
    tails: int = 1_024
    tokens: frozenset[bytes] = frozenset()
    hosts: frozenset[str] = frozenset()
    metrics_per_queue: bool = False

    def __post_init__(self) -> None:
        for name in (
            "body_bytes",
            "bodies_bytes",
            "body_records",
            "control_bytes",
            "read_bytes",
            "read_records",
            "sending_bytes",
            "unread_bytes",
            "entries",
            "pieces",
            "fetch_runs",
            "list_queues",
            "metrics_queues",
            "body_rate_bytes",
            "write_rate_bytes",
            "connections",
            "tails",
        ):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)!r}")
        if self.bodies_bytes < self.body_bytes:
            raise ValueError("bodies_bytes must be at least body_bytes, or the largest body could never be received")
