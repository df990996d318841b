"""A mutation run: makes small changes to the source, one at a time, and reports those that no test notices.

    python -m tests.faults.mutants --count 90 --seed 1 --jobs 2     a sample of all mutants
    python -m tests.faults.mutants engine/commit/journal.py:147     those of one line
    python -m tests.faults.mutants --list                           all of them, without running anything

Each mutant is a copy of the package and the tests in a temporary directory. The tests closest to its file run first,
then a short hunt of this folder, then the other tests of the core. The first test that fails or exceeds its time kills
the mutant. Survivors are printed with their lines: write a test that kills them, or find out why no test can. This is
not part of the test run.
"""

from __future__ import annotations

import argparse
import ast
import copy
import logging
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "mrecordlog_async"
FLOORS = ("compiled", "engine", "format", "maintenance", "memory", "recovery", "storage")
WITHOUT = ("support/heap.py",)
"""How memory is collected and returned to the system. Only speed depends on it."""
STAGE_SECONDS = 1_200
"""The time limit of a stage, in seconds; exceeding it kills the mutant."""
QUICK = ["-q", "-x", "-p", "no:cacheprovider", "-k", "not uvloop", "--timeout=200"]

NEAREST = {
    "format": ["tests/format", "tests/recovery/test_recovery.py tests/maintenance/test_scan.py"],
    "storage": ["tests/storage tests/engine/test_hard_links.py tests/engine/test_spare.py"],
    "memory": ["tests/memory tests/recovery/test_replay.py", "tests/engine/test_plan.py"],
    "recovery/follower.py": ["tests/test_readonly.py", "tests/faults/test_beside_a_writer.py"],
    "recovery/live_reader.py": ["tests/test_readonly.py", "tests/faults/test_beside_a_writer.py"],
    "recovery": ["tests/recovery", "tests/engine/test_hard_links.py"],
    "engine/commit/open.py": ["tests/recovery/test_recovery.py tests/engine/test_hard_links.py"],
    "engine/intake/admission.py": [
        "tests/engine/test_admission.py tests/engine/test_append_soon.py tests/engine/test_limits.py"
    ],
    "engine/intake/capacity.py": ["tests/engine/test_admission.py tests/engine/test_limits.py"],
    "engine/planning/plan.py": ["tests/engine/test_plan.py tests/engine/test_limits.py"],
    "engine/planning/draft.py": ["tests/engine/test_plan.py tests/engine/test_planned.py tests/test_history.py"],
    "engine/commit/batch.py": ["tests/engine/test_planned.py tests/engine/test_limits.py"],
    "engine/commit/journal.py": [
        "tests/engine/test_reclaim.py tests/engine/test_hard_links.py tests/engine/test_spare.py"
    ],
    "engine/commit/upkeep.py": ["tests/engine/test_reclaim.py tests/engine/test_spare.py tests/engine/test_mark.py"],
    "engine/commit/writer.py": [
        "tests/engine/test_small.py tests/engine/test_disk_thread.py",
        "tests/engine/test_reclaim.py tests/engine/test_failing.py tests/engine/test_limits.py",
    ],
    "maintenance/salvage.py": ["tests/maintenance/test_salvage.py", "tests/cli/test_repair.py"],
    "maintenance/usage.py": ["tests/cli/test_inspect.py"],
    "maintenance/snapshot.py": ["tests/cli/test_snapshot.py", "tests/cli/test_overtaken.py tests/faults/test_tools.py"],
    "maintenance": ["tests/maintenance", "tests/cli/test_verify.py tests/cli/test_repair.py"],
}
"""The tests that are likely to notice a change, by file or room, as stages."""
LAST = [
    "tests/log tests/test_readonly.py tests/test_history.py",
    "tests/engine tests/recovery tests/maintenance tests/memory tests/storage tests/format tests/test_memory.py",
    "tests/cli/test_snapshot.py",
    "HUNT",
    "tests/faults/test_damage.py tests/faults/test_seeded_bugs.py tests/faults/test_beside_a_writer.py",
]


