"""What is published: the files in wheel and sdist, and what the package index shows."""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.blocks import ROOT


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Build both from the files that git knows, with something in the tree that must not be published."""
    source, dist = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("dist")
    known = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, known.split("\0")):
        if (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((ROOT / name).read_bytes())
    (source / "token.txt").write_text("secret")
    (source / "wal").mkdir()
    (source / "wal" / "00000000000000000000.wal").write_bytes(b"records")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(dist), str(source)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    yield dist


def wheel_names(dist: Path) -> list[str]:
    (wheel,) = dist.glob("*.whl")
    return zipfile.ZipFile(wheel).namelist()


def test_the_wheel_holds_the_package_and_nothing_else(built: Path) -> None:
    """Source, type marker, the page and the module that Spark looks for: no tests, no data, no other top level."""
    names = wheel_names(built)
    code = [name for name in names if ".dist-info/" not in name]
    assert {name.partition("/")[0] for name in code} == {"mrecordlog_async", "pyspark_mrecordlog.py"}
    assert {Path(name).suffix for name in code} <= {".py", ".typed", ".html", ".css", ".js", ".svg"}
    assert "mrecordlog_async/py.typed" in names
    page = {path.relative_to(ROOT).as_posix() for path in (ROOT / "mrecordlog_async" / "service" / "page").glob("*.*")}
    assert page <= set(names)
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_the_sdist_can_be_tested_and_holds_no_stray_file(built: Path) -> None:
    """It has tests, documents and examples; neither a token nor a log that lay in the tree."""
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"tests/test_package.py", "docs/index.md", "examples/worker.py", "README.md", "LICENSE"} <= names
    assert not [name for name in names if name.startswith("wal") or "token.txt" in name]


def test_the_package_index_can_show_it(built: Path) -> None:
    """The description renders, and none of its links leads nowhere on the index."""
    command = [sys.executable, "-m", "twine", "check", "--strict", *map(str, built.iterdir())]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (metadata,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        description = archive.read(metadata).decode()
    links = re.findall(r"\]\(([^)]+)\)", description)
    assert all(link.startswith("https://") for link in links)
    assert "Durability lists every promise" in description  # a page of this repository: its name without a link
