"""The one table of cases in which addresses show logs: the roster and Spark decide alike.

Each case has looks at addresses: (seconds, address → what it shows), such as "x1" for the first opening of the log x;
an address that is missing does not respond. After the last look the logs in `used` are used, each once, and no other.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple


class Case(NamedTuple):
    """What addresses show, and which logs are used after that."""

    says: str
    looks: Sequence[tuple[float, Mapping[str, str]]]
    used: str


def at_a(*looks: tuple[float, str]) -> list[tuple[float, Mapping[str, str]]]:
    """Return looks at one address."""
    return [(seconds, {"a": shown}) for seconds, shown in looks]


CASES = [
    Case("two addresses of one server", [(0, {"a": "x1", "b": "x1"})], "x"),
    Case("a restart", at_a((0, "x1"), (10, "x2")), "x"),
    Case("many restarts", at_a(*((10 * n, f"x{n}") for n in range(20))), "x"),
    Case("a log that moves", [(0, {"a": "x1"}), (10, {"b": "x2"})], "x"),
    Case("an address that silence follows", [(0, {"a": "x1", "b": "y1"}), (10, {"b": "y1"})], "y"),
    Case("servers that change places", [(0, {"a": "x1", "b": "y1"}), (10, {"a": "y1", "b": "x1"})], "xy"),
    Case("a server that is replaced", at_a((0, "x1"), (10, "y1")), "y"),
    Case("a server that is replaced now and then", at_a((0, "x1"), (100, "y1"), (200, "z1")), "z"),
    Case("a server that is replaced and comes back, restarted", at_a((0, "x1"), (10, "y1"), (20, "x2")), "x"),
    Case("three logs within a minute", at_a((0, "x1"), (10, "y1"), (20, "z1")), ""),
    Case("three logs within a minute, one of them restarted", at_a((0, "x1"), (5, "y1"), (10, "x2"), (20, "z1")), ""),
    Case("a minute after the last of them came", at_a((0, "x1"), (10, "y1"), (20, "z1"), (81, "z1")), "z"),
    Case("a log that comes back at once", at_a((0, "x1"), (10, "y1"), (20, "x1")), ""),
    Case("a log that comes back after minutes", at_a((0, "x1"), (120, "y1"), (240, "x1")), ""),
    Case("a log that comes back after a day", at_a((0, "x1"), (43_200, "y1"), (86_400, "x1")), ""),
    Case("logs that take turns", at_a(*((120 * n, "xy"[n % 2] + "1") for n in range(9))), ""),
    Case("ten minutes after they did", at_a((0, "x1"), (120, "y1"), (240, "x1"), (841, "x1")), "x"),
    Case("a load balancer next to a server", [(0, {"a": "x1", "b": "v1"}), (9, {"a": "y1", "b": "v1"})] * 2, "v"),
    Case("two live copies", [(0, {"a": "x1", "b": "x2"})], ""),
    Case("two live copies, of which one responds", [(0, {"a": "x1"}), (10, {"b": "x2"}), (20, {"a": "x1"})], ""),
    Case("two live copies at one address", at_a((0, "x1"), (10, "x2"), (20, "x1")), ""),
    Case("one copy, a minute later", at_a((0, "x1"), (10, "x2"), (20, "x1"), (81, "x1")), "x"),
    Case("copies next to a server", [(0, {"a": "x1", "b": "x2", "c": "y1"})], "y"),
]


class Ticking:
    """A time that the test sets, and that passes with every look at it."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 0.001
        return self.now


class Addresses:
    """Addresses on this machine, by name, at which the test sets what responds."""

    def __init__(self) -> None:
        self.urls: dict[str, str] = {}
        self.shown: Mapping[str, str] = {}

    @property
    def servers(self) -> str:
        """The addresses as a user writes them."""
        return ",".join(f"{name}={url}" for name, url in self.urls.items())


def body(shown: str, path: str) -> bytes:
    """Return what the opening *shown* responds with."""
    if path.startswith("/v1/log"):
        facts = {"id": shown[:1], "name": "", "opening": shown, "openings": [], "durable_batch": 0, "at": None}
        return json.dumps(facts).encode()
    return json.dumps({"queues": [], "log": shown[:1], "opening": shown}).encode()


@contextmanager
def addresses(names: str = "abc") -> Iterator[Addresses]:
    """Run an HTTP server for each name."""
    found = Addresses()

    def handler(name: str) -> type[BaseHTTPRequestHandler]:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                if name not in found.shown:
                    return  # and the connection is closed
                content = body(found.shown[name], self.path)
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, format: str, *arguments: object) -> None:
                pass

        return Handler

    running = []
    try:
        for name in names:
            server = ThreadingHTTPServer(("127.0.0.1", 0), handler(name))
            thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
            thread.start()
            running.append((server, thread))
            found.urls[name] = f"http://127.0.0.1:{server.server_port}"
        yield found
    finally:
        for server, thread in running:
            server.shutdown()
            thread.join(60)
            server.server_close()
