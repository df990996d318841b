"""JSON bodies of the routes for consumers, and for the options of queues.

A holder attaches with `POST …/attach` and gets an epoch. It sends the epoch with every read, acknowledgement and seek;
once another holder has attached, the older epoch is refused (409 "consumer_fenced"). An epoch is never used twice, not
even after a queue was deleted and created again, so it also names the incarnation of the queue; `id` is checked too if
it is sent.
"""

from __future__ import annotations

from dataclasses import fields
from enum import StrEnum
from inspect import cleandoc
from typing import Annotated, Literal

from msgspec import Meta, defstruct, field

from mrecordlog_async.options import QUEUE_CHOICES, QUEUE_OPTIONS, QueueOptions
from mrecordlog_async.protocol.schemas import Count, NextPosition, Position, QueueId, QueueName, Request, Response

Epoch = Annotated[int, Meta(ge=0, le=2**63 - 1)]
ConsumerName = Annotated[str, Meta(max_length=65_535)]
Seconds = Annotated[float, Meta(gt=0)]

# Options of a queue.


# Both bodies have the members of `QueueOptions`, and their meanings from its docstring: an option is written down once.


def _wanted(name: str) -> object:
    """Return the type of an option in a request, where its value is checked."""
    unit = QUEUE_OPTIONS[name].unit
    return Literal[QUEUE_CHOICES[name]] if not unit else (Seconds if unit == "seconds" else Count) | None


def _shown(name: str) -> object:
    """Return the type of an option in a response. Later versions may know more words, and larger limits."""
    unit = QUEUE_OPTIONS[name].unit
    return str if not unit else (float if unit == "seconds" else int) | None


_MEANINGS = (
    cleandoc(QueueOptions.__doc__ or "")
    .partition("Attributes:\n")[2]
    .partition("\n\nRaises:")[0]
    .replace("None", "null")
    .replace(" with `LogFullError`", "")
)

QueueOptionsRequest = defstruct(
    "QueueOptionsRequest",
    [(one.name, _wanted(one.name), one.default) for one in fields(QueueOptions)],
    bases=(Request,),
    frozen=True,
    module=__name__,
    namespace={
        "__doc__": f"The options of a queue; those that are left out have their defaults.\n\nAttributes:\n{_MEANINGS}",
    },
)

QueueOptionsResponse = defstruct(
    "QueueOptionsResponse",
    [("queue", str), *((name, _shown(name)) for name in QUEUE_OPTIONS), ("sealed", bool)],
    bases=(Response,),
    frozen=True,
    module=__name__,
    namespace={
        "__doc__": "The options of a queue.\n\n"
        f"Attributes:\n    queue: Name of the queue.\n{_MEANINGS}\n    sealed: The queue accepts no more records.",
    },
)


class SealRequest(Request, frozen=True):
    """Seal a queue: it accepts no more records.

    Attributes:
        id: If given, seal only this incarnation of the queue.
    """

    id: QueueId | None = None


class SealResponse(Response, frozen=True):
    """Result of sealing a queue.

    Attributes:
        queue: Name of the queue.
        next_position: Its next position, which no record will have.
    """

    queue: str
    next_position: int


# Consumers of a queue.


class ConsumerResponse(Response, frozen=True, gc=False):
    """Position of a consumer.

    Attributes:
        queue: Name of the queue.
        consumer: Its name.
        position: The first position that it has not acknowledged.
        records: Number of retained records from there on.
        bytes: Their payload bytes.
        epoch: Number of its holder.
        owner: The UUID that alone may attach to it; null for anybody.
        skipped: Records that were truncated before it acknowledged them, since the log was opened.
        oldest_seconds: Age of the oldest of its waiting records; null if none waits.
        idle_seconds: Seconds since its holder attached, acknowledged or read; 0 while that waits for records. A holder
            from before the log was opened counts as seen then. Null if it has none.
    """

    queue: str
    consumer: str
    position: int
    records: int
    bytes: int
    epoch: int
    owner: str | None = None
    skipped: int = 0
    oldest_seconds: float | None = None
    idle_seconds: float | None = None


class RuleResponse(Response, frozen=True, gc=False):
    """A rule: every queue whose name matches gets the consumer when it is created.

    Attributes:
        pattern: What names are compared with; `*` stands for any characters.
        consumer: Name of the consumer.
    """

    pattern: str
    consumer: str


class ConsumersResponse(Response, frozen=True):
    """Consumers, by queue and name.

    Attributes:
        consumers: The consumers.
        rules: The rules, on the first page of the consumers of all queues.
        next: If a page was requested and more queues, or consumers of the one queue, follow, the `after` of the next
            page; otherwise null.
    """

    consumers: list[ConsumerResponse]
    rules: list[RuleResponse] = field(default_factory=list)
    next: str | None = None


class ConsumerCreateRequest(Request, frozen=True):
    """Create a consumer.

    Attributes:
        start: The first position that it has not acknowledged, moved into what the queue retains; null for the first
            retained record.
    """

    start: NextPosition | None = None


class ConsumerCreateResponse(Response, frozen=True):
    """Result of creating a consumer.

    Attributes:
        queue: Name of the queue, or the pattern.
        consumer: Name of the consumer.
        created: False if it existed and `exist_ok` was given.
    """

    queue: str
    consumer: str
    created: bool


class AttachRequest(Request, frozen=True):
    """Become the holder of a consumer; every earlier holder is fenced off.

    Attributes:
        create: Create the consumer if it does not exist.
        start: Where it begins if it is created.
        owner: A UUID that alone may attach from now on; null for a consumer without an owner.
        take_over: Attach even if the consumer has another owner.
        if_idle_for: Attach only if the holder was not seen for this many seconds, or there is none; otherwise 409
            "consumer_held". Null attaches whatever the holder does.
    """

    create: bool = False
    start: NextPosition | None = None
    owner: str | None = None
    take_over: bool = False
    if_idle_for: Annotated[float, Meta(ge=0)] | None = None


