"""`LAST_END` says how earlier openings of the log ended, for people. It may be missing or wrong: nothing depends on it.

It has two lines of text: how often the log was opened without having been closed, and why it failed if it did since
its last opening. The opening that follows a failure reports the cause, and writes the file again without it.
"""

from __future__ import annotations

from dataclasses import dataclass

LAST_END_NAME = "LAST_END"
LAST_END_BYTES_MAX = 4_096
"""No more of the file is read or written."""

_UNCLOSED, _FAILURE = "unclosed ends: ", "failure: "


@dataclass(frozen=True, slots=True)
class EndNote:
    """The content of `LAST_END`. failure: why the log failed; empty if it did not, or if nobody could write it down."""

    unclosed_ends: int = 0
    failure: str = ""

    def encode(self) -> bytes:
        """Return the file's bytes."""
        lines = [f"{_UNCLOSED}{self.unclosed_ends}"]
        if self.failure:
            lines.append(_FAILURE + " ".join(self.failure.split()))
        return "\n".join(lines).encode(errors="replace")[: LAST_END_BYTES_MAX - 1] + b"\n"


def decode_end_note(data: bytes) -> EndNote:
    """Return what the file's bytes say; what cannot be read counts as not written."""
    lines = data.decode(errors="replace").splitlines()
    digits = next((line.removeprefix(_UNCLOSED) for line in lines if line.startswith(_UNCLOSED)), "")
    failure = next((line.removeprefix(_FAILURE) for line in lines if line.startswith(_FAILURE)), "")
    return EndNote(int(digits) if digits.isascii() and digits.isdigit() and len(digits) < 19 else 0, failure)
