"""Count what one must know to change the package: `python -m tests.house [--names]`, at the top of the repository.

Modules named `__init__` count in no figure but the lines. The append's path is traced, not guessed: every module with a
function that runs during appends (alone, concurrent, large, over a roll, repeated, refused by a limit and by a full
disk), on any thread, and the classes that these modules define. `errors`, `model`, `options` and `metrics` are values
that everything shares, and count for nothing there. The rooms in `TABLES` are lists of entries, and may be long.
"""

from __future__ import annotations

import argparse
import ast
import asyncio
import errno
import json
import os
import re
import shutil
import sys
import tempfile
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from mrecordlog_async import Limits, MultiRecordLog
from mrecordlog_async.errors import LogFullError

ROOT = Path(__file__).parent.parent / "mrecordlog_async"
SHARED = {"errors", "model", "options", "metrics"}
NAMED_TUPLE = {"_replace", "_asdict", "_fields", "_make"}
"""Public names of a named tuple."""
TABLES = {"mrecordlog_async", "commands", "routes"}
GENERATED = "_sync"
"""A folder that a script writes: nobody has to know it."""
ROOM_FILES_MAX = 16
PARAMETERS_MAX = 7
MIB = 1 << 20

Names = dict[str, list[str]]


class House:
    """The modules of the package, parsed."""

    def __init__(self) -> None:
        self.files = sorted(path for path in ROOT.rglob("*.py") if path.parent.name != GENERATED)
        self.modules = {_module_of(path): ast.parse(path.read_text()) for path in self.files}
        self.classes = {
            (name, node.name): node
            for name, tree in self.modules.items()
            for node in tree.body
            if isinstance(node, ast.ClassDef)
        }

    def class_names_twice(self) -> list[str]:
        """Return the names that several classes have."""
        counts = Counter(name for _, name in self.classes)
        return sorted(name for name, count in counts.items() if count > 1)

    def rooms_above(self) -> dict[str, int]:
        """Return the rooms with more than `ROOM_FILES_MAX` files, and how many they have."""
        counts = Counter(path.parent for path in self.files if path.stem != "__init__")
        return {
            str(room.relative_to(ROOT.parent)): count
            for room, count in counts.items()
            if count > ROOM_FILES_MAX and room.name not in TABLES
        }

    def with_many_parameters(self) -> list[str]:
        """Return the functions with more than `PARAMETERS_MAX` parameters."""
        found = []
        for name, node in self._functions():
            given = node.args.posonlyargs + node.args.args + node.args.kwonlyargs
            count = sum(each.arg not in ("self", "cls") for each in given)
            if count > PARAMETERS_MAX:
                found.append(f"{name}.{node.name} {count}")
        return found

    def longest_body(self) -> tuple[int, str]:
        """Return the lines of the longest function, without its docstring, and its name."""
        return max((_body_lines(node), f"{name}.{node.name}") for name, node in self._functions())

    def with_one_importer(self) -> list[str]:
        """Return the modules that one module imports, which is in the same room."""
        importers: dict[str, set[str]] = defaultdict(set)
        for name in self.modules:
            for module, imported, _ in self._imports(name):
                full = f"{module}.{imported}"
                importers[full if full in self.modules else module].add(name)
        for path in ROOT.rglob("*.pyx"):
            for module, imported in re.findall(
                rf"^from ({ROOT.name}[\w.]*) import (\w+)", path.read_text(), re.MULTILINE
            ):
                importers[f"{module}.{imported}"].add(_module_of(path))
        return sorted(
            name for name, found in importers.items() if len(found) == 1 and _room(next(iter(found))) == _room(name)
        )

    def subclasses_across(self) -> list[str]:
        """Return the classes with a base in another room that is neither an error, a protocol nor a shared value."""
        found = []
        for (name, own), node in self.classes.items():
            origin = {alias: (module, imported) for module, imported, alias in self._imports(name)}
            for base in node.bases:
                home = origin.get(_name_of(base))
                if home is None or home not in self.classes or _room(home[0]) == _room(name):
                    continue
                is_shared = home[0].rpartition(".")[2] in SHARED or home[1].endswith("Error")
                is_protocol = any(_name_of(each) == "Protocol" for each in self.classes[home].bases)
                if not is_shared and not is_protocol:
                    found.append(f"{name}.{own}({home[1]})")
        return found

    def slices(self) -> list[str]:
        """Return the classes with exactly one subclass and nothing abstract: page breaks, not abstractions."""
        children = Counter(_name_of(base) for node in self.classes.values() for base in node.bases)
        twice = set(self.class_names_twice())
        return [
            f"{name}.{own}"
            for (name, own), node in self.classes.items()
            if children[own] == 1
            and own not in twice
            and not own.endswith("Error")
            and "Protocol" not in ast.dump(node)
            and not any("abstract" in ast.dump(each) for each in node.body)
            and name.rpartition(".")[2] not in SHARED
        ]

    def private_reads(self) -> list[str]:
        """Return where a private name that the package defines is read of something else than `self` or `cls`."""
        own = {node.name for _, node in self._functions()}
        return [
            f"{name}:{node.lineno} {node.attr}"
            for name, tree in self.modules.items()
            for node in ast.walk(tree)
            if isinstance(node, ast.Attribute)
            and node.attr.startswith("_")
            and not node.attr.startswith("__")
            and isinstance(node.value, ast.Name | ast.Attribute)
            and _name_of(node.value) not in ("self", "cls")
            and node.attr in own - NAMED_TUPLE
        ]

    def comments(self) -> dict[str, float]:
        """Return room → lines with a comment in 100 lines."""
        lines: dict[str, list[str]] = defaultdict(list)
        for path in self.files:
            room, *rest = path.relative_to(ROOT).parts
            if rest:
                lines[room] += [line.strip() for line in path.read_text().splitlines()]
        return {
            room: round(100 * sum(line.startswith("#") or "  # " in line for line in found) / max(len(found), 1), 1)
            for room, found in sorted(lines.items())
        }

    def _functions(self) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
        for name, tree in self.modules.items():
            for node in ast.walk(tree):
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                    yield name, node

    def _imports(self, name: str) -> Iterator[tuple[str, str, str]]:
        """Yield (module, imported name, name here) of what *name* imports of the package."""
        for node in ast.walk(self.modules[name]):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(ROOT.name):
                for each in node.names:
                    yield node.module or "", each.name, each.asname or each.name


