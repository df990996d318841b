"""The names that users rely on, as sorted lines: one line is one promise. A release may add lines, not remove them."""

from __future__ import annotations

import importlib.util
import inspect
import re
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from mrecordlog_async.cli import settings
from mrecordlog_async.cli.main import build_parser
from mrecordlog_async.service.openapi import document
from mrecordlog_async.spark import option_names
from tests.docs.blocks import ROOT

MODULES = ("mrecordlog_async", "mrecordlog_async.client", "mrecordlog_async.fastapi", "mrecordlog_async.aiohttp")


def surface() -> dict[str, list[str]]:
    """Return kind → lines."""
    kinds = {
        "python": _python(),
        "http": _http(),
        "commands": _commands(),
        "settings": (f"{one.name} {settings.PREFIX}{one.name.upper()}" for one in settings.SETTINGS),
        "metrics": iter(re.findall(r"^\| `(\w+)`", _hooks().metrics(), re.MULTILINE)),
        "spark options": iter(option_names._NAMES.values()),
    }
    return {kind: sorted(set(lines)) for kind, lines in kinds.items()}


def _hooks() -> ModuleType:
    """Return the module that generates the reference pages."""
    spec = importlib.util.spec_from_file_location("hooks", ROOT / "docs" / "hooks.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _python() -> Iterator[str]:
    for name in MODULES:
        module = importlib.import_module(name)
        for public in module.__all__:
            yield f"{name}.{public}"
            yield from _members(module, public)


def _members(module: ModuleType, name: str) -> Iterator[str]:
    thing = getattr(module, name)
    where = f"{module.__name__}.{name}"
    if not inspect.isclass(thing):
        yield from _parameters(where, thing)
        return
    for member in dir(thing):
        if not member.startswith("_") and not hasattr(Exception, member):
            yield f"{where}.{member}"
            yield from _parameters(f"{where}.{member}", inspect.getattr_static(thing, member))


def _parameters(where: str, function: Any) -> Iterator[str]:
    function = getattr(function, "__func__", function)
    if inspect.isfunction(function):
        yield from (
            f"{where}({parameter})" for parameter in inspect.signature(function).parameters if parameter != "self"
        )


def _http() -> Iterator[str]:
    described = document()
    for path, operations in described["paths"].items():
        for method, operation in operations.items():
            yield f"{method.upper()} {path}"
            yield from (f"{method.upper()} {path} {one['in']} {one['name']}" for one in operation["parameters"])
            yield from (f"{method.upper()} {path} {status}" for status in operation["responses"])
    for name, schema in described["components"]["schemas"].items():
        yield from (f"{name}.{member}" for member in schema.get("properties", {}))


def _commands() -> Iterator[str]:
    for name, parser in build_parser().commands.items():
        yield name
        yield from (f"{name} {flag}" for action in parser._actions for flag in action.option_strings)
