"""The rescue tools need nothing but the core: no aiohttp, no rich, no terminal."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests import damage
from tests.cli.running import build, three_queues
from tests.said import at_any_speed

EXTRAS = (
    "aiohttp",
    "msgspec",
    "prometheus_client",
    "rich",
    "uvloop",
    "pyarrow",
    "pyspark",
    "py4j",
    "deltalake",
    "fastapi",
)
WITHOUT_EXTRAS = (
    "import sys; sys.modules.update(dict.fromkeys({extras!r})); "
    "from mrecordlog_async.cli.main import main; sys.exit(main(sys.argv[1:]))"
)


def bare(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Run the command line where importing any extra fails."""
    command = [sys.executable, "-c", WITHOUT_EXTRAS.format(extras=EXTRAS), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return build(tmp_path / "wal", three_queues)


@pytest.mark.parametrize(
    "arguments",
    [
        ("ls", "DIR"),
        ("verify", "DIR"),
        ("repair", "DIR"),
        ("dump", "DIR"),
        ("cat", "DIR", "orders"),
        ("top", "DIR", "--once", "--interval", "0.1"),
        ("snapshot", "DIR", "DIR.copy"),
        ("truncate", "DIR", "orders", "30"),
        ("completion", "bash"),
        ("--help",),
    ],
    ids=lambda arguments: arguments[0],
)
def test_commands_on_files_need_no_extra(directory: Path, arguments: tuple[str, ...]) -> None:
    """Each works with the two packages of the core, and writes plain text."""
    ran = bare(*(argument.replace("DIR", str(directory)) for argument in arguments))
    assert (ran.returncode, at_any_speed(ran.stderr)) == (0, "")
    assert ran.stdout
    assert "\x1b" not in ran.stdout


@pytest.mark.parametrize(
    ("command", "package", "extra"),
    [
        ("ls http://127.0.0.1:9", "msgspec", "server"),
        ("serve DIR", "msgspec", "server"),
        ("drain --server a=http://127.0.0.1:9 --output o", "msgspec", "spark"),
        ("lake show o", "pyarrow", "spark"),
    ],
)
def test_what_needs_an_extra_says_which(directory: Path, command: str, package: str, extra: str) -> None:
    """The message is the command that installs it."""
    ran = bare(*command.replace("DIR", str(directory)).split())
    assert ran.returncode == 1
    assert f"{package} is not installed: run pip install 'mrecordlog_async[{extra}]'" in ran.stderr


def test_reading_commands_never_write(directory: Path) -> None:
    """No byte and no name changes, and a read-only directory is enough."""
    before = damage.snapshot(directory)
    for command in (("ls",), ("verify",), ("dump",), ("repair",)):
        bare(*command, directory)
    bare("cat", directory, "orders")
    assert damage.snapshot(directory) == before
