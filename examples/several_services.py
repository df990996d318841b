"""Several services, of which a key chooses one for each record (rendezvous hashing).

All senders rank the services of a key in the same way, so they agree without talking to each other, and a new service
takes only its own share of the keys. A service that is down is passed over, if nothing was sent to it.
"""

import asyncio
from collections.abc import Sequence
from hashlib import blake2b

from mrecordlog_async.client import RecordLogClient, ServiceUnreachableError


class Services:
    """Several services, of which a key chooses one. Each record is stored in one of them."""

    def __init__(self, urls: Sequence[str]) -> None:
        # One attempt each: in place of another attempt, the next service is tried.
        self.clients = {url: RecordLogClient(url, retry_seconds=0.0) for url in urls}

    def ranked(self, key: str) -> list[str]:
        """Return the URLs in the order in which *key* tries them."""
        return sorted(self.clients, key=lambda url: blake2b(f"{key} {url}".encode()).digest())

    async def append(self, queue: str, payload: bytes, key: str) -> tuple[str, int]:
        """Store a record; return the URL of its service, and its position there."""
        unreachable: ServiceUnreachableError | None = None
        for url in self.ranked(key):
            try:
                return url, await self.clients[url].append(queue, payload, create=True)
            except ServiceUnreachableError as error:
                if error.sent:  # it may be stored: elsewhere it would be there twice
                    raise
                unreachable = error
        assert unreachable is not None, "there is at least one service"
        raise unreachable

    async def close(self) -> None:
        for client in self.clients.values():
            await client.close()


async def main() -> None:
    services = Services(["http://localhost:8080", "http://localhost:8081"])
    try:
        print(await services.append("clicks", b"one click", key="user 7"))
    finally:
        await services.close()


if __name__ == "__main__":
    asyncio.run(main())
