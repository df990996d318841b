"""Token files: one token a line. What follows a # at the beginning of a line, or after a space, is a comment."""

from __future__ import annotations

import os
import re
import stat

from mrecordlog_async.cli.exit_codes import UsageError

TOKEN_BYTES_MIN = 16


def tokens_of(path: str) -> list[bytes]:
    """Return the tokens in a file, at least one, in their order; UsageError where there are none."""
    return _read(path)[0]


def private_tokens_of(path: str) -> frozenset[bytes]:
    """Return the tokens that let in: long ones, from a file that only its owner can read."""
    tokens, mode = _read(path)
    if stat.S_ISREG(mode) and mode & 0o077:
        raise UsageError(f"{path} can be read by others: chmod 600 {path}")
    if min(map(len, tokens)) < TOKEN_BYTES_MIN:
        raise UsageError(f"{path}: a token has at least {TOKEN_BYTES_MIN} characters; try `openssl rand -hex 32`")
    return frozenset(tokens)


def _read(path: str) -> tuple[list[bytes], int]:
    try:
        with open(path, "rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            lines = [re.split(rb"(?:^|\s)#", line, maxsplit=1)[0].split() for line in file]
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None
    if any(len(words) > 1 for words in lines):
        raise UsageError(f"{path}: a token holds no spaces; one a line, comments after #")
    tokens = [words[0] for words in lines if words]
    if not tokens:
        raise UsageError(f"{path} holds no token; try `openssl rand -hex 32`")
    return tokens, mode
