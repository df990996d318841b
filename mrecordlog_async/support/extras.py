"""The error of a part of the package that needs an extra: what to install."""

from __future__ import annotations


def naming(error: ModuleNotFoundError, extra: str) -> ModuleNotFoundError:
    """Return *error* of an import as one that names the *extra* to install."""
    package = (error.name or "").partition(".")[0]
    if package in ("", "mrecordlog_async"):
        return error
    text = f"{package} is not installed: run pip install 'mrecordlog_async[{extra}]'"
    return ModuleNotFoundError(text, name=error.name, path=error.path)
