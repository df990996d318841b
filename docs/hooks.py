"""The parts of the pages that are generated from the code while mkdocs builds.

A page contains a line `<!-- generated: settings -->`. The function of that name returns the Markdown that replaces the
line. An unknown name ends the build.
"""

from __future__ import annotations

import asyncio
import csv
import inspect
import re
from collections.abc import Callable, Iterable
from dataclasses import fields
from enum import StrEnum
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import click

from mrecordlog_async import MultiRecordLog, errors, options
from mrecordlog_async import format as file_format_module
from mrecordlog_async.cli import settings as cli_settings
from mrecordlog_async.cli.main import COMMANDS, cli
from mrecordlog_async.recovery import recovery as recovery_module
from mrecordlog_async.spark import options as spark_source

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

HELP_COLUMNS = 100
"""A page must not depend on the terminal of the person who builds it."""
ROOT = Path(__file__).parents[1]
PROJECT_PAGES = {"changelog.md": "CHANGELOG.md", "contributing.md": "CONTRIBUTING.md", "security.md": "SECURITY.md"}
BENCHMARKS = ROOT / "tests" / "benchmarks"
SYNC_SECONDS = (0.0001, 0.001, 0.005)
"""A fast NVMe disk; a good volume of a cloud; a slow one, or a disk that turns."""
SAME_RESPONSE = {"memory": "memory, disk, pending, queues, consumers"}
"""Resource of an example error → all resources with the same response."""
MARK = re.compile(r"^<!-- generated: (\w+) -->$", re.MULTILINE)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add to the site what is not in docs: pages of the project, and the files that the page Deploy links to."""
    from mkdocs.structure.files import File

    for name, source in PROJECT_PAGES.items():
        text = (ROOT / source).read_text(encoding="utf-8").replace("](docs/", "](")
        files.append(File.generated(config, name, content=text))
    for path in sorted((ROOT / "examples" / "deploy").iterdir()):
        # With .txt a browser shows the file instead of downloading it.
        files.append(File.generated(config, f"deploy/{path.name}.txt", abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Replace the marks of one page."""
    return MARK.sub(lambda found: GENERATED[found[1]](), markdown)


def on_post_page(output: str, **_: Any) -> str:
    """Keep the link to the repository without its counts of stars, which a script would load from another site."""
    return output.replace(' data-md-component="source"', "")


def on_page_content(html: str, page: Page, **_: Any) -> str:
    """Let names of metrics and alerts in the table of faults break between words, or its other columns have no room."""
    if page.file.src_uri != "operations.md":
        return html
    html = re.sub(r"(?<=<td>)<code>\w+", lambda name: name[0].replace("_", "_<wbr>"), html)
    return re.sub(r">Mrecordlog(?=[A-Z]\w+</a></td>)", ">Mrecordlog<wbr>", html)


def settings() -> str:
    """Return the table of the service's settings."""
    rows = [
        (
            f"`{one.name}`",
            "" if one.is_rare else f"`{one.flag}`",
            f"`{one.variable}`",
            f"`{one.default}`" if one.default else "",
            one.help,
        )
        for one in cli_settings.SETTINGS
    ]
    return table(("key in the file", "option", "variable", "default", "meaning"), rows)


def limits() -> str:
    """Return the fields of `Limits` with their defaults, and their meaning from its docstring."""
    signature = inspect.signature(options.Limits)
    found = re.findall(r"^    (\w+): (.*(?:\n {8}.*)*)", inspect.getdoc(options.Limits) or "", re.MULTILINE)
    meanings = {name: " ".join(text.split()) for name, text in found}
    return table(
        ("limit", "default", "what it bounds"),
        [(f"`{name}`", _default(one.default), meanings[name]) for name, one in signature.parameters.items()],
    )


def _default(value: object) -> str:
    """Return a default as people write it: sizes with a unit."""
    if value is None:
        return "computed"
    if isinstance(value, int) and value >= 1 << 20 and value % (1 << 20) == 0:
        return f"{value >> 30} GiB" if value % (1 << 30) == 0 else f"{value >> 20} MiB"
    return f"{value:,}" if isinstance(value, int) else f"`{value!r}`"


