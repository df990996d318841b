"""A real S3 server in its own process: delta-rs holds Python's lock while it waits for some responses."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.request import Request, urlopen

from tests.serving import free_port

BUCKET = "s3://lake"


@contextmanager
def s3_server(place: Path) -> Iterator[dict[str, str]]:
    """Start a server with one bucket; yield what delta-rs needs to reach it."""
    url = f"http://127.0.0.1:{free_port()}"
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", url.rpartition(":")[2]]
    with open(place / "log", "wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        _create_bucket(f"{url}/lake")
        yield {
            "AWS_ENDPOINT_URL": url,
            "AWS_ALLOW_HTTP": "true",
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_REGION": "us-east-1",
        }
    finally:
        process.terminate()
        process.wait(60)


def _create_bucket(url: str) -> None:
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline:
        with suppress(OSError):
            urlopen(Request(url, method="PUT")).close()
            return
        time.sleep(0.05)
    raise AssertionError("the S3 server does not start")