class Mutant(NamedTuple):
    """One change: the file below the package, the line, which of that line's changes, and both versions."""

    file: str
    line: int
    number: int
    before: str
    after: str
    source: str

    @property
    def name(self) -> str:
        """Return the name that the command line accepts."""
        return f"{self.file}:{self.line}:{self.number}"


# Making them.

COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Add,
    ast.BitAnd: ast.BitOr,
}


def mutants() -> list[Mutant]:
    """Return every mutant of the core, in the order of the files."""
    made: list[Mutant] = []
    for floor in FLOORS:
        for path in sorted((PACKAGE / floor).glob("*.py")):
            name = f"{floor}/{path.name}"
            if name not in WITHOUT:
                made += _of_file(name, path.read_text())
    return made


def _of_file(name: str, text: str) -> Iterator[Mutant]:
    tree, lines = ast.parse(text), text.splitlines(keepends=True)
    numbers: dict[int, int] = {}
    for node in _of_functions(tree):
        for changed in _changes(node):
            line, stop = node.lineno, node.end_lineno or node.lineno
            before = ast.get_source_segment(text, node) or ""
            head = lines[line - 1].encode()[: node.col_offset].decode()
            tail = lines[stop - 1].encode()[node.end_col_offset :].decode()
            after = ast.unparse(changed)
            after = f"({after})" if isinstance(node, ast.expr) else after
            source = "".join(lines[: line - 1]) + head + after + tail + "".join(lines[stop:])
            numbers[line] = numbers.get(line, 0) + 1
            yield Mutant(name, line, numbers[line], " ".join(before.split()), " ".join(after.split()), source)


def _of_functions(tree: ast.AST) -> Iterator[ast.expr | ast.stmt]:
    """Yield the mutable nodes of function bodies: no annotations, defaults, messages or assertions."""
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef) and not function.name.startswith("__repr"):
            yield from _below(function.body)


def _below(nodes: list[ast.stmt] | list[ast.AST]) -> Iterator[ast.expr | ast.stmt]:
    for node in nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Raise | ast.Assert | ast.JoinedStr):
            continue
        if isinstance(node, ast.expr | ast.stmt):
            yield node
        yield from _below([child for child in ast.iter_child_nodes(node) if not isinstance(child, ast.arguments)])


def _changes(node: ast.expr | ast.stmt) -> Iterator[ast.AST]:
    changed = copy.deepcopy(node)
    if isinstance(changed, ast.Compare) and len(changed.ops) == 1:
        changed.ops = [COMPARISONS[type(changed.ops[0])]()]
        yield changed
    elif (isinstance(changed, ast.BinOp) and type(changed.op) in OPERATORS) or (
        isinstance(changed, ast.AugAssign) and type(changed.op) in OPERATORS
    ):
        changed.op = OPERATORS[type(changed.op)]()
        yield changed
    elif isinstance(changed, ast.BoolOp):
        changed.op = ast.Or() if isinstance(changed.op, ast.And) else ast.And()
        yield changed
    elif isinstance(changed, ast.UnaryOp) and isinstance(changed.op, ast.Not):
        yield changed.operand
    elif isinstance(changed, ast.Constant) and isinstance(changed.value, int):
        value = changed.value
        changed.value = not value if isinstance(value, bool) else value + 1
        yield changed
    elif isinstance(changed, ast.Expr) and isinstance(changed.value, ast.Call | ast.Await | ast.Delete):
        if "logger" not in ast.unparse(changed):
            yield ast.Pass()
    elif isinstance(changed, ast.IfExp):
        changed.body, changed.orelse = changed.orelse, changed.body
        yield changed


# Running them.


