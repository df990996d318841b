"""The README's two commands by the clock, in a fresh clone in an empty directory: `python -m tests.two_commands [DIR]`.

The first one installs the package and starts `mrecordlog serve`, until `/readyz` responds. The second one installs what
the tests need, and runs them; `--no-tests` stops before that. Prints the seconds of each part, and of the processor.
"""

from __future__ import annotations

import argparse
import os
import re
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.docs.blocks import README, ROOT
from tests.serving import free_port


def commands() -> tuple[str, str, str]:
    """Return the README's installation, and the two halves of its test command."""
    text = README.read_text()
    (first,) = re.findall(r"^    (python3 -m venv .*uvicorn)$", text, re.MULTILINE)
    (second,) = re.findall(r"^    (python3 -m venv .*pytest.*)$", text, re.MULTILINE)
    install, _, tests = second.rpartition(" && ")
    return first, install, tests


def main() -> int:
    """Run them; return the exit code of the tests."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", nargs="?", type=Path, help="an empty directory (default: a temporary one)")
    parser.add_argument("--no-tests", action="store_true")
    arguments = parser.parse_args()
    first, install, tests = commands()
    with TemporaryDirectory(dir=arguments.directory) as place:
        one, two = Path(place, "first"), Path(place, "second")
        for clone in (one, two):
            subprocess.run(["git", "clone", "-q", str(ROOT), str(clone)], check=True)
        with timed("first command, until /readyz"):
            run(first, one)
            wait_ready(one)
        with timed("second command, installation"):
            run(install, two)
        if arguments.no_tests:
            return 0
        with timed("second command, tests"):
            return run(tests, two, check=False)


@contextmanager
def timed(what: str) -> Iterator[None]:
    """Print how long the block took."""
    begun, before = time.monotonic(), _cpu()
    yield
    print(f"{what}: {time.monotonic() - begun:.0f} s, {_cpu() - before:.0f} s of the processor", flush=True)


def run(command: str, clone: Path, *, check: bool = True) -> int:
    """Run a line of the README there, as somebody who types it; return its exit code."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    return subprocess.run(command, shell=True, cwd=clone, env=environment, stdout=sys.stderr, check=check).returncode


def wait_ready(clone: Path) -> None:
    """Start a service with what was installed, wait until it is ready, and end it."""
    from urllib.request import urlopen

    port = free_port()
    with subprocess.Popen([".venv/bin/mrecordlog", "serve", "./wal", "--port", str(port)], cwd=clone) as service:
        while True:
            try:
                with urlopen(f"http://127.0.0.1:{port}/readyz", timeout=10):
                    break
            except OSError:
                assert service.poll() is None
                time.sleep(0.02)
        service.terminate()


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    sys.exit(main())
