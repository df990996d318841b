"""Identity and progress of a log: the JSON bodies of `/v1/log` and of listings.

An address is only a way to a log. Responses that hand out positions carry the log's id in the header `X-Log-Id`; a
request that sends the header back is refused with 412 where another log responds at that address by now.
"""

from __future__ import annotations

from typing import Annotated

from mrecordlog_async.protocol.schemas import AtResponse, Response, UsageResponse, says

LOG_ID = "X-Log-Id"
"""Header of responses: the public id of the log. In a request: refuse it unless this log serves the address."""


class OpeningResponse(Response, frozen=True):
    """An opening of the log for writing."""

    nonce: Annotated[str, says("A random number, drawn for each opening, as 16 hexadecimal digits.")]
    first_batch: Annotated[int, says("Number of the first batch that it wrote.")]


class LogResponse(Response, frozen=True):
    """The log behind an address."""

    id: Annotated[str, says("Identifies the log, even after it was moved or restored.")]
    name: Annotated[str, says("Name of the service, for people: `serve --name`, otherwise its host name.")]
    opening: Annotated[str, says("Identifies this opening of the log; it is new whenever the log is opened.")]
    openings: Annotated[
        list[OpeningResponse],
        says(
            "The last openings that stored a batch, oldest first, at most 1,024. A log that is missing an opening "
            "it once had was rolled back to an older state."
        ),
    ]
    durable_batch: Annotated[
        int, says("Number of the last batch that is on the medium for certain; 0 before the first one.")
    ]
    at: Annotated[
        AtResponse | None, says("State of the log that its positions show; null if nothing was ever stored.")
    ] = None
    build: Annotated[
        str, says("`compiled` or `pure`: whether the service runs compiled loops, or their twins in Python.")
    ] = ""  # of a service before 0.3
    usage: Annotated[UsageResponse | None, says("Memory and disk in use, and their limits.")] = None
