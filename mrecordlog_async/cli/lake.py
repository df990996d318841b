"""The commands of a lake: drain, and lake, which shows the table of a drain."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import click

from mrecordlog_async.cli.errors import FINE, NotReadyError, UsageError
from mrecordlog_async.cli.params import Value, argument, command
from mrecordlog_async.cli.text import plural, size
from mrecordlog_async.spark.drain_arguments import ARGUMENTS, DrainArgument, pair

if TYPE_CHECKING:
    from mrecordlog_async.spark.lake_show import Shown, StoredBy


def _option(each: DrainArgument) -> Callable[[Any], Any]:
    if each.read is None:
        return click.option(each.flag, each.field, is_flag=True, help=each.help)
    return click.option(
        each.flag,
        each.field,
        type=Value(each.metavar, each.read),
        metavar=each.metavar,
        multiple=each.repeats,
        required=each.is_required,
        help=each.help,
    )


def _takes_drain_options(run: Callable[..., int]) -> Callable[..., int]:
    for each in reversed(ARGUMENTS):
        run = _option(each)(run)
    return run


def given(values: dict[str, Any]) -> dict[str, Any]:
    """Return the values that were typed, without those that click sets for the others."""
    means = {each.field: each.means for each in ARGUMENTS if each.read is None}
    return {
        name: means.get(name, value)
        for name, value in values.items()
        if not (value is None or value is False or value == ())
    }


@command()
@_takes_drain_options
def drain(**values: Any) -> int:
    """Move records from services into a Delta table with Spark, exactly once.

    Each batch is one durable transaction of the table, which also says how far the logs are stored; then its records
    are truncated in the log. Without --every the command ends when everything that was there is stored.

      mrecordlog drain --server a=http://h1:8080 --server b=http://h2:8080 --output /lake/events
    """
    from mrecordlog_async.spark import drain_command
    from mrecordlog_async.spark.connection import ServerDownError

    try:
        return drain_command.run(given(values))
    except drain_command.REFUSED as error:
        raise UsageError(str(error)) from None
    except ServerDownError as error:
        raise NotReadyError(str(error)) from None


@command()
@argument("action", metavar="ACTION", type=click.Choice(["show"]), help="show.")
@argument("path", metavar="PATH", help="The table: a directory, or s3://…, gs://…, az://….")
@click.option(
    "--storage-option",
    type=Value("KEY=VALUE", pair),
    multiple=True,
    metavar="KEY=VALUE",
    help="Option of the table's object store; may be repeated.",
)
def lake(action: str, path: str, storage_option: tuple[tuple[str, str], ...]) -> int:
    """Show the Delta table of a drain: its size, its columns, and how far each log is stored.

    mrecordlog lake show ./lake/events
    """
    from mrecordlog_async.spark.lake_show import show
    from mrecordlog_async.spark.table_files import TableFiles

    found = show(TableFiles(path, dict(storage_option)))
    print("\n".join(_lines(found)))
    return FINE


def _lines(found: Shown) -> Iterator[str]:
    yield f"version {found.version}: {plural(found.rows, 'row')} in {plural(found.files, 'file')}, {size(found.bytes)}"
    if found.partition_by:
        yield f"{plural(found.partitions, 'partition')} by {', '.join(found.partition_by)}"
    if found.earlier is not None:
        yield f"drained by an earlier version, as query {found.earlier}: continue it with `drain --migrate-from`"
    elif not found.drains:
        yield "not written by a drain"
    for name, kind in found.columns.items():
        yield f"  {name:<20}{kind}"
    for name, each in found.drains.items():
        yield from _drain_lines(name, each)


def _drain_lines(name: str, found: StoredBy) -> Iterator[str]:
    yield f"drain {name!r}, up to batch {found.batch}:"
    for log, each in found.logs.items():
        yield f"  server {each.server!r}, log {log}"
        for queue, (number, position) in sorted(each.queues.items()):
            yield (
                f"    {queue!r} (id {number}) up to position {position - 1}" if position else f"    {queue!r}: nothing"
            )