def run(mutant: Mutant) -> str | None:
    """Return the stage that kills *mutant*, None if it survives."""
    with tempfile.TemporaryDirectory(prefix="mutant-") as directory:
        for name in ("mrecordlog_async", "tests", "pyproject.toml", "README.md", "examples", "pyspark_mrecordlog.py"):
            source, target = ROOT / name, Path(directory) / name
            if source.is_dir():
                shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(source, target)
        (Path(directory) / "mrecordlog_async" / mutant.file).write_text(mutant.source)
        near = NEAREST.get(mutant.file) or NEAREST.get(mutant.file.partition("/")[0]) or []
        for stage in [*near, *LAST]:
            if (killer := _killer(directory, stage)) is not None:
                return killer
    return None


def _killer(directory: str, stage: str) -> str | None:
    """Run a stage; return the test that failed, None if all passed."""
    work = ["-m", "tests.faults.mutants", "--hunt"] if stage == "HUNT" else ["-m", "pytest", *QUICK, *stage.split()]
    process = subprocess.Popen(
        [sys.executable, *work],
        cwd=directory,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
        env={**os.environ, "TMPDIR": directory, "PYTHONDONTWRITEBYTECODE": "1", "MRECORDLOG_PURE": "1"},
    )
    try:
        out, _ = process.communicate(timeout=STAGE_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return f"time: {stage}"
    if process.returncode == 0:
        return None
    failed = [line.split()[1] for line in out.splitlines() if line.startswith(("FAILED ", "ERROR "))]
    return failed[0] if failed else f"{'the hunt' if stage == 'HUNT' else 'time: ' + stage}"


def hunt() -> None:
    """Check a part of the crash states and faults of every history. Raises at the first broken promise."""
    from .explore import Explorer
    from .histories import CASES
    from .inject import faults, inject

    logging.disable(logging.CRITICAL)
    for name, case in CASES.items():
        if name in SLOW:
            continue
        run = case.run()
        assert run.stopped is None
        explorer = Explorer(subsets=1, deep_every=150, kill_every=40)
        with case.sizes():
            explorer.explore(run, every=47)
        for fault in list(faults(run.disk.call_names))[::150]:
            inject(case, fault, explorer)


SLOW = ("many queues", "rolls, small", "large, small", "killed", "never, killed", "never, rolls", "copy drained")
"""Histories that the hunt leaves to the tests, because they cost as much as all others together."""


def main() -> int:
    """Read the arguments, run, and sum up."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="FILE, FILE:LINE or FILE:LINE:NUMBER")
    parser.add_argument("--count", type=int, default=90, help="how many to take from all (default: 90)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--skip", type=int, default=0, help="how many of them to pass over")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--hunt", action="store_true", help="only the short hunt, on the source as it is")
    arguments = parser.parse_args()
    if arguments.hunt:
        hunt()
        return 0
    every = mutants()
    if arguments.names:
        wanted = tuple(arguments.names)
        chosen = [mutant for mutant in every if any(f"{mutant.name}:".startswith(f"{name}:") for name in wanted)]
    else:
        chosen = random.Random(arguments.seed).sample(every, min(arguments.count, len(every)))[arguments.skip :]
    if arguments.list:
        for mutant in every if not arguments.names else chosen:
            print(f"{mutant.name}: {mutant.before}  →  {mutant.after}")
        return 0
    return _report(chosen, arguments.jobs)


def _report(chosen: list[Mutant], jobs: int) -> int:
    survivors = 0
    begun = time.monotonic()
    with ThreadPoolExecutor(jobs) as pool:
        for mutant, stage in zip(chosen, pool.map(run, chosen), strict=True):
            survivors += stage is None
            verdict = "SURVIVED" if stage is None else f"killed by {stage}"
            print(f"{mutant.name}: {mutant.before}  →  {mutant.after}: {verdict}", flush=True)
    print(
        f"{len(chosen)} mutants, {len(chosen) - survivors} killed, {survivors} survived, "
        f"{time.monotonic() - begun:.0f} s"
    )
    return 1 if survivors else 0


if __name__ == "__main__":
    raise SystemExit(main())
