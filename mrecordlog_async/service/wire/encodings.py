"""Compressed request bodies: expanded piece by piece as they arrive, so that a bomb costs no more than its limit.

| Content-Encoding | expanded by |
|---|---|
| `gzip`, `x-gzip` | zlib; a body may have several members, one after the other |
| `deflate` | zlib, with or without its header: senders disagree on what the name means (RFC 9110, section 8.4.1.2) |
| `zstd` | the standard library, from Python 3.14 on |
| `identity` | nothing |

One encoding per body: a body that was compressed twice is refused.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from mrecordlog_async.options import KIB
from mrecordlog_async.protocol.problems import ProblemError, bad_request

try:
    from compression import zstd  # type: ignore[import-not-found, unused-ignore]  # Python 3.14
except ImportError:
    zstd = None

STEP_BYTES = 64 * KIB
"""The most bytes that one step of an expansion returns."""

ZSTD_WINDOW_LOG_MAX = 23
"""Window of a zstd frame, 8 MiB: what HTTP allows (RFC 9659). The decoder holds a window outside of all budgets."""


class Expander(Protocol):
    """The expansion of one body."""

    def expand(self, piece: bytes) -> Iterator[bytes]:
        """Yield what *piece* stands for, at most `STEP_BYTES` at a time; b"" for a step that yields nothing yet.

        Raises:
            ProblemError: The body is not what its encoding says.
        """

    def end(self) -> None:
        """Raise ProblemError unless the body ended where it may end."""


def expander(encoding: str) -> Expander | None:
    """Return what expands a body with this Content-Encoding; None if there is nothing to expand.

    Raises:
        ProblemError: The encoding is not supported, or the body was encoded more than once.
    """
    name = encoding.strip().lower()
    if name in ("", "identity"):
        return None
    if name in _BY_NAME:
        return _BY_NAME[name]()
    detail = f"Content-Encoding {name[:80]!r} is not supported; send the body with one of these, or as it is: {_NAMES}"
    problem = ProblemError(415, "encoding", detail)
    problem.headers["Accept-Encoding"] = _NAMES
    raise problem


class _Zlib:
    """gzip and deflate. make: returns a decompressor of one member. several: other members may follow it."""

    def __init__(self, name: str, make: Callable[[bytes], Any], *, several: bool) -> None:
        self._name = name
        self._make = make
        self._several = several
        self._member: Any = None

    def expand(self, piece: bytes) -> Iterator[bytes]:
        left = piece
        while left:
            if self._member is None or (self._member.eof and self._several):
                self._member = self._make(left)
            elif self._member.eof:
                raise bad_request(f"bytes follow the end of the {self._name} body", "bad_body")
            member = self._member
            try:
                yield member.decompress(left, STEP_BYTES)
            except zlib.error as error:
                raise bad_request(f"the body is not {self._name}: {error}", "bad_body") from None
            left = member.unused_data if member.eof else member.unconsumed_tail
            # What fitted into the step is taken, but not what the decompressor holds back.
            while not left and not member.eof and (more := member.decompress(b"", STEP_BYTES)):
                yield more

    def end(self) -> None:
        if self._member is None or not self._member.eof:
            raise bad_request(f"the {self._name} body is cut off before its end", "bad_body")


class _Zstd:
    """zstd; other frames may follow the first one."""

    def __init__(self) -> None:
        self._frame: Any = None

    def expand(self, piece: bytes) -> Iterator[bytes]:
        left = piece
        while left or (self._frame is not None and not self._frame.eof and not self._frame.needs_input):
            if self._frame is None or self._frame.eof:
                limits = {zstd.DecompressionParameter.window_log_max: ZSTD_WINDOW_LOG_MAX}
                self._frame = zstd.ZstdDecompressor(options=limits)
            try:
                yield self._frame.decompress(left, STEP_BYTES)
            except zstd.ZstdError as error:
                raise bad_request(f"the body is not zstd: {error}", "bad_body") from None
            left = self._frame.unused_data if self._frame.eof else b""

    def end(self) -> None:
        if self._frame is None or not self._frame.eof:
            raise bad_request("the zstd body is cut off before its end", "bad_body")


def _gzip(begin: bytes) -> Any:
    return zlib.decompressobj(wbits=31)


def _deflate(begin: bytes) -> Any:
    """Return a decompressor for a body with a zlib header, which begins with its method, 8, or without one."""
    return zlib.decompressobj(wbits=15 if begin[0] & 0x0F == 8 and begin[0] >> 4 <= 7 else -15)


_BY_NAME: dict[str, Callable[[], Expander]] = {
    "gzip": lambda: _Zlib("gzip", _gzip, several=True),
    "x-gzip": lambda: _Zlib("gzip", _gzip, several=True),
    "deflate": lambda: _Zlib("deflate", _deflate, several=False),
}
if zstd is not None:
    _BY_NAME["zstd"] = _Zstd
_NAMES = ", ".join(name for name in _BY_NAME if name != "x-gzip")
