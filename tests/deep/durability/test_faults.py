"""All written histories: a fault at some of their calls to the disk, at ten times as many with `--nightly`."""

from __future__ import annotations

import pytest

from tests.durability.crashes import HISTORIES, fail_calls
from tests.faults.histories import by_family

FAULTS, FAULTS_AT_NIGHT = 20, 200


@pytest.mark.parametrize("name", by_family(HISTORIES))
def test_a_fault_of_any_call(name: str, pytestconfig: pytest.Config) -> None:
    """Acknowledged calls survive, refused ones are absent, every call ends, and a failed log acknowledges nothing."""
    fail_calls(name, FAULTS_AT_NIGHT if pytestconfig.getoption("--nightly") else FAULTS)
