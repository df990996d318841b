"""Any history of a log that hypothesis can think of breaks no promise. `tests/deep/durability` makes more of them."""

from __future__ import annotations

import pytest

from .machine import AnyLog, LogWithLittleMemory, run_machine


@pytest.mark.parametrize("machine", [AnyLog, LogWithLittleMemory])
def test_any_history(machine: type[AnyLog]) -> None:
    """In any order of steps, the model and the log agree, before and after every crash."""
    run_machine(machine, 15)
