"""What root makes of a log belongs to the user who owns the log: the service of that user must open it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import damage
from tests.cli.running import build, mrecordlog, three_queues

USER, GROUP = 10_001, 10_002

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root"),
    pytest.mark.skipif(shutil.which("setpriv") is None, reason="setpriv is not installed"),
]


@pytest.fixture
def data() -> Iterator[Path]:
    """A directory of the user, who cannot enter the one that pytest makes for root."""
    with tempfile.TemporaryDirectory() as made:
        Path(made).chmod(0o755)
        path = Path(made) / "data"
        path.mkdir()
        os.chown(path, USER, GROUP)
        yield path


@pytest.fixture
def log(data: Path) -> Path:
    """A log of the user."""
    directory = build(data / "wal", three_queues)
    for path in [directory, *directory.iterdir()]:
        os.chown(path, USER, GROUP)
    return directory


def as_user(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Run the command as the user, who has no other rights."""
    command = ["setpriv", f"--reuid={USER}", f"--regid={GROUP}", "--clear-groups", sys.executable, "-m"]
    return subprocess.run(
        [*command, "mrecordlog_async", *map(str, arguments)], capture_output=True, text=True, input="one", timeout=120
    )


def check(directory: Path) -> None:
    """Check that every file is the user's, and that the user can write the log."""
    for path in [directory, *directory.iterdir()]:
        assert (path.stat().st_uid, path.stat().st_gid) == (USER, GROUP), path
    if as_user("--version").returncode != 0:
        return  # this checkout is root's alone
    done = as_user("append", directory, "new", "--create")
    assert done.returncode == 0, done.stderr


def test_a_log_that_root_repaired_can_be_opened_by_its_user(log: Path) -> None:
    """The documented steps, to the letter, as root."""
    damage.flip_byte(damage.segments(log)[0], 40_000)
    assert mrecordlog("verify", log).code == 3
    assert mrecordlog("repair", log, "--apply").code == 0
    log.rename(log.with_name("wal.damaged"))
    log.with_name("wal.repaired").rename(log)
    check(log)


def test_a_snapshot_that_root_made_belongs_to_the_user_of_its_log(log: Path, data: Path) -> None:
    """Whatever directory it is in, and whether segments are linked or copied."""
    backups = data.parent / "backups" / "daily"
    assert mrecordlog("snapshot", log, backups / "one").code == 0
    assert mrecordlog("snapshot", log, backups / "two", "--copy").code == 0
    assert backups.stat().st_uid == 0
    backups.parent.chmod(0o755)
    backups.chmod(0o755)
    check(backups / "one")
    check(backups / "two")


def test_a_log_that_root_loaded_belongs_to_the_user(log: Path, data: Path) -> None:
    """It was made of lines, so it has the owner of the directory around it."""
    lines = mrecordlog("dump", log).out
    assert mrecordlog("load", data / "loaded", stdin=lines).code == 0
    check(data / "loaded")


def test_root_may_append_to_the_log_of_a_user(log: Path) -> None:
    """What a command leaves in the log, such as CLOSED, does not lock out the service."""
    assert mrecordlog("append", log, "new", "--create", stdin="one").code == 0
    check(log)


def test_root_may_make_a_log_for_a_user(data: Path) -> None:
    """In a directory of the user."""
    assert mrecordlog("append", data / "new", "q", "--create", stdin="one").code == 0
    check(data / "new")