def counted() -> tuple[dict[str, Any], Names]:
    """Return the figures of the source, and the names that they count."""
    house = House()
    names = {
        "class names twice": house.class_names_twice(),
        "modules with one importer, in their own room": house.with_one_importer(),
        "functions with more than 7 parameters": house.with_many_parameters(),
        "subclasses across rooms": house.subclasses_across(),
        "private names of ours read from outside a class": house.private_reads(),
        "classes with exactly one subclass and nothing abstract": house.slices(),
        "public names of the log": [name for name in dir(MultiRecordLog) if not name.startswith("_")],
    }
    figures = {
        "lines": sum(len(path.read_text().splitlines()) for path in house.files),
        "files": sum(path.stem != "__init__" for path in house.files),
        "classes": len(house.classes),
        **{name: len(found) for name, found in names.items()},
        "rooms above 16 files": house.rooms_above(),
        "longest body": house.longest_body(),
        "comments per 100 lines": house.comments(),
    }
    return figures, names


class Trace:
    """Notes which modules and classes of the package run, while it is on."""

    def __init__(self) -> None:
        self.is_on = False
        self.modules: set[str] = set()
        self.classes: set[str] = set()

    def note(self, frame: FrameType, event: str, argument: object) -> None:
        """Note a call; for `sys.setprofile`."""
        if not self.is_on or event != "call":
            return
        code, prefix = frame.f_code, f"{ROOT}{os.sep}"
        if code.co_filename.startswith(prefix):
            module = code.co_filename.removeprefix(prefix).removesuffix(".py").replace(os.sep, ".")
            owner, _, method = getattr(code, "co_qualname", code.co_name).partition(".")
            self._add(module, owner if method and not method.startswith("<locals>") else None)
        elif code.co_name in ("__init__", "__new__", "__post_init__", "_create"):  # of dataclasses and named tuples
            taken = frame.f_locals
            target = taken.get("self", taken.get("cls", taken.get("_cls")))
            kind = target if isinstance(target, type) else type(target)
            if kind.__module__.startswith(f"{ROOT.name}."):
                self._add(kind.__module__.partition(".")[2], kind.__qualname__)

    def _add(self, module: str, owner: str | None) -> None:
        if module.split(".")[0] not in SHARED:
            self.modules.add(module)
            if owner is not None:
                self.classes.add(f"{module}.{owner}")


