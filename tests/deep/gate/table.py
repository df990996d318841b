"""The table of bugs, and how a bug is put into a copy of the source."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]
PACKAGE = "mrecordlog_async"
BUGS = Path(__file__).with_name("bugs.toml")

RAN = "_gate_ran"
MARK_MODULE = '''"""One byte that all processes of a test share: the changed line sets it."""

import mmap
import os

_handle = os.open(os.path.splitext(__file__)[0] + ".byte", os.O_RDWR)
RAN = mmap.mmap(_handle, 1)
os.close(_handle)
'''
"""Writing to memory is no call that blocks, and a forked child or a killed process has the same byte."""


class BrokenBug(Exception):
    """The bug says nothing about the tests: it does not fit the source or the documentation."""


@dataclass(frozen=True, slots=True)
class Bug:
    """A small change of one file, or of one file and those that must change `also`.

    file: below the package. breaks: a sentence of `docs/`.
    """

    name: str
    file: str
    old: str
    new: str
    breaks: str
    also: tuple[Mapping[str, str], ...] = ()

    @property
    def room(self) -> str:
        """Return the room that it is in."""
        return room_of(self.file)

    @property
    def is_c(self) -> bool:
        """Return whether the changed line is compiled to C, so that Python cannot note that it ran."""
        return self.file.endswith(".pyx")

    def check(self, root: Path = ROOT) -> None:
        """Raise BrokenBug unless the change fits the source below *root*, and the sentence stands in its `docs/`."""
        self._changed(root)
        if " ".join(self.breaks.split()) not in _words_of_docs(root):
            raise BrokenBug(f"no page of docs/ says: {self.breaks}")

    def put_into(self, root: Path) -> None:
        """Change the copy of the source below *root*, with a mark at the changed line."""
        room = root / PACKAGE
        for file, text in self._changed(root).items():
            (room / file).write_text(text)
        if not self.is_c:
            (room / f"{RAN}.py").write_text(MARK_MODULE)
            (room / f"{RAN}.byte").write_bytes(b"\0")

    def _changed(self, root: Path) -> dict[str, str]:
        """Return the changed text of each file."""
        changed: dict[str, str] = {}
        for change in (*self.also, {"file": self.file, "old": self.old, "new": self.new}):  # the marked one last
            file, old, new = change["file"], change["old"], change["new"]
            path = root / PACKAGE / file
            text = changed[file] if file in changed else path.read_text() if path.is_file() else ""
            if text.count(old) != 1:
                raise BrokenBug(f"its old text stands {text.count(old)} times in {file}, not once: {old.strip()!r}")
            changed[file] = text.replace(old, new)
        if not self.is_c:
            changed[self.file] = with_mark(changed[self.file], _first_changed_line(text, self.old, self.new))
        return changed


def room_of(file: str) -> str:
    """Return the room of a file below the package; `root` if it is in none."""
    room, slash, _ = file.partition("/")
    return room if slash else "root"


def read_bugs(text: str | None = None) -> dict[str, Bug]:
    """Return the bugs of the table, or of *text*, by name."""
    table = tomllib.loads(BUGS.read_text() if text is None else text)
    return {name: _bug(name, entry) for name, entry in table.items()}


def _bug(name: str, entry: Mapping[str, Any]) -> Bug:
    return Bug(name=name, also=tuple(entry.get("also", ())), **{key: entry[key] for key in entry if key != "also"})


def _words_of_docs(root: Path) -> str:
    return " ".join(" ".join(path.read_text().split()) for path in sorted((root / "docs").rglob("*.md")))


def _first_changed_line(text: str, old: str, new: str) -> int:
    """Return the number of the first line of the changed text that is new; BrokenBug if lines are only removed."""
    above = text[: text.index(old)].count("\n")
    for number, (before, after) in enumerate(zip_longest(old.split("\n"), new.split("\n")), 1):
        if before != after:
            if not (after or "").strip():
                raise BrokenBug("its new text begins with no line that can run; write `pass`")
            return above + number
    raise BrokenBug("it changes nothing")


# The mark.


def with_mark(source: str, line: int) -> str:
    """Return *source* with a statement before the one that *line* belongs to, which notes that it ran."""
    tree = ast.parse(source)
    found = _place_of(tree, line)
    if found is None:
        raise BrokenBug(f"line {line} of the changed source belongs to no statement")
    body, at = found
    body.insert(at, ast.parse(f"{RAN}[0] = 1").body[0])
    first = next(at for at, statement in enumerate(tree.body) if not _must_be_first(statement))
    tree.body.insert(first, ast.parse(f"from {PACKAGE}.{RAN} import RAN as {RAN}").body[0])
    return ast.unparse(tree)


def _must_be_first(statement: ast.stmt) -> bool:
    is_text = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    return is_text or (isinstance(statement, ast.ImportFrom) and statement.module == "__future__")


def _place_of(node: ast.AST, line: int) -> tuple[list[ast.stmt], int] | None:
    """Return the innermost statements below *node*, and the index of the one that *line* belongs to."""
    for body, header in _bodies(node):
        for at, statement in enumerate(body):
            decorators = getattr(statement, "decorator_list", [])
            if min([statement.lineno, *(each.lineno for each in decorators)]) <= line <= (statement.end_lineno or 0):
                inner = _place_of(statement, line)
                if inner is not None:
                    return inner
                if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):  # it is in its head
                    return statement.body, 0
                return body, at
        if header is not None and header <= line < body[0].lineno:
            return body, 0
    return None


def _bodies(node: ast.AST) -> Iterator[tuple[list[ast.stmt], int | None]]:
    """Yield each list of statements in *node*, with the line of its own head if it has one that does not run."""
    for name in ("body", "orelse", "finalbody"):
        body = getattr(node, name, None)
        if isinstance(body, list) and body:
            yield body, None
    for handler in getattr(node, "handlers", []):
        yield handler.body, handler.lineno
    for case in getattr(node, "cases", []):
        yield case.body, None
