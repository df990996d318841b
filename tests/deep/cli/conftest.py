"""The log that commands work on: a service, or its files."""

from tests.cli.conftest import target

__all__ = ["target"]
