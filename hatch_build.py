"""Compiles the room `compiled/` while the package is built, or in place in a checkout: `python hatch_build.py`.

`MRECORDLOG_COMPILE` says whether: `auto` (the default) compiles if it can and otherwise installs the twins in Python,
`require` fails if it cannot, `off` does not try. Each extension is one C file for the stable ABI, so one build serves
every Python from 3.11 on. Cython writes the C. A source distribution holds it, and is then built without Cython.
"""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import zlib
from pathlib import Path
from typing import Any

try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ImportError:  # `python hatch_build.py` needs a compiler and Cython, not hatchling
    BuildHookInterface = object  # type: ignore[assignment,misc]

CYTHON = "cython>=3.3"
ROOM = "mrecordlog_async/compiled"
WHY_PURE = "why_pure.txt"
"""Next to the extensions: why there are none. `mrecordlog --version` prints it."""

STABLE_ABI = "0x030B0000"  # of Python 3.11, the oldest that the package supports
LINUX_ONLY = {"_jobs"}


class CompileError(Exception):
    """Says what is missing."""


class CustomBuildHook(BuildHookInterface):
    """What hatchling calls. A wheel is compiled in a temporary directory, an editable install in place."""

    def dependencies(self) -> list[str]:
        """Return Cython if this build has to write C."""
        if self.target_name == "sdist" or (mode() != "off" and why_not() is None and needs_cython(Path(self.root))):
            return [CYTHON]
        return []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add to the wheel what can be compiled, and to the source distribution the generated C."""
        root = Path(self.root)
        if version == "editable":
            build_in_place(root)
            return
        self._work = tempfile.TemporaryDirectory()
        work, added = Path(self._work.name), build_data["force_include"]
        if self.target_name == "sdist":
            for source in sources(root):
                added[str(generate(source, work))] = f"{ROOM}/{source.stem}.c"
            return
        built, why = build(root, work)
        for file in built:
            added[str(file)] = f"{ROOM}/{file.name}"
        if built:
            build_data["pure_python"] = False
            build_data["tag"] = f"cp311-abi3-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"
        elif why:
            (work / WHY_PURE).write_text(why + "\n")
            added[str(work / WHY_PURE)] = f"{ROOM}/{WHY_PURE}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Delete the temporary directory."""
        if version != "editable":
            self._work.cleanup()


def build_in_place(root: Path) -> str:
    """Compile next to the sources and return what came of it. What an earlier build left there is replaced."""
    room = root / ROOM
    with tempfile.TemporaryDirectory() as work:
        built, why = build(root, Path(work))
        for old in [*room.glob("*.so"), room / WHY_PURE]:
            old.unlink(missing_ok=True)
        for file in built:
            # A process may have the old file mapped: it is replaced, not overwritten.
            new = room / f".{file.name}.new"
            shutil.copyfile(file, new)
            new.chmod(0o755)
            new.rename(room / file.name)
    if why:
        (room / WHY_PURE).write_text(why + "\n")
    return f"compiled: {', '.join(file.name for file in built)}" if built else f"pure: {why or 'off'}"


def build(root: Path, work: Path) -> tuple[list[Path], str]:
    """Compile all extensions into *work*, or none. Return their files, and if there are none why (empty for `off`)."""
    if mode() == "off":
        return [], ""
    try:
        why = why_not()
        if why is not None:
            raise CompileError(why)
        return [compile_c(source, c_of(source, work), work) for source in sources(root)], ""
    except Exception as error:
        if mode() == "require":
            raise
        # `auto` promises an installation, whatever is wrong with the compiler: a header, a flag, a full disk.
        return [], " ".join(str(error).split())[:500]


def mode() -> str:
    """Return `auto`, `require` or `off`."""
    found = os.environ.get("MRECORDLOG_COMPILE", "") or "auto"
    if found not in ("auto", "require", "off"):
        raise SystemExit(f"MRECORDLOG_COMPILE must be auto, require or off, not {found!r}")
    return found


def sources(root: Path) -> list[Path]:
    """Return the sources of the extensions that this system can run."""
    found = sorted((root / ROOM).glob("*.pyx"))
    return [each for each in found if sys.platform == "linux" or each.stem not in LINUX_ONLY]


def why_not() -> str | None:
    """Return why nothing can be compiled here, or None."""
    if platform.python_implementation() != "CPython":
        return f"{platform.python_implementation()} is not CPython"
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        return "this Python has no global interpreter lock, and no stable ABI"
    if shutil.which(compiler()[0]) is None:
        return f"no C compiler: {compiler()[0]} was not found"
    return None


def compiler() -> list[str]:
    """Return the command of the C compiler."""
    return shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")


def checksum(source: Path) -> str:
    """Return what says which source an extension was built from; `compiled/__init__.py` computes the same."""
    return f"{zlib.crc32(source.read_bytes()):08x}"


def heading(source: Path) -> str:
    """Return the first line of the C that is generated from *source*."""
    return f"/* from {source.name} {checksum(source)} */"


def generated(source: Path) -> Path | None:
    """Return the C that came with *source* in a source distribution, unless *source* was changed since."""
    c = source.with_suffix(".c")
    if not c.exists():
        return None
    with c.open() as file:
        return c if file.readline().rstrip() == heading(source) else None


def needs_cython(root: Path) -> bool:
    """Return whether C must be generated first."""
    return any(generated(source) is None for source in sources(root))


def c_of(source: Path, work: Path) -> Path:
    """Return the C of *source*; generate it into *work* if it did not come with it."""
    return generated(source) or generate(source, work)


def generate(source: Path, work: Path) -> Path:
    """Write the C of *source* into *work*."""
    c = work / f"{source.stem}.c"
    name = f"{ROOM.replace('/', '.')}.{source.stem}"
    run([sys.executable, "-m", "cython", "-3", "--module-name", name, "-o", str(c), str(source)])
    c.write_text(f"{heading(source)}\n{c.read_text()}")
    return c


def compile_c(source: Path, c: Path, work: Path) -> Path:
    """Compile *c*, which was generated from *source*, into *work*."""
    target = work / f"{source.stem}.abi3.so"
    flags = [
        *shlex.split(sysconfig.get_config_var("CFLAGS") or ""),
        *shlex.split(sysconfig.get_config_var("CCSHARED") or ""),
        *shlex.split(os.environ.get("CFLAGS", "")),
        "-O2",
        "-g0",
        "-Wno-unused-function",
    ]
    defines = [
        f"-DPy_LIMITED_API={STABLE_ABI}",
        "-DCYTHON_LIMITED_API=1",
        f'-DMRECORDLOG_SOURCE="{checksum(source)}"',
    ]
    include = f"-I{sysconfig.get_path('include')}"
    object_file = work / f"{source.stem}.o"
    run([*compiler(), *flags, *defines, include, "-c", str(c), "-o", str(object_file)])
    # The linker's options of this Python, with the compiler that compiled.
    link = shlex.split(sysconfig.get_config_var("LDSHARED") or "cc -shared")
    own = shlex.split(sysconfig.get_config_var("CC") or "cc")
    link = [*compiler(), *link[len(own) :]] if link[: len(own)] == own else link
    run([*link, str(object_file), "-o", str(target), *shlex.split(os.environ.get("LDFLAGS", "")), "-lpthread"])
    return target


def run(command: list[str]) -> None:
    """Run a program; raise what it printed if it fails."""
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise CompileError(f"{' '.join(command[:3])} failed: {done.stderr or done.stdout}")


if __name__ == "__main__":
    print(build_in_place(Path(__file__).resolve().parent))
