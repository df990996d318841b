"""Responses that only a broken service or proxy sends, and a client that receives them."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from mrecordlog_async.spark.client import ServiceClient
from mrecordlog_async.spark.option_values import Server


@contextmanager
def client_of(url: str, retries: int = 0, token: str | None = None) -> Iterator[ServiceClient]:
    client = ServiceClient(Server("s", url), token=token, timeout_seconds=10, retries=retries)
    try:
        yield client
    finally:
        client.close()


@contextmanager
def serving(*responses: bytes) -> Iterator[tuple[str, list[bytes]]]:
    """Serve raw *responses*, one per connection; yield the address and the requests received."""
    listener = socket.create_server(("127.0.0.1", 0))
    requests: list[bytes] = []

    def serve() -> None:
        for response in responses:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                requests.append(connection.recv(65_536))
                connection.sendall(response)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", requests
    finally:
        with suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)  # wakes the thread if a response was not requested
        listener.close()
        thread.join(10)


def http(body: bytes, status: str = "200 OK", headers: str = "") -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n{headers}\r\n".encode() + body


LISTING = b'{"queues": []}'