def spark_options() -> str:
    """Return the options of the data source."""
    defaults = {each.name: each.default for each in fields(spark_source.Options)}
    rows = [
        (f"`{option.name}`", option.default or _spark_default(defaults[option.field]), option.where, option.meaning)
        for option in spark_source.OPTIONS
    ]
    return table(("option", "default", "for", "meaning"), rows)


def _spark_default(value: object) -> str:
    if value is None:
        return "none"
    if isinstance(value, str):
        return f"`{value}`"
    return (
        str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else _default(value)
    )


def commands() -> str:
    """Return the table of commands, with each command's sentence from `--help`."""
    rows = [(f"[`{name}`](#{name})", summary) for name, (_, summary) in COMMANDS.items()]
    return table(("command", "what it does"), rows)


def command_help() -> str:
    """Return the whole help of every command."""
    return "\n\n".join(f"### {name}\n\n```text\n{_help(name)}\n```" for name in COMMANDS)


def _help(name: str) -> str:
    ctx = click.Context(command(name), click.Context(cli, info_name="mrecordlog"), name)
    ctx.terminal_width = ctx.max_content_width = HELP_COLUMNS
    return ctx.get_help()


def command(name: str) -> click.Command:
    """Return a command of `mrecordlog`."""
    found = cli.get_command(click.Context(cli), name)
    assert found is not None, "the table has it"
    return found


def options_of(name: str) -> list[str]:
    """Return the options of a command, `--help` aside; a switch and its opposite are one."""
    params = [param for param in command(name).params if isinstance(param, click.Option)]
    return [param.opts[0] for param in params if not getattr(param, "elsewhere", "")]


def http_routes() -> str:
    """Return every route of the service with its parameters and statuses."""
    from mrecordlog_async.service.routes.openapi import document

    parts = []
    for path, operations in document()["paths"].items():
        for method, operation in operations.items():
            text = inspect.cleandoc(operation["description"])
            parts.append(f"### {method.upper()} {path}\n\n{text}\n\n{_operation(operation)}")
    return "\n\n".join(parts)


def _operation(operation: dict[str, Any]) -> str:
    lines = [f"* `{one['name']}` ({one['in']}): {_cell(one['description'])}" for one in operation["parameters"]]
    body = operation.get("requestBody", {}).get("content", {})
    lines += [f"* takes {_type(kind, content)}" for kind, content in body.items()]
    for status, response in operation["responses"].items():
        if int(status) < 400:
            content = response.get("content", {})
            lines += [f"* {status}: {_type(kind, one)}" for kind, one in content.items()] or [f"* {status}: no body"]
    problems = [status for status in operation["responses"] if int(status) >= 400]
    return "\n".join([*lines, f"* problems: {', '.join(problems)}"])


def _type(kind: str, content: dict[str, Any]) -> str:
    name = content["schema"].get("$ref", "").rpartition("/")[2]
    return f"`{kind}`" + (f" ([{name}](#{name.lower()}))" if name else "")


def http_types() -> str:
    """Return the members of every JSON body."""
    from mrecordlog_async.service.routes.openapi import document

    parts = []
    for name, schema in document()["components"]["schemas"].items():
        if "enum" in schema:
            parts.append(f"### {name}\n\n{schema.get('description', '')}\n\n{_values(name)}")
            continue
        rows = [
            (f"`{member}`", _shape(one), "yes" if member in schema.get("required", ()) else "", one["description"])
            for member, one in schema.get("properties", {}).items()
        ]
        members = table(("member", "type", "required", "meaning"), rows)
        parts.append(f"### {name}\n\n{schema.get('description', '')}\n\n{members}")
    return "\n\n".join(parts)


def _values(name: str) -> str:
    """Return the values of an enumeration with the docstrings below them."""
    from mrecordlog_async.protocol.bulk_schemas import QueueStatus
    from mrecordlog_async.protocol.consumer_schemas import ConsumerStatus

    kinds: dict[str, type[StrEnum]] = {"QueueStatus": QueueStatus, "ConsumerStatus": ConsumerStatus}
    meanings = re.findall(r'^ {4}\w+ = "(\w+)"\n {4}"""(.*)"""$', inspect.getsource(kinds[name]), re.MULTILINE)
    assert [value for value, _ in meanings] == list(kinds[name]), f"a value of {name} has no docstring"
    return table(("value", "meaning"), [(f"`{value}`", meaning) for value, meaning in meanings])


