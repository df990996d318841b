"""`LAST_END` says how earlier openings of the log ended, for people. It may be missing or wrong: nothing depends on it.

It has up to three lines of text: how often the log was opened without having been closed, whether the machine's clock
was in doubt, and why the log failed if it did since its last opening. The opening that follows a failure reports the
cause, and writes the file again without it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

LAST_END_NAME = "LAST_END"
LAST_END_BYTES_MAX = 4_096
"""No more of the file is read or written."""

_UNCLOSED, _FAILURE, _DOUBT = "unclosed ends: ", "failure: ", "openings with the clock in doubt: "
_DOUBT_LINE = re.compile(rf"{_DOUBT}(\d{{1,9}}) (ahead|behind), newest record before at tick (\d{{1,18}})", re.ASCII)


class ClockDoubt(NamedTuple):
    """Doubt about the machine's clock: see `engine.clock_doubt`.

    openings: at how many openings in a row; 0 if there is none, or the clock was set while the log was open.
    newest: tick of the newest record before that; 0 without a doubt.
    is_behind: whether the clock is before the newest record, and not long after it.
    latest: tick of the newest record of all, which the file does not have.
    """

    openings: int
    newest: int
    is_behind: bool = False
    latest: int = 0


NO_DOUBT = ClockDoubt(0, 0)


@dataclass(frozen=True, slots=True)
class EndNote:
    """The content of `LAST_END`. failure: why the log failed; empty if it did not, or if nobody could write it down."""

    unclosed_ends: int = 0
    failure: str = ""
    doubt: ClockDoubt = NO_DOUBT

    def encode(self) -> bytes:
        """Return the file's bytes."""
        lines = [f"{_UNCLOSED}{self.unclosed_ends}"]
        if self.doubt.newest:
            side = "behind" if self.doubt.is_behind else "ahead"
            row = f"{_DOUBT}{self.doubt.openings} {side}"
            lines.append(f"{row}, newest record before at tick {self.doubt.newest}")
        if self.failure:
            lines.append(_FAILURE + " ".join(self.failure.split()))
        return "\n".join(lines).encode(errors="replace")[: LAST_END_BYTES_MAX - 1] + b"\n"


def decode_end_note(data: bytes) -> EndNote:
    """Return what the file's bytes say; what cannot be read counts as not written."""
    lines = data.decode(errors="replace").splitlines()
    digits = next((line.removeprefix(_UNCLOSED) for line in lines if line.startswith(_UNCLOSED)), "")
    failure = next((line.removeprefix(_FAILURE) for line in lines if line.startswith(_FAILURE)), "")
    found = next(filter(None, map(_DOUBT_LINE.fullmatch, lines)), None)
    doubt = NO_DOUBT if found is None else ClockDoubt(int(found[1]), int(found[3]), found[2] == "behind")
    unclosed = int(digits) if digits.isascii() and digits.isdigit() and len(digits) < 19 else 0
    return EndNote(unclosed, failure, doubt)
