"""Files of bearer tokens: one token per line; `#` at the start of a line, or after a space, begins a comment.

The service, the command line and the Spark jobs read the same file, so that one file serves all of them. The service
accepts every token in it; a client sends the first one.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

TOKEN_BYTES_MIN = 16

_COMMENT = re.compile(rb"(?:^|\s)#.*", re.DOTALL)


class TokenFileError(ValueError):
    """A token file that cannot be read, holds no token, or is not safe to use. The message says what to do."""


def read_token(path: str) -> str:
    """Return the first token in the file, which a client sends. Raises TokenFileError."""
    tokens, _ = _read(path)
    return tokens[0].decode("utf-8", "surrogateescape")


def read_named_tokens(
    given: Sequence[str], names: Collection[str], unknown: Callable[[str], str], everybody: str
) -> dict[str, str]:
    """Read the token files of several services, as `--token-file` names them: NAME=FILE, or FILE for all others.

    Args:
        given: What was typed.
        names: The services.
        unknown: Returns what to say of a name that no service has, and what to write instead.
        everybody: What FILE is for, for the message.

    Returns:
        The token of each service that has its own; "" has that of all others.

    Raises:
        TokenFileError: A file cannot be read or has no token, no service has the name, or a token is given twice.
    """
    found: dict[str, str] = {}
    for text in given:
        name, path = named_file(text)
        if name and name not in names:
            raise TokenFileError(f"--token-file {text}: {unknown(name)}, or ./{text} for a file of that name")
        if name in found:
            raise TokenFileError(f"--token-file is given twice for {name or everybody}: name one file")
        found[name] = read_token(path)
    return found


def named_file(text: str) -> tuple[str, str]:
    """Return the name and the path of NAME=FILE; the name is "" for FILE."""
    name, equals, path = text.partition("=")
    return (name, path) if equals and "/" not in name else ("", text)


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