class AttachResponse(Response, frozen=True, gc=False):
    """Values that the holder sends with its later requests.

    Attributes:
        queue: Name of the queue.
        consumer: Name of the consumer.
        id: Id of the queue.
        epoch: Number of this holder.
        position: The first position that is not acknowledged.
    """

    queue: str
    consumer: str
    id: int
    epoch: int
    position: int


class AcknowledgeRequest(Request, frozen=True):
    """Acknowledge everything up to a position.

    Attributes:
        position: The last position that is acknowledged.
        epoch: As `attach` returned it.
        id: Id of the queue, if it is to be checked.
    """

    position: Position
    epoch: Epoch
    id: QueueId | None = None


class SeekRequest(Request, frozen=True):
    """Continue at a position, forward or back.

    Attributes:
        position: From the first retained position up to the next one.
        epoch: As `attach` returned it; null for an operator, whose move fences off the holder.
        id: Id of the queue, if it is to be checked.
    """

    position: NextPosition
    epoch: Epoch | None = None
    id: QueueId | None = None


class ConsumerPositionResponse(Response, frozen=True, gc=False):
    """Present position of a consumer.

    Attributes:
        queue: Name of the queue.
        consumer: Name of the consumer.
        position: The first position that it has not acknowledged.
    """

    queue: str
    consumer: str
    position: int


class AcknowledgedResponse(Response, frozen=True, gc=False):
    """Result of a wait for an acknowledgement.

    Attributes:
        queue: Name of the queue.
        consumer: Name of the consumer.
        position: The position that was asked for.
        acknowledged: True if the consumer has acknowledged it; False if the wait is over.
    """

    queue: str
    consumer: str
    position: int
    acknowledged: bool


# Consumers of many queues.


class ConsumerStatus(StrEnum):
    """Finding of a bulk route about one consumer."""

    OK = "ok"
    """The request is done."""
    MISSING = "missing"
    """The queue does not exist."""
    RECREATED = "recreated"
    """The queue exists with another id."""
    NO_CONSUMER = "no_consumer"
    """The queue has no consumer of this name."""
    FENCED = "fenced"
    """Another holder has attached."""
    OWNED = "owned"
    """The consumer belongs to another owner."""
    HELD = "held"
    """Its holder was seen more recently than `if_idle_for` allows."""
    AHEAD = "ahead"
    """The queue has not assigned the position yet."""
    FULL = "full"
    """There is no room: the disk is full, or the limit on consumers is reached. Try again later."""


class AttachManyRequest(Request, frozen=True):
    """Become the holder of the consumer of one name on many queues.

    Attributes:
        consumer: Name of the consumer.
        queues: Names of the queues.
        create: Create the consumers that do not exist.
        owner: As for one consumer.
        take_over: As for one consumer.
        if_idle_for: As for one consumer; where the holder was seen since, the status is "held".
    """

    consumer: ConsumerName
    queues: list[QueueName]
    create: bool = False
    owner: str | None = None
    take_over: bool = False
    if_idle_for: Annotated[float, Meta(ge=0)] | None = None


class AttachedOne(Response, frozen=True, gc=False):
    """Result of one attach; id, epoch and position are 0 unless the status is "ok".

    Attributes:
        queue: Name of the queue.
        status: See `ConsumerStatus`.
        id: Id of the queue.
        epoch: Number of this holder.
        position: The first position that is not acknowledged.
        detail: What happened, for people; null if it is attached.
        keep: What removes records from the queue: "until_truncated" or "until_acknowledged".
    """

    queue: str
    status: ConsumerStatus
    id: int = 0
    epoch: int = 0
    position: int = 0
    detail: str | None = None
    keep: str = "until_truncated"


class AttachManyResponse(Response, frozen=True):
    """Results of many attaches.

    Attributes:
        queues: One result for each queue, in the order of the request.
    """

    queues: list[AttachedOne]


class AcknowledgeOne(Request, frozen=True, gc=False):
    """One acknowledgement.

    Attributes:
        queue: Name of the queue.
        consumer: Name of the consumer.
        position: The last position that is acknowledged.
        epoch: As `attach` returned it.
        id: Id of the queue, if it is to be checked.
    """

    queue: QueueName
    consumer: ConsumerName
    position: Position
    epoch: Epoch
    id: QueueId | None = None


class AcknowledgeManyRequest(Request, frozen=True):
    """Acknowledgements of many queues; each is carried out or refused independently.

    Attributes:
        consumers: The acknowledgements.
        opening: The opening from the list of queues; 409 "reopened" for all if the log was opened again since.
    """

    consumers: list[AcknowledgeOne]
    opening: str | None = None


class AcknowledgedOne(Response, frozen=True, gc=False):
    """Result of one acknowledgement.

    Attributes:
        queue: Name of the queue.
        consumer: Name of the consumer.
        status: See `ConsumerStatus`.
        position: The first position that is not acknowledged; 0 unless the status is "ok".
        detail: What happened, for people; null if it is acknowledged.
    """

    queue: str
    consumer: str
    status: ConsumerStatus
    position: int = 0
    detail: str | None = None


class AcknowledgeManyResponse(Response, frozen=True):
    """Results of many acknowledgements.

    Attributes:
        consumers: One result for each acknowledgement, in the order of the request.
    """

    consumers: list[AcknowledgedOne]
