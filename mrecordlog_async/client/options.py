"""Connection options of a client: address, identity, and how long it waits; checked before anything is sent."""

from __future__ import annotations

import re
from typing import NamedTuple

from yarl import URL

from mrecordlog_async.servers.names import Endpoint, check_url

CONNECT_SECONDS = 5.0

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
        return self

    @property
    def socket_path(self) -> str | None:
        """The Unix socket to connect to; None for a host."""
        return self.place.url.removeprefix("unix:") if self.place.url.startswith("unix:") else None

    @property
    def base(self) -> str:
        """Base of every path: the URL, percent-encoded, without a slash at its end."""
        return "http://localhost" if self.place.url.startswith("unix:") else str(URL(self.place.url)).rstrip("/")


def check_token(token: str | None, url: str = "") -> None:
    """Raise ValueError for a token that no header can hold, or that requests to *url* cannot have."""
    if token is not None and _CONTROL.search(token):
        raise ValueError("the token holds a line break or another control character: pass token.strip()")
    if token and URL(url).user is not None:
        raise ValueError("the URL has a user name, and a request cannot have a token as well: leave one out")