def _shape(schema: dict[str, Any]) -> str:
    if "enum" in schema:
        return " or ".join(f'"{value}"' for value in schema["enum"])
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in schema:
        return " or ".join(map(_shape, schema["anyOf"]))
    if "prefixItems" in schema:
        return f"[{', '.join(map(_shape, schema['prefixItems']))}]"
    if schema.get("type") == "array":
        return f"list of {_shape(schema.get('items', {}))}"
    return str(schema.get("type", "any"))


def metrics() -> str:
    """Return every series of `/metrics`, from a scrape of a service with an empty log."""
    text = asyncio.run(_scrape())
    types = dict(re.findall(r"^# TYPE (\w+) (\w+)$", text, re.MULTILINE))
    rows = [
        (f"`{name}`", types[name], ", ".join(_labels(name, text)), meaning)
        for name, meaning in re.findall(r"^# HELP (\w+) (.*)$", text, re.MULTILINE)
    ]
    return table(("metric", "type", "labels", "meaning"), sorted(rows))


async def _scrape() -> str:
    from mrecordlog_async.service.options import ServiceOptions
    from mrecordlog_async.service.service import Service
    from mrecordlog_async.service.watching.prometheus import render

    with TemporaryDirectory() as directory:
        async with MultiRecordLog.open(directory, segment_bytes=4 * 32_768) as log:
            await log.append("q", b"", create=True)
            async with log.consumer("q", "c") as consumer:
                await consumer.acknowledge(0)
            service = Service(ServiceOptions(metrics_per_queue=True))
            service.attach(log)
            service.connections.known = True  # as under `serve`
            service.problems[404] = 1  # a problem shows the label of their counter
            return b"".join(await render(service)).decode()


def _labels(name: str, text: str) -> list[str]:
    found = set(re.findall(r"(\w+)=", " ".join(re.findall(rf"^{name}(?:_bucket)?{{(.*)}}", text, re.MULTILINE))))
    return sorted(found - {"le"})


def error_statuses() -> str:
    """Return the service's response to each error of the log."""
    from mrecordlog_async.protocol.problems import problem_of

    rows = []
    for error in _examples():
        problem = problem_of(error)
        resource = getattr(error, "resource", "")
        rows.append(
            (
                f"`{type(error).__name__}`" + (f" ({SAME_RESPONSE.get(resource, resource)})" if resource else ""),
                str(problem.status),
                f"`{problem.code}`",
                "yes" if "Retry-After" in problem.headers else "no",
                ", ".join(f"`{fact}`" for fact in problem.facts),
            )
        )
    return table(("error", "status", "code", "Retry-After", "facts"), rows)


def _examples() -> list[Exception]:
    return [
        errors.QueueNotFoundError("q"),
        errors.QueueExistsError("q"),
        errors.QueueNameError("q", "is too long"),
        errors.PositionInPastError("q", 0, 1),
        errors.PositionAheadError("q", 1, 1),
        errors.PositionTruncatedError("q", 0, 1),
        errors.RecordTruncatedError("q", 0, "c"),
        errors.QueueSealedError("q", 1),
        errors.QueueOptionsError("q", "max_bytes is below what it holds"),
        errors.ConsumerNotFoundError("q", "c"),
        errors.ConsumerExistsError("q", "c"),
        errors.ConsumerNameError("c", "is too long"),
        errors.ConsumerFencedError("q", "c", 1, 2),
        errors.ConsumerOwnedError("q", "c", "00000000-0000-0000-0000-000000000001"),
        errors.ConsumerHeldError("q", "c", 2.5, 10.0),
        errors.ConsumerBehindError("q", "c", 0, 1),
        errors.RecordTooLargeError(2, 1),
        errors.CorruptionError("wal-00000000000000000001", 7, "a batch is damaged"),
        errors.LogFullError("memory", 1, 1),
        errors.LogFullError("queue", 1, 1, "q"),
        errors.LogFullError("positions", 1, 1),
        errors.LogFullError("space"),
        errors.LogClosedError(),
        errors.LogFailedError("EIO"),
    ]


def file_format() -> str:
    """Return the specification: the docstring of `mrecordlog_async.format`, its drawings as code."""
    return _sections(inspect.cleandoc(file_format_module.__doc__ or ""))


