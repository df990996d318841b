"""Which of both runs, the compiled loops or their twins, and what says so."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.blocks import ROOT

SHOW = "import mrecordlog_async.compiled as room; print(room.BUILD, room.WHY_PURE)"


def shown(at: Path, **environment: str) -> tuple[str, str]:
    """Return what a new process says that runs, with the package of the directory *at*, and its standard error."""
    names = {"PYTHONPATH": str(at), "MRECORDLOG_PURE": "0", **environment}
    command = [sys.executable, "-c", SHOW]
    done = subprocess.run(command, capture_output=True, text=True, cwd=at, env=os.environ | names)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip(), done.stderr


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Copy the room without what was built, with what builds it; return the directory."""
    for name in ("__init__.py", "errors.py", "compiled"):
        source, target = ROOT / "mrecordlog_async" / name, tmp_path / "mrecordlog_async" / name
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("*.so", "*.c", "why_pure.txt", "__pycache__"))
        else:
            target.parent.mkdir(exist_ok=True)
            shutil.copy(source, target)
    shutil.copy(ROOT / "hatch_build.py", tmp_path)
    return tmp_path


def built(tree: Path, **environment: str) -> str:
    """Run the command of CONTRIBUTING in *tree*; return what it printed."""
    command = [sys.executable, "hatch_build.py"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tree, env=os.environ | environment)
    return done.stdout if done.returncode == 0 else f"{done.returncode} {done.stderr}"


needs_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")


@needs_compiler
def test_a_build_in_place_runs_and_is_pure_if_asked(tree: Path) -> None:
    """Nothing built: twins. Built: compiled. MRECORDLOG_PURE=1: twins. Built with `off`: twins again."""
    assert shown(tree)[0] == "pure it was installed without"
    assert built(tree, MRECORDLOG_COMPILE="require").startswith("compiled: ")
    assert shown(tree) == ("compiled", "")
    assert shown(tree, MRECORDLOG_PURE="1") == ("pure MRECORDLOG_PURE is set", "")
    assert built(tree, MRECORDLOG_COMPILE="off") == "pure: off\n"
    assert shown(tree)[0] == "pure it was installed without"


@needs_compiler
def test_loops_built_from_another_source_do_not_run(tree: Path) -> None:
    """After a `git pull` the old build is not used, and one line says what to do."""
    assert built(tree, MRECORDLOG_COMPILE="require").startswith("compiled: ")
    source = tree / "mrecordlog_async" / "compiled" / "_loops.pyx"
    source.write_text(source.read_text() + "# changed\n")
    out, error = shown(tree)
    assert out.startswith("pure _loops was built from another source")
    assert len(error.splitlines()) == 1
    assert "python hatch_build.py" in error


def test_without_a_compiler_the_installation_is_pure_and_says_why(tree: Path) -> None:
    """`auto` installs the twins and keeps the reason; `require` fails with it; another word is refused."""
    assert "no C compiler" in built(tree, CC="no-such-compiler")
    assert shown(tree)[0] == "pure no C compiler: no-such-compiler was not found"
    assert "no C compiler" in built(tree, CC="no-such-compiler", MRECORDLOG_COMPILE="require")
    assert "must be auto, require or off" in built(tree, MRECORDLOG_COMPILE="yes")


def test_a_compiler_that_fails_is_no_reason_not_to_install(tree: Path) -> None:
    """A missing header, or whatever else the compiler says: `auto` installs the twins and keeps its words."""
    assert built(tree, CC="false").startswith("pure: false ")
    assert shown(tree)[0].startswith("pure false ")
