"""Connection options of a client: address, identity, and how long it waits; checked before anything is sent."""

from __future__ import annotations

import re
from typing import NamedTuple
from urllib.parse import urlsplit

from mrecordlog_async.client.http1 import Target
from mrecordlog_async.protocol.log_schemas import LOG_ID
from mrecordlog_async.servers.names import Endpoint, check_url, shown_url

CLOSED = "the client is closed"

_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


class ClientOptions(NamedTuple):
    """The parameters of `RecordLogClient`, with the place of the service."""

    place: Endpoint
    token: str | None
    retry_seconds: float
    timeout_seconds: float
    response_seconds: float
    connections: int
    log_id: str | None = None

    @property
    def address(self) -> str:
        """The URL of the service, for messages."""
        return shown_url(self.place.url)

    def checked(self) -> ClientOptions:
        """Return the options; raise ValueError for one that no request can be sent with."""
        check_url(self.place.url)
        if self.connections < 1:
            raise ValueError(f"connections must be at least 1, not {self.connections}")
        if not self.retry_seconds >= 0:  # NaN is refused too: no deadline would ever pass
            raise ValueError(f"retry_seconds must be at least 0, not {self.retry_seconds}")
        for name in ("timeout_seconds", "response_seconds"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be above 0, not {getattr(self, name)}")
        check_token(self.token, self.place.url)
        if self.log_id is not None and _CONTROL.search(self.log_id):
            raise ValueError("log_id holds a line break or another control character")
        return self

    def target(self) -> Target:
        """Return where requests are sent, and what they have in common."""
        return Target.of(self.place, self.token, {LOG_ID: self.log_id})


def check_token(token: str | None, url: str = "") -> None:
    """Raise ValueError for a token that no header can hold, or that requests to *url* cannot have."""
    if token is not None and _CONTROL.search(token):
        raise ValueError("the token holds a line break or another control character: pass token.strip()")
    if token and urlsplit(url).username is not None:
        raise ValueError("the URL has a user name, and a request cannot have a token as well: leave one out")
