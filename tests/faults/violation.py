"""What a check raises that finds a broken promise."""

from __future__ import annotations

SHOWN_MAX = 2_000
"""This many characters of a violation are printed, half from each end: a payload has as many as a megabyte."""


class Violation(AssertionError):
    """A promise was broken."""

    def __str__(self) -> str:
        """Return the message without its middle, if it is long."""
        message, half = super().__str__(), SHOWN_MAX // 2
        return message if len(message) <= SHOWN_MAX else f"{message[:half]} […] {message[-half:]}"
