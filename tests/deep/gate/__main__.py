"""`python -m tests.deep.gate`: see the package."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import tests.deep.gate as gate

from .running import LIMIT_SECONDS, Verdict, run_control, stages_for, try_bug
from .table import BUGS, PACKAGE, ROOT, Bug, read_bugs, room_of

FOUND = Path(__file__).with_name("found.json")
CHANGED_MAX = 60
"""With more bugs, `--changed` would take longer than the tests near the change."""


def main() -> int:
    """Read the arguments, try bugs, and print the table; 1 if a bug is broken or not found, or the control fails."""
    parser = argparse.ArgumentParser(description=gate.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="room", help="rooms, or names of bugs")
    parser.add_argument("--changed", action="store_true", help=f"bugs of the rooms that changed, at most {CHANGED_MAX}")
    parser.add_argument("--record", action="store_true", help="write down which test finds each bug")
    parser.add_argument("--jobs", type=int, default=2, help="bugs tried at a time (default: 2)")
    parser.add_argument("--seconds", type=float, default=LIMIT_SECONDS, help="the clock limit of a bug")
    arguments = parser.parse_args()
    bugs = read_bugs()
    if unknown := {*arguments.names} - {each for bug in bugs.values() for each in (bug.room, bug.name)}:
        parser.error(f"no such room or bug: {', '.join(sorted(unknown))}")
    if arguments.changed:
        chosen = changed_since(base(), bugs)
        if len(chosen) > CHANGED_MAX:
            print(f"{len(chosen) - CHANGED_MAX} more bugs are in rooms that changed: try them by hand")
        chosen = chosen[:CHANGED_MAX]
    else:
        chosen = [bug for bug in bugs.values() if not arguments.names or {bug.room, bug.name} & {*arguments.names}]
    return report(chosen, jobs=arguments.jobs, seconds=arguments.seconds, records=arguments.record)


def report(bugs: Iterable[Bug], *, jobs: int, seconds: float, records: bool) -> int:
    """Try *bugs*, print what became of each, and run the control."""
    begun = time.monotonic()
    found: dict[str, str] = json.loads(FOUND.read_text()) if FOUND.exists() else {}
    bugs = sorted(bugs, key=lambda bug: bug.room)
    verdicts: list[Verdict] = []
    with ThreadPoolExecutor(jobs) as pool:
        for verdict in pool.map(lambda bug: try_bug(bug, stages_for(bug, found.get(bug.name)), seconds), bugs):
            verdicts.append(verdict)
            print(line_of(verdict), flush=True)
        tests = sorted({each.test for each in verdicts if each.test})
        failures = [
            each for failed in pool.map(run_control, [tests[at::jobs] for at in range(jobs)]) for each in failed
        ]
    for each in failures:
        print(f"the control fails: {each}")
    print(summary(verdicts), f"control: {len(tests)} tests, {len(failures)} failed", sep="\n")
    times = os.times()
    cpu_seconds = times.user + times.system + times.children_user + times.children_system
    print(f"{cpu_seconds:.0f} s of processor time, {time.monotonic() - begun:.0f} s by the clock")
    if records:
        found |= {each.bug.name: each.test for each in verdicts if each.test}
        known = read_bugs()
        FOUND.write_text(json.dumps({name: found[name] for name in sorted(found) if name in known}, indent=1) + "\n")
    return 1 if failures or any(each.kind != "found" for each in verdicts) else 0


def line_of(verdict: Verdict) -> str:
    """Return a line of the table."""
    bug = verdict.bug
    by = f"{verdict.layer}  {verdict.test}" if verdict.test else verdict.reason
    return f"{bug.room:12} {bug.name:55} {verdict.kind:9} {verdict.seconds:4.0f} s  {by}"


def summary(verdicts: Iterable[Verdict]) -> str:
    """Return a line for each room."""
    verdicts = [*verdicts]
    lines = []
    for room in sorted({each.bug.room for each in verdicts}):
        here = [each for each in verdicts if each.bug.room == room]
        kinds = Counter(each.layer or each.kind for each in here)
        lines.append(f"{room:12} {len(here):3} bugs: " + ", ".join(f"{count} {kind}" for kind, count in kinds.items()))
    return "\n".join(lines)


# What changed.


def base() -> str:
    """Return the commit to compare with: `origin/main`, or the one before this one if that is the same or missing."""
    here, main = git("rev-parse", "HEAD"), git("rev-parse", "--verify", "-q", "origin/main")
    return "HEAD^" if main in ("", here) else main


def changed_since(commit: str, bugs: Mapping[str, Bug]) -> list[Bug]:
    """Return the *bugs* that are new or in rooms whose source differs from *commit*: first those in the same files."""
    names = git("diff", "--name-only", commit, "--", PACKAGE).splitlines()
    files = {name.removeprefix(f"{PACKAGE}/") for name in names}
    table = git("show", f"{commit}:{BUGS.relative_to(ROOT)}")
    before = read_bugs(table) if table else bugs
    changed = [bug for bug in bugs.values() if bug.file in files or before.get(bug.name) != bug]
    rooms = {room_of(file) for file in files}
    return changed + [bug for bug in bugs.values() if bug.room in rooms and bug not in changed]


def git(*arguments: str) -> str:
    """Return what git prints; nothing if it fails."""
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True).stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
