"""The requests about the consumer of one stream on one service, each for many queues."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import quote

from mrecordlog_async.spark.services.client import ServiceClient, chunks
from mrecordlog_async.spark.services.connection import QUEUES_AT_ONCE


class Attached(NamedTuple):
    """The outcome of attaching to one queue's consumer.

    Attributes:
        queue: the queue.
        status: ok, missing, owned or full.
        id: the queue's id.
        epoch: the number of this holder.
        position: the first position that is not acknowledged.
        frees: acknowledged records are dropped; otherwise the queue keeps them until they are truncated.
        detail: what happened, unless the status is "ok".
    """

    queue: str
    status: str
    id: int
    epoch: int
    position: int
    frees: bool
    detail: str


class Acknowledged(NamedTuple):
    """The outcome of one acknowledgement.

    Attributes:
        queue: the queue.
        status: ok, missing, recreated, no_consumer, fenced, ahead or full.
        position: the first position that is not acknowledged now.
        detail: what happened, unless the status is "ok".
    """

    queue: str
    status: str
    position: int
    detail: str


def add_rule(client: ServiceClient, pattern: str, consumer: str) -> None:
    """Give *consumer* to every queue that matches *pattern*, even to those that are created later."""
    path = f"/v1/queues/{quote(pattern, safe='')}/consumers/{quote(consumer, safe='')}?exist_ok=1"
    client.send("PUT", path, {}, lambda found: None)


def attach(
    client: ServiceClient, consumer: str, queues: Sequence[str], *, owner: str | None, take_over: bool, log: str
) -> list[Attached]:
    """Become the holder of *consumer* on *queues* of *log*; it is created where it does not exist."""
    request = {"consumer": consumer, "create": True, "owner": owner, "take_over": take_over}
    found: list[Attached] = []
    for part in chunks(queues, QUEUES_AT_ONCE):
        found += client.send("POST", "/v1/attach", {**request, "queues": part}, _attached, log)
    return found


def acknowledge(
    client: ServiceClient, consumer: str, queues: Mapping[str, tuple[int, int, int]], *, opening: str
) -> list[Acknowledged]:
    """Acknowledge many queues.

    Args:
        client: the service.
        consumer: its name.
        queues: queue → (id, last position that is acknowledged, epoch).
        opening: refuse the request unless this is still the log's opening.
    """
    named = [
        {"queue": queue, "consumer": consumer, "id": queue_id, "position": position, "epoch": epoch}
        for queue, (queue_id, position, epoch) in queues.items()
    ]
    found: list[Acknowledged] = []
    for part in chunks(named, QUEUES_AT_ONCE):
        request = {"consumers": part} | ({"opening": opening} if opening else {})
        found += client.send("POST", "/v1/acknowledge", request, _acknowledged)
    return found


def seek(client: ServiceClient, consumer: str, queue: str, at: tuple[int, int, int]) -> None:
    """Move *consumer* on *queue*. at: (id, first position that is not acknowledged, epoch)."""
    path = f"/v1/queues/{quote(queue, safe='')}/consumers/{quote(consumer, safe='')}/seek"
    client.send("POST", path, {"id": at[0], "position": at[1], "epoch": at[2]}, lambda found: None)


def _attached(found: Mapping[str, Any]) -> list[Attached]:
    return [
        Attached(
            each["queue"],
            each["status"],
            each["id"],
            each["epoch"],
            each["position"],
            each["keep"] == "until_acknowledged",
            each["detail"] or "",
        )
        for each in found["queues"]
    ]


def _acknowledged(found: Mapping[str, Any]) -> list[Acknowledged]:
    return [
        Acknowledged(each["queue"], each["status"], each["position"], each["detail"] or "")
        for each in found["consumers"]
    ]
