"""How the work on the event loop grows with consumers, rules, limits, names and calls of a batch.

Counted in instructions: a copy of a set or a sort is one call in Python, and does not show in Python calls or lines.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.engine.growth import CONSTANT, LINEAR, LINEAR_SIZES, ORDER

ROOT = Path(__file__).parents[3]

LINEAR_GROWTH_MAX = 2.2
CONSTANT_GROWTH_MAX = 1.2
"""What twice as many items may cost. A heap adds a step where its size doubles."""


@pytest.fixture(scope="module")
def growth(tmp_path_factory: pytest.TempPathFactory) -> dict[str, float]:
    """Return how many times the instructions of the smaller size the larger one takes, for each piece of work."""
    if shutil.which("valgrind") is None:
        pytest.skip("valgrind, which counts instructions, is not installed")
    out = tmp_path_factory.mktemp("callgrind") / "out"
    callgrind = ["valgrind", "--tool=callgrind", "--dump-before=sched_yield", f"--callgrind-out-file={out}"]
    subprocess.run(
        [*callgrind, sys.executable, "-m", "tests.engine.growth"],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": "0"},
        capture_output=True,
        check=True,
        timeout=1_200,
    )
    counted: dict[str, list[int]] = {}
    for number, (prepare, _) in enumerate(ORDER):
        text = Path(f"{out}.{2 * number + 2}").read_text()
        counted.setdefault(prepare.__name__, []).append(int(re.findall(r"^totals: (\d+)$", text, re.MULTILINE)[0]))
    return {name: larger / smaller for name, (smaller, larger) in counted.items()}


@pytest.mark.parametrize("prepare", LINEAR, ids=lambda prepare: prepare.__name__)
def test_work_of_many_calls_at_once_grows_with_their_number(growth: dict[str, float], prepare: object) -> None:
    """Twice as many take about twice as long, not four times: no call visits what the others concern."""
    assert LINEAR_SIZES[1] == 2 * LINEAR_SIZES[0]
    assert 1.5 < growth[prepare.__name__] <= LINEAR_GROWTH_MAX  # type: ignore[attr-defined]


@pytest.mark.parametrize("prepare", CONSTANT, ids=lambda prepare: prepare.__name__)
def test_work_of_few_calls_does_not_grow_with_what_stands_next_to_them(
    growth: dict[str, float], prepare: object
) -> None:
    """Consumers, rules, limits and names that a call does not concern cost it nothing."""
    assert growth[prepare.__name__] <= CONSTANT_GROWTH_MAX  # type: ignore[attr-defined]
