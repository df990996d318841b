"""JSON bodies of the routes for consumers, and for the options of queues.

A holder attaches with `POST …/attach` and gets an epoch. It sends the epoch with every read, acknowledgement and seek;
once another holder has attached, the older epoch is refused (409 "consumer_fenced"). An epoch is never used twice, not
even after a queue was deleted and created again, so it also names the incarnation of the queue; `id` is checked too if
it is sent.
"""

from __future__ import annotations

import re
from dataclasses import fields
from enum import StrEnum
from inspect import cleandoc
from typing import Annotated, Literal

from msgspec import Meta, defstruct, field

from mrecordlog_async.options import QUEUE_CHOICES, QUEUE_OPTIONS, QueueOptions
from mrecordlog_async.protocol.schemas import Count, NextPosition, Position, QueueId, QueueName, Request, Response, says

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


_ATTRIBUTES = cleandoc(QueueOptions.__doc__ or "").partition("Attributes:\n")[2].partition("\n\nRaises:")[0]
_MEANINGS = {
    name: says(" ".join(text.replace("None", "null").replace(" with `LogFullError`", "").split()))
    for name, text in re.findall(r"^ {4}(\w+): (.+(?:\n {8}.+)*)", _ATTRIBUTES, re.MULTILINE)
}

QueueOptionsRequest = defstruct(
    "QueueOptionsRequest",
    [(one.name, Annotated[_wanted(one.name), _MEANINGS[one.name]], one.default) for one in fields(QueueOptions)],
    bases=(Request,),
    frozen=True,
    module=__name__,
    namespace={"__doc__": "The options of a queue; those that are left out have their defaults."},
)

QueueOptionsResponse = defstruct(
    "QueueOptionsResponse",
    [
        ("queue", Annotated[str, says("Name of the queue.")]),
        *((name, Annotated[_shown(name), _MEANINGS[name]]) for name in QUEUE_OPTIONS),
        ("sealed", Annotated[bool, says("The queue accepts no more records.")]),
    ],
    bases=(Response,),
    frozen=True,
    module=__name__,
    namespace={"__doc__": "The options of a queue."},
)


class SealRequest(Request, frozen=True):
    """Seal a queue: it accepts no more records."""

    id: Annotated[QueueId | None, says("If given, seal only this incarnation of the queue.")] = None


class SealResponse(Response, frozen=True):
    """Result of sealing a queue."""

    queue: Annotated[str, says("Name of the queue.")]
    next_position: Annotated[int, says("Its next position, which no record will have.")]


# Consumers of a queue.


class ConsumerResponse(Response, frozen=True, gc=False):
    """Position of a consumer."""

    queue: Annotated[str, says("Name of the queue.")]
    consumer: Annotated[str, says("Its name.")]
    position: Annotated[int, says("The first position that it has not acknowledged.")]
    records: Annotated[int, says("Number of retained records from there on.")]
    bytes: Annotated[int, says("Their payload bytes.")]
    epoch: Annotated[int, says("Number of its holder.")]
    owner: Annotated[str | None, says("The UUID that alone may attach to it; null for anybody.")] = None
    skipped: Annotated[
        int, says("Records that were truncated before it acknowledged them, since the log was opened.")
    ] = 0
    oldest_seconds: Annotated[float | None, says("Age of the oldest of its waiting records; null if none waits.")] = (
        None
    )
    idle_seconds: Annotated[
        float | None,
        says(
            "Seconds since its holder attached, acknowledged or read; 0 while that waits for records. A holder "
            "from before the log was opened counts as seen then. Null if it has none."
        ),
    ] = None


class RuleResponse(Response, frozen=True, gc=False):
    """A rule: every queue whose name matches gets the consumer when it is created."""

    pattern: Annotated[str, says("The pattern that names must match; `*` stands for any characters.")]
    consumer: Annotated[str, says("Name of the consumer.")]


class ConsumersResponse(Response, frozen=True):
    """Consumers, by queue and name."""

    consumers: Annotated[list[ConsumerResponse], says("The consumers.")]
    rules: Annotated[list[RuleResponse], says("The rules, on the first page of the consumers of all queues.")] = field(
        default_factory=list
    )
    next: Annotated[
        str | None,
        says(
            "If a page was requested and more queues, or consumers of the one queue, follow, the `after` of the "
            "next page; otherwise null."
        ),
    ] = None


class ConsumerCreateRequest(Request, frozen=True):
    """Create a consumer."""

    start: Annotated[
        NextPosition | None,
        says(
            "The first position that it has not acknowledged, moved into what the queue retains; null for the "
            "first retained record."
        ),
    ] = None


class ConsumerCreateResponse(Response, frozen=True):
    """Result of creating a consumer."""

    queue: Annotated[str, says("Name of the queue, or the pattern.")]
    consumer: Annotated[str, says("Name of the consumer.")]
    created: Annotated[bool, says("False if it existed and `exist_ok` was given.")]


