"""Installs what was built in empty environments and uses it: `python -m tests.deep.installed dist/* --python 3.11`.

For each file and each Python: a new environment, the file with its extra `server`, and nothing of this repository in
reach. Then the version and the build are as the file says, the first program of the site prints its record, a
service gets ready, stores a record and hands it out again, and ends with 0; and pytest, installed next to it, finds its
fixtures: the test of the tutorial passes. With `--uvx`, `uvx --from FILE mrecordlog`
runs the same, without an environment.

An sdist is installed twice: with MRECORDLOG_COMPILE=require, and with `off`. With `--container`, the files that
examples/deploy/Dockerfile copies are installed and started as it does. That needs no Docker.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.request import urlopen

from tests.docs.blocks import ROOT, TUTORIAL, blocks

SECONDS = 120.0


@dataclass(frozen=True)
class Case:
    """A file that is installed, and the build that it must give."""

    file: Path
    build: str
    environment: dict[str, str]


def cases(files: list[Path]) -> Iterator[Case]:
    """Yield what each of *files* is installed as."""
    for file in files:
        if file.name.endswith(".tar.gz"):
            yield Case(file, "compiled", {"MRECORDLOG_COMPILE": "require"})
            yield Case(file, "pure", {"MRECORDLOG_COMPILE": "off"})
        else:
            yield Case(file, "pure" if file.name.endswith("-none-any.whl") else "compiled", {})


def main() -> int:
    """Install and use each file with each Python; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE")
    parser.add_argument("--python", nargs="+", default=[f"{sys.version_info[0]}.{sys.version_info[1]}"])
    parser.add_argument("--uvx", action="store_true", help="run the wheels with uvx, too")
    parser.add_argument("--container", action="store_true", help="install as the Dockerfile does, too")
    arguments = parser.parse_args()
    failed = 0
    if arguments.container:
        with TemporaryDirectory() as place:
            container(Path(place))
            print("examples/deploy/Dockerfile: its steps work", flush=True)
    for case in cases([file.resolve() for file in arguments.files]):
        ways = [(python, install) for python in arguments.python for install in (_environment,)]
        if arguments.uvx and case.file.suffix == ".whl":
            ways += [(python, _uvx) for python in arguments.python]
        for python, install in ways:
            with TemporaryDirectory() as place:
                begun, how = time.monotonic(), install.__name__.strip("_")
                try:
                    command = install(case, python, Path(place))
                    use(command, case, Path(place))
                    said = "works"
                except (AssertionError, subprocess.CalledProcessError) as error:
                    failed, said = failed + 1, f"FAILED: {error}"
            print(
                f"{case.file.name}, {case.build}, Python {python}, {how}: {said}, {time.monotonic() - begun:.0f} s",
                flush=True,
            )
    return failed


def _environment(case: Case, python: str, place: Path) -> list[str]:
    """Install it into a new environment; return how `mrecordlog` is called."""
    subprocess.run([f"python{python}", "-m", "venv", str(place / "venv")], check=True)
    pip = [str(place / "venv" / "bin" / "pip"), "install", "-q", "--disable-pip-version-check", "--no-cache-dir"]
    _run([*pip, f"mrecordlog_async[server] @ {case.file.as_uri()}"], place, case.environment)
    (first,) = (block.text for block in blocks(ROOT / "docs" / "index.md") if block.language == "python")
    (place / "first.py").write_text(first)
    assert _run([str(place / "venv" / "bin" / "python"), "first.py"], place) == "0 b'two coffees'\n"
    _run([*pip, "pytest", "pytest-asyncio"], place)
    (tested,) = (block.text for block in blocks(TUTORIAL) if "memory_log" in block.text and block.language == "python")
    (place / "test_it.py").write_text(f"{tested}\n\ndef test_service(memory_service: str) -> None: ...\n")
    assert "11 passed" in _run([str(place / "venv" / "bin" / "pytest"), "-q", "test_it.py"], place)
    return [str(place / "venv" / "bin" / "mrecordlog")]


def container(place: Path) -> None:
    """Do what the Dockerfile does: its COPY, its pip install and its entry point."""
    text = (ROOT / "examples" / "deploy" / "Dockerfile").read_text()
    (place / "source").mkdir()
    for line in re.findall(r"^COPY (?!--from)(.*) \S+$", text, re.MULTILINE):
        for name in line.split():
            if (ROOT / name).is_dir():
                ignored = shutil.ignore_patterns("*.so", "__pycache__")
                shutil.copytree(ROOT / name, place / "source" / name, ignore=ignored)
            else:
                shutil.copyfile(ROOT / name, place / "source" / name)
    (extras,) = re.findall(r"^ARG EXTRAS=(\w+)$", text, re.MULTILINE)
    (mode,) = re.findall(r"^ARG MRECORDLOG_COMPILE=(\w+)$", text, re.MULTILINE)
    subprocess.run([sys.executable, "-m", "venv", str(place / "venv")], check=True)
    pip = [str(place / "venv" / "bin" / "pip"), "install", "-q", "--no-cache-dir", f".[{extras}]"]
    _run(pip, place / "source", {"MRECORDLOG_COMPILE": mode})
    use([str(place / "venv" / "bin" / "mrecordlog")], Case(place, "compiled", {}), place)


def _uvx(case: Case, python: str, place: Path) -> list[str]:
    uvx = shutil.which("uvx") or str(Path(sys.executable).with_name("uvx"))
    return [uvx, "-q", "--python", python, "--from", f"mrecordlog_async[server] @ {case.file.as_uri()}", "mrecordlog"]


def use(command: list[str], case: Case, place: Path) -> None:
    """Ask for the version, and store and read a record through a service."""
    version = _run([*command, "--version"], place)
    assert re.fullmatch(rf"mrecordlog [\w.]+ \({case.build}\b.*\)\n", version), version
    port = _free_port()
    serve = [*command, "serve", str(place / "log"), "--port", str(port)]
    with subprocess.Popen(serve, cwd=place, env=_outside(), stderr=subprocess.PIPE, text=True) as service:
        try:
            url = f"http://127.0.0.1:{port}"
            _wait_ready(f"{url}/readyz", service)
            with urlopen(f"{url}/v1/queues/q/records?create=1", data=b"two coffees", timeout=SECONDS) as response:
                assert response.status == 200
            with urlopen(f"{url}/v1/queues/q/records?as=text", timeout=SECONDS) as response:
                assert b"two coffees" in response.read()
        finally:
            service.terminate()
        assert service.wait(SECONDS) == 0
    assert "q" in _run([*command, "ls", str(place / "log")], place)


def _wait_ready(url: str, service: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + SECONDS
    while True:
        try:
            with urlopen(url, timeout=10):
                return
        except OSError:
            assert service.poll() is None, service.stderr and service.stderr.read()
            assert time.monotonic() < deadline, "the service does not get ready"
            time.sleep(0.05)


def _run(command: list[str], place: Path, environment: dict[str, str] | None = None) -> str:
    done = subprocess.run(command, cwd=place, env=_outside() | (environment or {}), capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}{done.stderr}"
    return done.stdout


def _outside() -> dict[str, str]:
    """Return the environment without what leads to this repository."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTHON", "VIRTUAL_ENV", "MRECORDLOG"))
    }


def _free_port() -> int:
    import socket

    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


if __name__ == "__main__":
    sys.exit(main())
