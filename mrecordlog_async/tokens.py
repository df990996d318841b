"""Files of bearer tokens: one token per line; `#` at the start of a line, or after a space, begins a comment.

The service, the command line and the Spark jobs read the same file, so that one file serves all of them. The service
accepts every token in it; a client sends the first one.
"""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

TOKEN_BYTES_MIN = 16

_COMMENT = re.compile(rb"(?:^|\s)#.*", re.DOTALL)


class TokenFileError(ValueError):
    """A token file that cannot be read, holds no token, or is not safe to use. The message says what to do."""


def read_token(path: str) -> str:
    """Return the first token in the file, which a client sends. Raises TokenFileError."""
    tokens, _ = _read(path)
    return tokens[0].decode("utf-8", "surrogateescape")


def read_private_tokens(path: str) -> frozenset[bytes]:
    """Return the tokens that a service accepts. Raises TokenFileError where others can read them, or one is short."""
    tokens, mode = _read(path)
    if stat.S_ISREG(mode) and mode & (0o007 if _is_credential(path) else 0o077):
        raise TokenFileError(f"{path}: other users can read it; run `chmod 600 {path}`")
    if min(map(len, tokens)) < TOKEN_BYTES_MIN:
        raise TokenFileError(
            f"{path}: a token must have at least {TOKEN_BYTES_MIN} characters; make one with `openssl rand -hex 32`"
        )
    return frozenset(tokens)


def _is_credential(path: str) -> bool:
    """Return whether systemd has put the file there (`LoadCredential=`), in a directory of this service alone.

    With `DynamicUser=` it gives read access by an entry of an access control list. The mode then shows the list's mask
    as the group's bits, 0440, though no group can read the file.
    """
    directory = os.environ.get("CREDENTIALS_DIRECTORY")
    return bool(directory and Path(path).resolve().is_relative_to(Path(directory).resolve()))


def _read(path: str) -> tuple[list[bytes], int]:
    """Return the tokens in order, at least one, and the file's mode."""
    try:
        with open(path, "rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            lines = [_COMMENT.sub(b"", line).split() for line in file]
    except OSError as error:
        raise TokenFileError(f"{path}: cannot read the token file: {error.strerror}") from None
    if any(len(words) > 1 for words in lines):
        raise TokenFileError(f"{path}: a token contains a space; write one token per line, comments after #")
    tokens = [words[0] for words in lines if words]
    if not tokens:
        raise TokenFileError(f"{path} holds no token; make one with `openssl rand -hex 32`")
    return tokens, mode
