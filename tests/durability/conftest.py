"""The tally, and logs that are quiet: as in `tests/faults`."""

from tests.faults.conftest import never_idle, pytest_configure, quiet, tally

__all__ = ["never_idle", "pytest_configure", "quiet", "tally"]