def traced() -> tuple[dict[str, int], Names]:
    """Append in every way that a user meets; return the figures of the modules that ran, and their names."""
    trace, directory = Trace(), tempfile.mkdtemp()
    threading.setprofile(trace.note)
    sys.setprofile(trace.note)
    try:
        asyncio.run(_append_everything(trace, directory))
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
        shutil.rmtree(directory, ignore_errors=True)
    paths = [path for module in trace.modules if (path := ROOT / f"{module.replace('.', '/')}.py").exists()]
    texts = [path.read_text() for path in paths]
    figures = {
        "modules on an append's path": len(texts),
        "classes defined in them": sum(
            isinstance(node, ast.ClassDef) for text in texts for node in ast.parse(text).body
        ),
        "lines in them": sum(len(text.splitlines()) for text in texts),
        "classes that run": len(trace.classes),
    }
    return figures, {"path modules": sorted(trace.modules), "path classes": sorted(trace.classes)}


async def _append_everything(trace: Trace, directory: str) -> None:
    limits, size = Limits(disk_bytes=48 * MIB), 4 * MIB
    async with MultiRecordLog.open(f"{directory}/limited", limits=limits, segment_bytes=size, queues=["q"]) as log:
        trace.is_on = True
        refused = await _append(log)
        trace.is_on = False
        assert refused, "the limit was not met"
    async with MultiRecordLog.open(f"{directory}/full", segment_bytes=size, queues=["q"]) as log:
        restore = _fill_disk_after(24 * MIB)
        trace.is_on = True
        try:
            await _append(log)
        except Exception as error:
            print("with a full disk:", type(error).__name__, file=sys.stderr)
        finally:
            trace.is_on = False
            restore()


async def _append(log: MultiRecordLog) -> int:
    """Append alone, at once, many, large, and at positions; return how many appends were refused at the end."""
    refused = 0
    await log.append_record("q", None, b"alone")
    await asyncio.gather(*(log.append_record("q", None, bytes(100)) for _ in range(200)))
    await log.append_records("q", None, [bytes(1_000)] * 500)
    await asyncio.gather(*(log.append_record("q", None, bytes(MIB)) for _ in range(8)))
    for position in (10**6, 10**6):  # a gap, and its repeat
        await log.append_record("q", position, b"repeated")
    for _ in range(60):
        try:
            await log.append_record("q", None, bytes(MIB))
        except LogFullError:
            refused += 1
    return refused


def _fill_disk_after(size: int) -> Callable[[], None]:
    """Let each write and reservation fail for lack of space after *size* bytes; return what ends that."""
    names = ("pwrite", "pwritev", "posix_fallocate", "write", "writev", "ftruncate")
    real = {name: getattr(os, name) for name in names if hasattr(os, name)}
    taken = 0

    def failing(name: str) -> Callable[..., Any]:
        def call(handle: int, *arguments: Any) -> Any:
            nonlocal taken
            content = arguments[0]
            taken += len(content) if name in ("pwrite", "write") and not isinstance(content, int) else 0
            if taken > size:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return real[name](handle, *arguments)

        return call

    def restore() -> None:
        for name, call in real.items():
            setattr(os, name, call)

    for name in real:
        setattr(os, name, failing(name))
    return restore


def _module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT.parent).with_suffix("").parts).removesuffix(".__init__")


def _room(module: str) -> str:
    return module.rpartition(".")[0]


def _name_of(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else ""


def _body_lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    first = node.body[1] if ast.get_docstring(node) and len(node.body) > 1 else node.body[0]
    return (node.end_lineno or first.lineno) - first.lineno + 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--names", action="store_true", help="print what was counted, too")
    wanted = parser.parse_args()
    (source, source_names), (path, path_names) = counted(), traced()
    print(json.dumps(path | source, indent=1))
    if wanted.names:
        print(json.dumps(source_names | path_names, indent=1))