class AttachRequest(Request, frozen=True):
    """Become the holder of a consumer; every earlier holder is fenced off."""

    create: Annotated[bool, says("Create the consumer if it does not exist.")] = False
    start: Annotated[NextPosition | None, says("Where it begins if it is created.")] = None
    owner: Annotated[
        str | None, says("A UUID that alone may attach from now on; null for a consumer without an owner.")
    ] = None
    take_over: Annotated[bool, says("Attach even if the consumer has another owner.")] = False
    if_idle_for: Annotated[
        Annotated[float, Meta(ge=0)] | None,
        says(
            "Attach only if the holder was not seen for this many seconds, or there is none; otherwise 409 "
            '"consumer_held". Null attaches whatever the holder does.'
        ),
    ] = None


class AttachResponse(Response, frozen=True, gc=False):
    """Values that the holder sends with its later requests."""

    queue: Annotated[str, says("Name of the queue.")]
    consumer: Annotated[str, says("Name of the consumer.")]
    id: Annotated[int, says("Id of the queue.")]
    epoch: Annotated[int, says("Number of this holder.")]
    position: Annotated[int, says("The first position that is not acknowledged.")]


class AcknowledgeRequest(Request, frozen=True):
    """Acknowledge everything up to a position."""

    position: Annotated[Position, says("The last position that is acknowledged.")]
    epoch: Annotated[Epoch, says("As `attach` returned it.")]
    id: Annotated[QueueId | None, says("Id of the queue, if it is to be checked.")] = None


class SeekRequest(Request, frozen=True):
    """Continue at a position, forward or back."""

    position: Annotated[NextPosition, says("From the first retained position up to the next one.")]
    epoch: Annotated[
        Epoch | None, says("As `attach` returned it; null for an operator, whose move fences off the holder.")
    ] = None
    id: Annotated[QueueId | None, says("Id of the queue, if it is to be checked.")] = None


class ConsumerPositionResponse(Response, frozen=True, gc=False):
    """Present position of a consumer."""

    queue: Annotated[str, says("Name of the queue.")]
    consumer: Annotated[str, says("Name of the consumer.")]
    position: Annotated[int, says("The first position that it has not acknowledged.")]


class AcknowledgedResponse(Response, frozen=True, gc=False):
    """Result of a wait for an acknowledgement."""

    queue: Annotated[str, says("Name of the queue.")]
    consumer: Annotated[str, says("Name of the consumer.")]
    position: Annotated[int, says("The position that was asked for.")]
    acknowledged: Annotated[bool, says("True if the consumer has acknowledged it; False if the wait is over.")]


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
    """Become the holder of the consumer of one name on many queues."""

    consumer: Annotated[ConsumerName, says("Name of the consumer.")]
    queues: Annotated[list[QueueName], says("Names of the queues.")]
    create: Annotated[bool, says("Create the consumers that do not exist.")] = False
    owner: Annotated[str | None, says("As for one consumer.")] = None
    take_over: Annotated[bool, says("As for one consumer.")] = False
    if_idle_for: Annotated[
        Annotated[float, Meta(ge=0)] | None,
        says('As for one consumer; where the holder was seen since, the status is "held".'),
    ] = None


class AttachedOne(Response, frozen=True, gc=False):
    """Result of one attach; id, epoch and position are 0 unless the status is "ok"."""

    queue: Annotated[str, says("Name of the queue.")]
    status: Annotated[ConsumerStatus, says("See `ConsumerStatus`.")]
    id: Annotated[int, says("Id of the queue.")] = 0
    epoch: Annotated[int, says("Number of this holder.")] = 0
    position: Annotated[int, says("The first position that is not acknowledged.")] = 0
    detail: Annotated[str | None, says("What happened, for people; null if it is attached.")] = None
    keep: Annotated[str, says('What removes records from the queue: "until_truncated" or "until_acknowledged".')] = (
        "until_truncated"
    )


class AttachManyResponse(Response, frozen=True):
    """Results of many attaches."""

    queues: Annotated[list[AttachedOne], says("One result for each queue, in the order of the request.")]


class AcknowledgeOne(Request, frozen=True, gc=False):
    """One acknowledgement."""

    queue: Annotated[QueueName, says("Name of the queue.")]
    consumer: Annotated[ConsumerName, says("Name of the consumer.")]
    position: Annotated[Position, says("The last position that is acknowledged.")]
    epoch: Annotated[Epoch, says("As `attach` returned it.")]
    id: Annotated[QueueId | None, says("Id of the queue, if it is to be checked.")] = None


class AcknowledgeManyRequest(Request, frozen=True):
    """Acknowledgements of many queues; each is carried out or refused independently."""

    consumers: Annotated[list[AcknowledgeOne], says("The acknowledgements.")]
    opening: Annotated[
        str | None,
        says('The opening from the list of queues; 409 "reopened" for all if the log was opened again since.'),
    ] = None


class AcknowledgedOne(Response, frozen=True, gc=False):
    """Result of one acknowledgement."""

    queue: Annotated[str, says("Name of the queue.")]
    consumer: Annotated[str, says("Name of the consumer.")]
    status: Annotated[ConsumerStatus, says("See `ConsumerStatus`.")]
    position: Annotated[int, says('The first position that is not acknowledged; 0 unless the status is "ok".')] = 0
    detail: Annotated[str | None, says("What happened, for people; null if it is acknowledged.")] = None


class AcknowledgeManyResponse(Response, frozen=True):
    """Results of many acknowledgements."""

    consumers: Annotated[
        list[AcknowledgedOne], says("One result for each acknowledgement, in the order of the request.")
    ]
