"""The compiled wheel: what is in it, what builds it, and what says that it runs."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import urllib.request
import zipfile
from pathlib import Path

import pytest

from tests.deep.built import build, install
from tests.serving import TIMEOUT_SECONDS

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the sdist, and from it the wheel where Cython cannot be imported."""
    place = tmp_path_factory.mktemp("compiled")
    (sdist,) = build(place, "--sdist", compile="require").glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(place / "unpacked", filter="data")
    (place / "hidden").mkdir()
    for name in ("cython", "Cython", "pyximport"):
        (place / "hidden" / f"{name}.py").write_text("raise ImportError('hidden')")
    (source,) = (place / "unpacked").iterdir()
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(place), str(source)]
    environment = os.environ | {"MRECORDLOG_COMPILE": "require", "PYTHONPATH": str(place / "hidden")}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = place.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the wheel where the source tree is not found; return its Python."""
    return install(wheel, tmp_path_factory.mktemp("environment"), extras=True)


def test_one_wheel_serves_every_python_and_holds_no_source_of_c(wheel: Path) -> None:
    """It is built for the stable ABI of the oldest Python, from the C of the sdist, without Cython."""
    assert re.fullmatch(r"mrecordlog_async-[^-]+-cp311-abi3-\w+\.whl", wheel.name)
    names = {Path(name).name for name in zipfile.ZipFile(wheel).namelist() if "/compiled/" in name}
    assert {"__init__.py", "twins.py", "_loops.pyi", "_loops.abi3.so"} <= names
    assert not [name for name in names if name.endswith((".pyx", ".c", ".txt"))]


def test_the_version_says_which_build_runs(python: Path) -> None:
    """Away from the source tree, the installed command runs the compiled loops, and their twins if it is told to."""
    command = [str(python.with_name("mrecordlog")), "--version"]
    said = {
        pure: subprocess.check_output(
            command, text=True, cwd=python.parents[1], env=os.environ | {"MRECORDLOG_PURE": pure}
        )
        for pure in ("0", "1")
    }
    assert said["0"].endswith(" (compiled)\n")
    assert said["1"].endswith(" (pure: MRECORDLOG_PURE is set)\n")


@pytest.mark.parametrize(("pure", "build_name"), [("0", "compiled"), ("1", "pure")])
def test_the_service_says_which_build_runs(python: Path, tmp_path: Path, pure: str, build_name: str) -> None:
    """Its first line and `GET /v1/log` say it."""
    command = [str(python.with_name("mrecordlog")), "serve", str(tmp_path / "wal"), "--port", "0"]
    environment = os.environ | {"MRECORDLOG_PURE": pure}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=tmp_path, env=environment) as service:
        assert service.stderr is not None
        try:
            found = None
            while found is None:
                line = service.stderr.readline()
                assert line, "it has ended"
                found = re.search(r"listening on (\S+) \((\w+)\)", line)
            assert found[2] == build_name
            body = ""
            while not body:  # 503 while it recovers
                try:
                    with urllib.request.urlopen(f"{found[1]}/v1/log", timeout=TIMEOUT_SECONDS) as response:
                        body = response.read().decode()
                except urllib.error.HTTPError as error:
                    assert error.code == 503
            assert f'"build":"{build_name}"' in body
        finally:
            service.kill()
