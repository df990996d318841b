"""A real headless Chromium, controlled through the WebDriver protocol: JSON over HTTP, without a package."""

from __future__ import annotations

import base64
import json
import re
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ARGUMENTS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--window-size=1280,1400",
)
ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
DEADLINE_SECONDS = 120.0


def missing() -> str | None:
    """Return the name of what is not installed, None if everything is."""
    for program in ("chromedriver", "chromium"):
        if shutil.which(program) is None:
            return f"{program} is not installed (Debian: apt install chromium chromium-driver)"
    return None


class Browser:
    """One window."""

    def __init__(self, session_url: str) -> None:
        self._url = session_url

    def open(self, url: str) -> None:
        """Go to *url*."""
        self._post("url", {"url": url})

    def run(self, script: str, *arguments: Any) -> Any:
        """Run a function's body in the page and return its value."""
        return self._post("execute/sync", {"script": script, "args": list(arguments)})

    def text(self, element_id: str) -> str:
        """Return the text of an element."""
        text: str = self.run("return document.getElementById(arguments[0]).textContent", element_id)
        return text

    def type(self, element_id: str, text: str) -> None:
        """Type into a field, key by key."""
        self._post(f"element/{self._find(element_id)}/value", {"text": text})

    def submit(self, form_id: str) -> None:
        """Press a form's button."""
        found = self._post("element", {"using": "css selector", "value": f"#{form_id} button"})
        self._post(f"element/{found[ELEMENT]}/click", {})

    def wait_for(self, what: str, condition: Callable[[], Any]) -> Any:
        """Wait until *condition* is true and return its value; raise AssertionError naming *what* after a long time."""
        end = time.monotonic() + DEADLINE_SECONDS
        while time.monotonic() < end:
            value = condition()
            if value:
                return value
            time.sleep(0.05)
        raise AssertionError(f"{what} did not come true; the page's state is {self.text('state')!r}")

    def errors(self) -> list[str]:
        """Return what the browser complained about."""
        return [entry["message"] for entry in self._post("se/log", {"type": "browser"}) if entry["level"] == "SEVERE"]

    def resize(self, width: int, height: int, scale: float) -> None:
        """Give the page another size, in CSS pixels, and take pictures at *scale* pixels for each."""
        size = {"width": width, "height": height, "deviceScaleFactor": scale, "mobile": False}
        self._command("Emulation.setDeviceMetricsOverride", size)
        self._command("Emulation.setScrollbarsHidden", {"hidden": True})

    def prefer(self, colours: str) -> None:
        """Have the page see a person who prefers "light" or "dark" colours."""
        features = [{"name": "prefers-color-scheme", "value": colours}]
        self._command("Emulation.setEmulatedMedia", {"features": features})

    def evaluate(self, script: str) -> Any:
        """Run a script that the page's own policy would not allow, and return the value of its last promise."""
        wanted = {"expression": script, "awaitPromise": True, "returnByValue": True}
        found = self._command("Runtime.evaluate", wanted)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def picture(self, path: Path, first: str, last: str, margin: int = 8) -> None:
        """Write the part of the page from element *first* to element *last* (CSS selectors) as WebP."""
        script = """const edges = [...arguments].map(one => document.querySelector(one).getBoundingClientRect());
            const [x, y] = [Math.min(...edges.map(one => one.left)), edges[0].top];
            return {x, y, width: Math.max(...edges.map(one => one.right)) - x, height: edges[1].bottom - y}"""
        found = self.run(script, first, last)
        clip = {
            "x": max(found["x"] - margin, 0),
            "y": max(found["y"] - margin, 0),
            "width": found["width"] + 2 * margin,
            "height": found["height"] + 2 * margin,
            "scale": 1,
        }
        wanted = {"format": "webp", "quality": 70, "captureBeyondViewport": True, "clip": clip}
        path.write_bytes(base64.b64decode(self._command("Page.captureScreenshot", wanted)["data"]))

    def _command(self, name: str, parameters: dict[str, Any]) -> Any:
        """Send a command of Chromium's protocol, for what WebDriver has no word for."""
        return self._post("goog/cdp/execute", {"cmd": name, "params": parameters})

    def _find(self, element_id: str) -> str:
        found: str = self._post("element", {"using": "css selector", "value": f"#{element_id}"})[ELEMENT]
        return found

    def _post(self, path: str, body: dict[str, Any]) -> Any:
        return _request("POST", f"{self._url}/{path}", body)


@contextmanager
def browser(profile: Path) -> Iterator[Browser]:
    """Start a browser with an empty profile."""
    with subprocess.Popen(["chromedriver", "--port=0"], stdout=subprocess.PIPE, text=True) as driver:
        try:
            url = f"http://127.0.0.1:{_port(driver)}/session"
            options = {"args": [*ARGUMENTS, f"--user-data-dir={profile}"]}
            wanted = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
            session = _request("POST", url, {"capabilities": {"alwaysMatch": wanted}})
            session_url = f"{url}/{session['sessionId']}"
            try:
                yield Browser(session_url)
            finally:
                _request("DELETE", session_url)
        finally:
            driver.terminate()


def _port(driver: subprocess.Popen[str]) -> int:
    assert driver.stdout is not None
    for line in driver.stdout:
        match = re.search(r"started successfully on port (\d+)", line)
        if match:
            return int(match[1])
    raise AssertionError("chromedriver ended before it listened")


def _request(method: str, url: str, body: dict[str, Any] | None = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"}, method=method)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=DEADLINE_SECONDS) as response:
        return json.loads(response.read())["value"]
