"""Limits of the service: sizes, counts and deadlines. Every value is bounded; nothing is unlimited."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from mrecordlog_async.options import KIB
from mrecordlog_async.support.machine import BUDGETS, fit_budgets, machine_memory

FITTED: Any = None
"""Stands for a default that depends on the machine. It is replaced when the options are made."""


@dataclass(frozen=True, slots=True)
class ServiceOptions:
    """Limits for clients, and who is admitted.

    The defaults of body_bytes (80 MiB), bodies_bytes (88 MiB), control_bytes (16 MiB), read_bytes, sending_bytes and
    unread_bytes (64 MiB) are for a machine or container of 1 GiB or more. With less memory they shrink in proportion:
    to a quarter in a container of 256 MiB.

    Three kinds of limits: what one request may ask for (above it the response is 413, or a read is shorter), what all
    requests may hold together (above it 429, or the connections that hold most are cut), and deadlines. A body has
    `body_seconds`; each `body_rate_bytes` that arrive give it one more second, but never more than `body_seconds` from
    then. So it is with readers, `write_seconds` and `write_rate_bytes`.

    Args:
        body_bytes: Size of one request body.
        bodies_bytes: All request bodies, charged as they arrive until the response, with 64 bytes for each record. An
            eighth is reserved for bodies below 1 MiB; JSON bodies up to 64 KiB, such as truncates, are not charged.
        body_records: Records in one body.
        control_bytes: Size of a JSON body other than an append.
        read_bytes: Payload bytes in one response to a read, however much was requested.
        read_records: Records in one response to a read.
        sending_bytes: All responses above 64 KiB: each is charged for what it holds at a time until it is sent. That is
            1 MiB, and besides that the records of a read, 4 MiB of a fetch, or the whole of a JSON list. While little
            room is left, reads return fewer records.
        unread_bytes: Requests that wait for an earlier one on their connection, and small responses that are not read;
            above it the connections that hold most are cut.
        entries: Queues or ranges in one plan, fetch or truncate.
        pieces: Cut points in one plan.
        list_queues: Queues on one page of a listing that is requested with `limit`.
        metrics_queues: Queues, and consumers, that get their own series in /metrics; the first ones by name.
        body_seconds: Longest pause in a body.
        body_rate_bytes: Lowest rate of a body, in bytes per second.
        write_seconds: Longest pause of a reader.
        write_rate_bytes: Lowest rate of a reader, in bytes per second.
        header_seconds: From connecting to a whole request head.
        idle_seconds: Between two requests of a connection; a tenth of it when connections run out.
        wait_seconds: Longest long poll.
        heartbeat_seconds: Longest silence of a tail that has no records to send.
        drain_seconds: How long requests may take to finish after SIGTERM.
        stall_seconds: The service is not ready once a commit has been under way for this long; 0 turns that off.
        connections: Open connections, including those whose TLS handshake is under way.
        tails: Clients that wait for records, with long polls or as server-sent events.
        tokens: Bearer tokens, any of which admits a request; none admits every request.
        hosts: Host names that are allowed; none allows all.
        metrics_per_queue: Add series for each queue to /metrics, labelled with its name.
        name: Name of the service in `/v1/log`, for people; empty for the host name.

    Raises:
        ValueError: A size or count is below 1, bodies_bytes is below body_bytes, or a token is empty or has whitespace
            around it.
    """

    body_bytes: int = FITTED
    bodies_bytes: int = FITTED
    body_records: int = 250_000
    control_bytes: int = FITTED
    read_bytes: int = FITTED
    read_records: int = 100_000
    sending_bytes: int = FITTED
    unread_bytes: int = FITTED
    entries: int = 100_000
    pieces: int = 100_000
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
    stall_seconds: float = 5.0
    connections: int = 4_096
    tails: int = 1_024
    tokens: frozenset[bytes] = frozenset()
    hosts: frozenset[str] = frozenset()
    metrics_per_queue: bool = False
    name: str = ""

    def __post_init__(self) -> None:
        sizes = {name: getattr(self, name) for name in BUDGETS if name in self.__dataclass_fields__}
        for name, size in fit_budgets(sizes, machine_memory()).items():
            object.__setattr__(self, name, size)
        for name in [field.name for field in fields(self) if field.type == "int"]:
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)!r}")
        if self.bodies_bytes < self.body_bytes:
            raise ValueError(f"bodies_bytes ({self.bodies_bytes}) is below body_bytes ({self.body_bytes}); raise it")
        if any(not token or token != token.strip() for token in self.tokens):
            raise ValueError(
                "a token is empty or has whitespace around it: pass token.strip(), and leave out an empty one"
            )
