"""The workflows of a forge run what `.ci/run` runs: each command is in a session of nox, each session in a workflow."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parent.parent
WORKFLOWS = ROOT / ".github" / "workflows"
NOXFILE = (ROOT / "noxfile.py").read_text()
LOCAL = ("tests", "lint", "types")
"""The sessions that are the steps of `.ci/run`."""


def jobs(workflow: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((WORKFLOWS / workflow).read_text())["jobs"]
    return found


def sessions() -> dict[str, set[tuple[str, ...]]]:
    """Return session → the commands that it runs."""
    bodies = re.findall(r"^def (\w+)\(session.*?(?=^@|\Z)", NOXFILE, re.MULTILINE | re.DOTALL)
    texts = {name: NOXFILE.split(f"def {name}(session")[1].split("@nox")[0] for name in bodies}
    return {
        name: {tuple(re.findall(r'"([^"]*)"', call)) for call in re.findall(r"session\.run\(([^\n]*)\)", text)}
        for name, text in texts.items()
    }


def test_the_sessions_of_nox_run_the_commands_of_ci() -> None:
    """A check that is added to `.ci/run` is added to the sessions, word for word."""
    commands = re.findall(r"(?:^|&& )\.venv/bin/(?!pip)(.*)$", (ROOT / ".ci" / "run").read_text(), re.MULTILINE)
    (tests,) = re.findall(r"&& \.venv/bin/(pytest.*)$", (ROOT / ".ci" / "run").read_text(), re.MULTILINE)
    wanted = {tuple(command.split()) for command in commands if "&&" not in command} | {tuple(tests.split())}
    assert len(wanted) == 6
    known = sessions()
    assert set.union(*(known[name] for name in LOCAL)) >= wanted


def test_a_push_runs_every_session_of_ci_on_every_python() -> None:
    """Tests on each version that the package names, and each check; nothing is published without them."""
    found = jobs("tests.yml")
    known = sessions()
    assert set(found["checks"]["strategy"]["matrix"]["session"]) <= known.keys()
    assert {"lint", "types", "docs", "package"} <= set(found["checks"]["strategy"]["matrix"]["session"])
    (pythons,) = re.findall(r"^PYTHONS = \[(.*)\]$", NOXFILE, re.MULTILINE)
    assert found["tests"]["strategy"]["matrix"]["python"] == re.findall(r'"([\d.]+)"', pythons)
    release = jobs("release.yml")
    assert release["tests"]["uses"] == "./.github/workflows/tests.yml"
    assert (release["build"]["needs"], release["wheels"]["needs"]) == ("tests", "tests")
    assert (release["installed"]["needs"], release["publish"]["needs"]) == (["build", "wheels"], "installed")
