"""The page, in a real browser against a real service."""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from mrecordlog_async.model import RecoveryProgress
from tests.page.browser import Browser, browser, missing
from tests.serving import Process, serving

pytestmark = pytest.mark.skipif(missing() is not None, reason=missing() or "")

EVIL = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"


@pytest.fixture(scope="module")
def window(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture
def service(directory: Path) -> Iterator[Process]:
    with Process(directory) as process:
        yield process


def call(service: Process, method: str, path: str, body: bytes | None = None, token: str = "") -> Any:
    """Send a request as any client would; wait out the recovery."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    request = urllib.request.Request(service.address + path, body, headers, method=method)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    while True:
        try:
            with opener.open(request, timeout=30) as response:
                return json.loads(response.read() or b"null")
        except urllib.error.HTTPError as error:
            error.close()
            if error.code != 503:
                raise


def append(service: Process, queue: str, body: bytes, token: str = "") -> Any:
    return call(service, "POST", f"/v1/queues/{quote(queue, safe='')}/records?create=1", body, token)


def rows(window: Browser) -> list[list[str]]:
    script = "return [...document.querySelectorAll('#queues tr')].map(r => [...r.cells].map(c => c.textContent))"
    found: list[list[str]] = window.run(script)
    return found


def test_it_shows_live_numbers(window: Browser, service: Process) -> None:
    """Queues appear and change without a reload, with their rates and charts."""
    append(service, "orders", b"one")
    window.open(service.address)
    window.wait_for("the state", lambda: window.text("state") == "open")
    window.wait_for("the queue", lambda: [row[:4] for row in rows(window)] == [["orders", "0", "1", "1"]])
    append(service, "orders", b"two")
    append(service, "audit", b"first")
    window.wait_for("more of it", lambda: sorted(row[:4] for row in rows(window))[1:] == [["orders", "0", "2", "2"]])
    window.wait_for("a curve", lambda: window.run("return document.querySelector('#throughput polyline') !== null"))
    assert window.text("queue-count") == "(2)"
    assert "on disk" in window.text("segment-text")
    assert window.errors() == []


def test_it_names_the_queue_that_keeps_segments(window: Browser, directory: Path) -> None:
    """One old record of a quiet queue keeps all later segments: the chart shows it, and a sentence names the queue."""
    with Process(directory, ["--segment-bytes", "65536"]) as service:
        append(service, "audit", b"first")
        for _ in range(12):
            append(service, "orders", bytes(30_000))
        call(service, "POST", "/v1/queues/orders/truncate", b'{"position": 10}')
        window.open(service.address)
        window.wait_for("the sentence", lambda: "are kept only by audit (first position 0)" in window.text("pins"))
        colours = window.run("return [...document.querySelectorAll('#segments i')].map(cell => cell.style.background)")
        assert colours[0] == "var(--amber)"
        assert colours[-1] == "var(--blue)"


def test_records_are_appended_and_read(window: Browser, service: Process) -> None:
    """The form appends a record as curl would, and shows its position."""
    window.open(service.address)
    window.type("append-queue", "späße/1")
    window.run("document.getElementById('append-create').checked = true")
    window.type("append-payload", "grüße")
    window.submit("append-form")
    window.wait_for("the answer", lambda: window.text("append-result") == "stored at position 0")
    window.type("read-queue", "späße/1")
    window.submit("read-form")
    window.wait_for("the record", lambda: window.text("read-result") == "0  grüße")
    window.type("read-queue", "x")
    window.submit("read-form")
    window.wait_for("the refusal", lambda: "does not exist" in window.text("read-result"))


def test_nothing_from_a_name_or_a_payload_becomes_markup(window: Browser, service: Process) -> None:
    """Text that looks like a tag or a script is shown as text."""
    append(service, EVIL, EVIL.encode())
    window.open(service.address)
    window.wait_for("the name", lambda: rows(window) and rows(window)[0][0] == EVIL)
    window.run("document.querySelector('#queues tr').click()")
    window.submit("read-form")
    window.wait_for("the payload", lambda: window.text("read-result") == f"0  {EVIL}")
    assert window.run("return document.title") == "mrecordlog"
    assert window.run("return document.querySelectorAll('main img, main script').length") == 0


def test_it_survives_a_restart_of_the_service(window: Browser, service: Process) -> None:
    """After kill -9 the page says so, retries, and continues with the new process."""
    append(service, "orders", b"one")
    window.open(service.address)
    window.wait_for("the queue", lambda: rows(window))
    service.kill()
    window.wait_for("the loss", lambda: window.text("state") == "unreachable")
    service.start()
    append(service, "orders", b"two")
    window.wait_for("the next record", lambda: [row[:4] for row in rows(window)] == [["orders", "0", "2", "2"]])
    assert window.text("state") == "open"


def test_it_works_with_a_token(window: Browser, directory: Path, tmp_path: Path) -> None:
    """The page itself holds no data; it asks for the token and shows numbers once it has the right one."""
    token_file = tmp_path / "token"
    token_file.write_text("correct-horse-battery-staple-0123456789\n")
    token_file.chmod(0o600)
    with Process(directory, ["--token-file", str(token_file)]) as service:
        append(service, "orders", b"one", token_file.read_text().strip())
        window.open(service.address)
        window.wait_for("the question", lambda: window.text("state") == "token needed")
        assert rows(window) == []
        window.type("token", "wrong")
        window.submit("token-form")
        window.wait_for("the question again", lambda: window.run("return !document.getElementById('token-box').hidden"))
        window.type("token", token_file.read_text().strip())
        window.submit("token-form")
        window.wait_for("the queue", lambda: [row[0] for row in rows(window)] == ["orders"])
        assert window.text("state") == "open"


async def test_a_long_recovery_shows_its_progress(window: Browser, directory: Path) -> None:
    """Before the log is open, the bar shows how much of it has been read; then the numbers appear."""

    def watch(text: str) -> None:
        window.wait_for("the progress", lambda: window.text("recovery-text") == text)
        assert window.run("return document.getElementById('recovery').hidden") is False
        assert window.text("state") == "recovering"

    async with serving(directory, recovered=False) as served:
        await asyncio.to_thread(window.open, served.url)
        await asyncio.to_thread(watch, "0 %")
        served.service._on_progress(RecoveryProgress(42, 100))
        await asyncio.to_thread(watch, "42 %")
        await served.service.open(directory)
        await asyncio.to_thread(window.wait_for, "the log", lambda: window.text("state") == "open")
        assert await asyncio.to_thread(window.run, "return document.getElementById('recovery').hidden")


def test_others_pages_get_nothing_from_it(service: Process) -> None:
    """The page allows only its own script, style and service, and must not be shown in a frame."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    request = urllib.request.Request(service.address, headers={"Accept": "text/html"})
    with opener.open(request, timeout=30) as response:
        policy = response.headers["Content-Security-Policy"]
        assert response.headers["Content-Type"] == "text/html; charset=utf-8"
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    with opener.open(service.address, timeout=30) as response:
        assert response.headers["Content-Type"].startswith("text/plain")
