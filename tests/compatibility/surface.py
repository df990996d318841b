"""The names that users rely on, as sorted lines: one line is one promise. A release may add lines, not remove them."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import click

from mrecordlog_async.cli import errors as exit_codes
from mrecordlog_async.cli import settings
from mrecordlog_async.cli.main import COMMANDS, cli
from mrecordlog_async.service.routes.openapi import document
from mrecordlog_async.spark import drain_metrics, json_columns, options
from mrecordlog_async.spark.blocks import READ_SCHEMA
from mrecordlog_async.spark.session import spark_session
from tests.docs.blocks import ROOT
from tests.programs import load_program

MODULES = tuple("mrecordlog_async" + name for name in ("", ".client", ".fastapi", ".aiohttp", ".testing"))


def surface() -> dict[str, list[str]]:
    """Return kind → lines."""
    kinds = {
        "python": _python(),
        "http": _http(),
        "commands": _commands(),
        "settings": (f"{one.name} {settings.PREFIX}{one.name.upper()}" for one in settings.SETTINGS),
        "exit codes": (f"{name} {code}" for name, code in vars(exit_codes).items() if re.match("[A-Z]", name)),
        "problem codes": _problem_codes(),
        "metrics": _metrics(),
        "spark options": (option.name for option in options.OPTIONS),
        "columns": _columns(),
    }
    return {kind: sorted(set(lines)) for kind, lines in kinds.items()}


def hooks() -> ModuleType:
    """Return the module that generates the reference pages."""
    return load_program(ROOT / "docs" / "hooks.py")


def _python() -> Iterator[str]:
    for name in MODULES:
        module = importlib.import_module(name)
        for public in module.__all__:
            yield f"{name}.{public}"
            yield from _members(module, public)
    yield from _session()


def _session() -> Iterator[str]:
    """Yield what a program of Spark calls besides its data source."""
    yield "mrecordlog_async.spark.session.spark_session"
    yield from _parameters("mrecordlog_async.spark.session.spark_session", spark_session)


def _members(module: ModuleType, name: str) -> Iterator[str]:
    thing = getattr(module, name)
    where = f"{module.__name__}.{name}"
    if not inspect.isclass(thing):
        yield from _parameters(where, thing)
        return
    yield from (f"{where}.{attribute}" for attribute in _attributes(thing))
    for member in dir(thing):
        if not member.startswith("_") and not hasattr(Exception, member):
            yield f"{where}.{member}"
            yield from _parameters(f"{where}.{member}", inspect.getattr_static(thing, member))


def _attributes(kind: type) -> list[str]:
    """Return what the docstring of *kind* lists as attributes."""
    described = inspect.getdoc(kind) or ""
    return re.findall(r"^    (\w+): ", described.partition("Attributes:\n")[2].partition("\n\n")[0], re.MULTILINE)


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


def _problem_codes() -> Iterator[str]:
    """Yield "409 queue_exists": what the package passes to the functions that make problems."""
    package = ROOT / "mrecordlog_async"
    for path in (*package.glob("*.py"), *package.glob("protocol/*.py"), *package.glob("service/**/*.py")):
        yield from filter(None, map(_problem_code, _calls(path)))


def _calls(path: Path) -> Iterator[tuple[str, list[Any]]]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            yield node.func.id, [each.value if isinstance(each, ast.Constant) else None for each in node.args]


def _problem_code(call: tuple[str, list[Any]]) -> str | None:
    match call:
        case "ProblemError" | "retry" | "_row", [int(status), str(code), *_]:
            return f"{status} {code}"
        case "ProblemError" | "retry", [None, str(code), *_]:
            return code
        case "bad_request", [_, str(code), *_]:
            return f"400 {code}"
        case "bad_request", [_]:
            return "400 bad_request"
    return None


def _metrics() -> Iterator[str]:
    """Yield each metric, and each with its label: of the service, then of a drain."""
    for name, labels in re.findall(r"^\| `(\w+)` \| \w+ \| ([^|]*) \|", hooks().metrics(), re.MULTILINE):
        yield name
        yield from (f"{name} {label}" for label in filter(None, labels.split(", ")))
    source = inspect.getsource(drain_metrics)
    for name in {*drain_metrics.COUNTERS, *re.findall(r'"(drain_\w+)"', source)}:
        yield f"mrecordlog_{name}"
        if re.search(rf'metric_line\("{name}".*server=', source):
            yield f"mrecordlog_{name} server"


def _columns() -> Iterator[str]:
    """Yield the columns of rows in Spark and in tables."""
    yield from (f"{field.name} {field.type}" for field in READ_SCHEMA)
    yield from json_columns.TAKEN


def _commands() -> Iterator[str]:
    """Yield each command, and each with every spelling of its options."""
    ctx = click.Context(cli, help_option_names=["-h", "--help"])
    for name in COMMANDS:
        command = cli.get_command(ctx, name)
        assert command is not None, "it is one of the table"
        yield name
        for option in command.get_params(click.Context(command, ctx)):
            if isinstance(option, click.Option) and not getattr(option, "elsewhere", ""):
                yield from (f"{name} {flag}" for flag in (*option.opts, *option.secondary_opts))
