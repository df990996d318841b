"""Responses that only a broken service or proxy sends, and a client that receives them."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from mrecordlog_async.servers.names import Endpoint
from mrecordlog_async.spark.log_server import LogServer, Patience


@contextmanager
def client_of(
    url: str, retries: int = 0, token: str | None = None, *, seconds: float = 60.0, wait_seconds: float = 0.0
) -> Iterator[LogServer]:
    client = LogServer("s", Endpoint(url), token, patience=Patience(seconds, retries, wait_seconds))
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
                requests.append(receive(connection))
                connection.sendall(response)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", requests
    finally:
        with suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)  # wakes the thread if a response was not requested
        listener.close()
        thread.join(60)


def receive(connection: socket.socket) -> bytes:
    """Read one request, whole: a client must not be cut off while it sends."""
    data = b""
    while piece := connection.recv(65_536):
        data += piece
        head, end, body = data.partition(b"\r\n\r\n")
        length = re.search(rb"content-length: *(\d+)", head, re.IGNORECASE)
        if end and len(body) >= (int(length[1]) if length else 0):
            break
    return data


def http(body: bytes, status: str = "200 OK", headers: str = "") -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n{headers}\r\n".encode() + body


LISTING = b'{"queues": []}'


@contextmanager
def misbehaving(how: str, port: int = 0) -> Iterator[tuple[str, list[bytes]]]:
    """Serve what a bad proxy or a service that hangs sends; yield the address and the requests received."""
    responses = {
        "hangs": b"",
        "trickles": b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n",
        "502": b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n",
        "half": b'HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{"queues": [',
        "page": b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n<html>",
        "404": b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n",
    }
    listener = socket.create_server(("127.0.0.1", port))
    requests: list[bytes] = []
    kept: list[socket.socket] = []
    ended = threading.Event()

    def trickle(connection: socket.socket) -> None:
        with suppress(OSError):  # the client has gone
            while not ended.wait(0.02):
                connection.sendall(b" ")

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            requests.append(receive(connection))
            connection.sendall(responses[how])
            if how == "trickles":
                threading.Thread(target=trickle, args=(connection,), daemon=True).start()
            if how in ("hangs", "trickles"):
                kept.append(connection)
            else:
                connection.close()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", requests
    finally:
        with suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(60)
        ended.set()
        for connection in kept:
            connection.close()