def recovery() -> str:
    """Return the docstring of `mrecordlog_async.recovery.recovery`, without its first line."""
    text = inspect.cleandoc(recovery_module.__doc__ or "")
    return text.partition("\n")[2].strip()


def measured_on() -> str:
    """Return the machine and the time of the full run."""
    return (BENCHMARKS / "full_run.txt").read_text(encoding="utf-8").strip()


def callers() -> str:
    """Return how many appends callers of single records make, by the number of callers."""
    rows = [
        (one["what"].partition(" ")[0], _records(one), one["p50"], one["p99"])
        for one in _full_run("callers", ", 100 B, always")
    ]
    return table(("callers, each with one record of 100 B", "appends per second", "p50", "p99"), rows)


def other_rates() -> str:
    """Return what the full run measured of large records, opening, reading and memory."""
    chosen = {"sizes": "1 MiB", "batches": "", "reads": "range", "open": "", "recovery": "", "memory": ""}
    words = {"recovery": "open ", "memory": "memory for each of "}
    rows = [
        (words.get(workload, "") + one["what"].removeprefix("this log, "), one["rate"])
        for workload, name in chosen.items()
        for one in _full_run(workload, name)
    ]
    return table(("what", "measured"), rows)


def peers() -> str:
    """Return the rows of the full run that compare other stores with this log: load, rate, times, and the ratios."""
    rows = []
    for one in _full_run("peers"):
        store, _, load = one["what"].partition(", ")
        ratios = re.search(r"rounds: (.*) the rate, (.*) the CPU time", one["note"])
        times = (_records(one), one["p50"], one["p99"])
        rows.append((load, store, *times, *(ratios.groups() if ratios else ("", ""))))
    return table(("load", "store", "records per second", "p50", "p99", "this log: rate", "this log: CPU time"), rows)


def rust_crate() -> str:
    """Return the comparison with the Rust crate."""
    rows = [tuple(one.values()) for one in _measured("rust_crate")]
    return table(("workload", "", "crate", "this log", "crate : this log, of the rounds"), rows)


def expected() -> str:
    """Return what to expect on disks of other speeds, computed from the full run.

    A round trip takes one write and sync, and the rest. The rest is what was measured less the raw disk in the same
    round; it does not depend on the disk.
    """
    rows = []
    for one in _full_run("callers", ", 100 B, always"):
        count = _number(one["what"].partition(" ")[0])
        rest = count / _number(_records(one)) - count / _number(one["raw_disk"].partition(" ")[0])
        each = (rest + sync for sync in SYNC_SECONDS)
        rows.append((f"{count:,}", *(f"{float(f'{count / one:.2g}'):,.0f}/s, {one * 1e3:.2g} ms" for one in each)))
    return table(("callers, 100 B each", *(f"{sync * 1e3:g} ms per sync" for sync in SYNC_SECONDS)), rows)


def service_rates() -> str:
    """Return the rows of the full run that append over HTTP."""
    rows = [(one["what"].removeprefix("HTTP, "), _records(one), one["p50"], one["p99"]) for one in _full_run("service")]
    return table(("requests", "records per second", "p50", "p99"), rows)


def _full_run(workload: str, words: str = "") -> list[dict[str, str]]:
    """Return the rows of a workload whose names contain *words*."""
    return [one for one in _measured("full_run") if one["workload"] == workload and words in one["what"]]


def _measured(run: str) -> list[dict[str, str]]:
    with (BENCHMARKS / f"{run}.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def _records(row: dict[str, str]) -> str:
    return row["rate"].removesuffix(" records/s")


def _number(text: str) -> int:
    return int(text.replace(",", ""))


def _sections(text: str) -> str:
    """Make Markdown headings of underlined lines, and a blank line before lists."""
    return re.sub(r"^(.+)\n=+$", r"## \1", text, flags=re.MULTILINE)


def table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """Return a Markdown table."""
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join("| " + " | ".join(map(_cell, line)) + " |" for line in lines)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ").replace("<", "&lt;")


GENERATED: dict[str, Callable[[], str]] = {
    one.__name__: one
    for one in (
        settings,
        limits,
        spark_options,
        commands,
        command_help,
        http_routes,
        http_types,
        metrics,
        error_statuses,
        measured_on,
        callers,
        expected,
        other_rates,
        service_rates,
        peers,
        rust_crate,
        file_format,
        recovery,
    )
}
