"""What the service allows: sizes, counts and deadlines. Every one of them has an end; none is "unlimited"."""

from __future__ import annotations

from dataclasses import dataclass

from mrecordlog_async.options import KIB, MIB


@dataclass(frozen=True, slots=True)
class ServiceOptions:
    """Bounds for clients, and who is let in.

    body_bytes: one request body. bodies_bytes: all bodies that are being received. body_records: records in one body.
    read_bytes: payload in one answer, however large a `max_bytes` was asked for.
    body_seconds + size / body_rate_bytes: how long a body may take. write_seconds: how long a reader may not take what
    it asked for. header_seconds: from connecting to a whole request head. idle_seconds: between two requests.
    wait_seconds: the longest long poll. drain_seconds: how long requests may go on after SIGTERM.
    tokens: any of these bearer tokens lets in; none means that everybody is. hosts: allowed Host names; none: all.
    metrics_per_queue: series for each queue in /metrics, which costs a line a queue and shows their names.
    """

    body_bytes: int = 80 * MIB
    bodies_bytes: int = 256 * MIB
    body_records: int = 1_000_000
    read_bytes: int = 64 * MIB
    body_seconds: float = 10.0
    body_rate_bytes: int = 64 * KIB
    write_seconds: float = 30.0
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
            "read_bytes",
            "body_rate_bytes",
            "connections",
            "tails",
        ):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)!r}")
        if self.bodies_bytes < self.body_bytes:
            raise ValueError("bodies_bytes must be at least body_bytes, or the largest body could never be received")
