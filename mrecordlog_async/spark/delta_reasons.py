"""Shortens an error of delta-rs to one line: it comes as a call stack of many lines, with colours and XML."""

from __future__ import annotations

import re


def reason_of(error: Exception | None) -> str:
    """Return what an error of delta-rs says: its first line and its last cause, or the code of the object store."""
    plain = re.sub(r"\x1b\[\d*m", "", str(error))
    plain = re.sub(r"(?:<\?xml[^>]*>)?\s*<Error>.*?</Error>", _code, plain, flags=re.DOTALL)
    lines = [part.strip().partition("\n")[0] for part in plain.split("↳")]
    return ": ".join(dict.fromkeys((lines[0], lines[-1]))).rstrip(".")


def _code(xml: re.Match[str]) -> str:
    """Return the code and the message of an object store's response, such as `ExpiredToken: The token has expired`."""
    found = [re.search(rf"<{name}>\s*(.+?)\s*</{name}>", xml[0], re.DOTALL) for name in ("Code", "Message")]
    return ": ".join(each[1] for each in found if each is not None)
