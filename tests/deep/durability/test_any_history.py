"""More histories that hypothesis thinks of: the same ones in every run, and with `--nightly` ten times as many."""

from __future__ import annotations

import pytest

from tests.durability.machine import AnyLog, LogWithLittleMemory, run_machine

EXAMPLES = 100


@pytest.mark.parametrize("machine", [AnyLog, LogWithLittleMemory])
def test_many_histories(machine: type[AnyLog], pytestconfig: pytest.Config) -> None:
    """In any order of steps, the model and the log agree, before and after every crash."""
    run_machine(machine, EXAMPLES * (10 if pytestconfig.getoption("--nightly") else 1))
