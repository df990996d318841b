"""Scripts that stand in for programs: where they are kept, and that their text is the requested one."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from mrecordlog_async.spark import shims
from mrecordlog_async.spark.shims import install_shim

SCRIPT = "#!/bin/sh\necho here\n"


def test_the_same_script_is_found_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A script is written to the user's cache once; another script has another path."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    home = install_shim("bin/tool", SCRIPT)
    assert home.is_relative_to(tmp_path)
    assert install_shim("bin/tool", SCRIPT) == home
    assert install_shim("bin/tool", SCRIPT + "#") != home
    assert subprocess.run([home / "bin" / "tool"], capture_output=True, text=True, check=True).stdout == "here\n"


def test_a_script_that_was_changed_is_written_again(tmp_path: Path) -> None:
    """A script that was changed on disk is written again."""
    shims.write(tmp_path, "tool", SCRIPT)
    (tmp_path / "tool").write_text("#!/bin/sh\necho other\n")
    shims.write(tmp_path, "tool", SCRIPT)
    assert (tmp_path / "tool").read_text() == SCRIPT


def test_without_a_cache_it_is_a_temporary_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a writable cache, the script is written to the directory for temporary files."""
    (tmp_path / "file").touch()
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    assert install_shim("tool", SCRIPT).is_relative_to(tmp_path / "temporary")
