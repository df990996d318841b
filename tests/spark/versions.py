"""An environment for each Spark that the package supports: `python -m tests.spark.versions DIRECTORY`.

Each has its own pyspark and, through a `.pth` file, everything else of the environment that runs this: half a gigabyte
for each version. Prints the Python of each. `SPARK_VERSIONS=DIRECTORY pytest --nightly
tests/deep/spark/test_versions.py` uses them, and so does a campaign: `DIRECTORY/4.1/bin/python -m
tests.spark.campaign`.
"""

from __future__ import annotations

import argparse
import os
import site
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

MINORS = ("4.0", "4.1", "4.2", "4.3")
"""What the extra `spark` allows, oldest first. The test of a checkpoint that goes through all of them reads this."""

VARIABLE = "SPARK_VERSIONS"
"""The variable of the environment that names the directory."""


def python_of(place: Path, minor: str) -> Path:
    """Return the Python of an environment."""
    return place / minor / "bin" / "python"


def installed() -> dict[str, str]:
    """Return minor version → its Python: those in the directory that the variable names, and this one for the rest."""
    from pyspark import __version__

    found = {__version__.rpartition(".")[0]: sys.executable}
    if VARIABLE in os.environ:
        pythons = {minor: python_of(Path(os.environ[VARIABLE]), minor) for minor in MINORS}
        found |= {minor: str(python) for minor, python in pythons.items() if python.exists()}
    return dict(sorted(found.items()))


def make(place: Path, minor: str) -> Path:
    """Make the environment of one version, unless it is there; return its Python."""
    python = python_of(place, minor)
    if not python.exists():
        venv.create(place / minor, with_pip=False, symlinks=True)
        packages = Path(sysconfig.get_path("purelib", "venv", {"base": str(place / minor)}))
        pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", f"pyspark=={minor}.*"]
        subprocess.run(pip, check=True)
        shared = [each for each in site.getsitepackages() if os.path.isdir(each)]
        # addsitedir reads the .pth files there, too: an editable installation is one.
        lines = "; ".join(f"site.addsitedir({each!r})" for each in shared)
        (packages / "zz_shared.pth").write_text(f"import site; {lines}\n")
    return python


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    parser.add_argument("versions", nargs="*", default=MINORS)
    arguments = parser.parse_args()
    for minor in arguments.versions:
        print(make(arguments.directory.absolute(), minor))


if __name__ == "__main__":
    main()
