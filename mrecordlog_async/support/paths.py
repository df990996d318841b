"""Paths as people write them into a program, a variable or a file, where no shell replaces a leading `~/`."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress


def absolute(path: str, *, is_used: Callable[[str], bool] = os.path.lexists) -> str:
    """Return *path* as an absolute path; `~` and a leading `~/` are the home directory of this user.

    `~name` is a name like any other: shells replace it, and programs that mean another user's home are rare.

    Args:
        path: The path.
        is_used: Whether something is at a path that earlier versions would have used: to them, `~` was a directory.

    Raises:
        ValueError: The path is empty, there is no home directory, or a directory named `~` has what is meant, too.
    """
    if not path:
        raise ValueError("the path of a directory must not be empty; write . for the working directory")
    if path != "~" and not path.startswith("~/"):
        return os.path.abspath(path)
    literal, meant = os.path.abspath(path), os.path.normpath(f"{_home(path)}/{path[1:]}")
    if is_used(literal):
        raise ValueError(
            f"{path!r} stands for {meant}, and earlier versions took it for {literal}, which exists: move that to "
            f"{meant}, or write ./{path} to use it where it is"
        )
    return meant


def _home(path: str) -> str:
    home = os.environ.get("HOME")
    if not home:
        with suppress(ImportError, KeyError):  # Windows; a user without a name, as in some containers
            import pwd

            home = pwd.getpwuid(os.getuid()).pw_dir
    if not home or not os.path.isabs(home):
        raise ValueError(f"{path!r} needs a home directory, and this user has none: set HOME, or write the whole path")
    return home
