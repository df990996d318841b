"""The wheel and the sdist of this tree, and an environment in which the wheel is installed."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from tests.docs.blocks import ROOT


def known_files() -> list[str]:
    """Return the files of the repository that exist, by their paths in it. Skip the test in an unpacked sdist."""
    if not (ROOT / ".git").exists():
        pytest.skip("only git knows which files belong to the package")
    found = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [name for name in found.split("\0") if name and (ROOT / name).is_file()]


def build(place: Path, *options: str, compile: str = "off") -> Path:
    """Build from the files that git knows, with something in the tree that must not be published.

    Without options the sdist is built, and the wheel from the sdist. Return the directory of what was built.
    compile: MRECORDLOG_COMPILE.
    """
    source, dist = place / "source", place / "dist"
    for name in known_files():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_bytes((ROOT / name).read_bytes())
    (source / "token.txt").write_text("secret")
    (source / "wal").mkdir()
    (source / "wal" / "00000000000000000000.wal").write_bytes(b"records")
    (source / "mrecordlog_async" / "compiled" / "_loops.abi3.so").write_bytes(b"built in place for another machine")
    command = [sys.executable, "-m", "build", "--no-isolation", *options, "--outdir", str(dist), str(source)]
    environment = os.environ | {"MRECORDLOG_COMPILE": compile}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return dist


def install(wheel: Path, place: Path, *, extras: bool) -> Path:
    """Install *wheel* into a new environment. Return its Python.

    extras: it finds the packages of this environment too, but this package only as the wheel.
    """
    venv.create(place, with_pip=False)
    python = place / "bin" / "python"
    command = [sys.executable, "-m", "pip", "--python", str(python), "install", "--no-deps", "--no-index", "--quiet"]
    subprocess.run([*command, str(wheel)], check=True)
    if extras:
        # Python does not run the .pth files of a directory that a .pth file names: the editable install is not found.
        (packages,) = place.glob("lib/python*/site-packages")
        found = [path for path in sys.path if path.endswith("site-packages")]
        (packages / "extras.pth").write_text("\n".join([*found, ""]))
    return python
