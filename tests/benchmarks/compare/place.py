"""Where a contestant runs: a directory with the package of one version and the measuring code of this tree.

The version's `mrecordlog_async`, except its `bench`, is linked next to this tree's `bench` and `tests`. Python started
with `-m` in that directory imports from there first. So two versions differ only in the log.
"""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
from typing import NamedTuple

from tests.benchmarks.compare.contenders import THIS_LOG

PACKAGE = "mrecordlog_async"
BENCH = "bench"
TREE = os.path.abspath(os.path.join(os.path.dirname(__file__), *[os.pardir] * 3))


class UnknownVersionError(Exception):
    """The argument names neither a checkout nor a revision."""


PURE = "+pure"
"""At the end of a version: its build in Python alone, whatever is compiled there."""


class Version(NamedTuple):
    """What is measured. label: for the table; directory: where it runs; contender: its name in `CONTENDERS`."""

    label: str
    directory: str
    contender: str = THIS_LOG
    is_pure: bool = False

    def environment(self) -> dict[str, str]:
        """Return the environment of its process."""
        return {**os.environ, "MRECORDLOG_PURE": "1"} if self.is_pure else dict(os.environ)


def make_place(version: str, directory: str) -> Version:
    """Create *directory* for *version*: the path of a checkout, or a revision of this tree's repository.

    A checkout runs what was compiled in it. A revision is extracted and runs in Python alone, like a version that
    ends with `PURE`; to measure its compiled build, check it out and name the directory.

    Raises:
        UnknownVersionError: It is neither.
    """
    if version.endswith(PURE):
        found = make_place(version.removesuffix(PURE), directory)
        return found if found.is_pure else found._replace(label=f"{found.label}, pure", is_pure=True)
    os.mkdir(directory)
    is_checkout = os.path.isdir(os.path.join(version, PACKAGE))
    if is_checkout:
        source, label = os.path.abspath(version), f"{version} ({_state(version)})"
    else:
        source, label = os.path.join(directory, "source"), f"{version}, pure"
        _extract(version, source)
    package = os.path.join(directory, PACKAGE)
    os.mkdir(package)
    for name in os.listdir(os.path.join(source, PACKAGE)):
        if name not in (BENCH, "__pycache__"):
            os.symlink(os.path.join(source, PACKAGE, name), os.path.join(package, name))
    os.symlink(os.path.join(TREE, PACKAGE, BENCH), os.path.join(package, BENCH))
    os.symlink(os.path.join(TREE, "tests"), os.path.join(directory, "tests"))
    return Version(label, directory, is_pure=not is_checkout)


def _state(tree: str) -> str:
    """Return the commit of a checkout, marked where files were changed."""
    command = ["git", "-C", tree, "describe", "--always", "--dirty=, changed", "--exclude=*"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    return found.stdout.strip() or "no commit"


def _extract(revision: str, directory: str) -> None:
    command = ["git", "-C", TREE, "archive", "--format=tar", revision, PACKAGE]
    found = subprocess.run(command, capture_output=True, check=False)
    if found.returncode != 0:
        raise UnknownVersionError(
            f"{revision} is not a directory with {PACKAGE} in it, and git does not know it as a revision: "
            f"{found.stderr.decode(errors='replace').strip()}"
        )
    with tarfile.open(fileobj=io.BytesIO(found.stdout)) as archive:
        archive.extractall(directory, filter="data")
