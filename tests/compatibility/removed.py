"""What 0.3.0 takes out or renames among the names of 0.2.0, and what to use instead.

`python -m tests.compatibility.removed` writes the table of the changelog from it. 0.2.0 was never published. The
promise that a name stays begins with 0.3.0: its release empties this table.
"""

from __future__ import annotations

import re
from pathlib import Path

_SUITE = "`examples/measure_disk.py`; for other stores, `python -m tests.benchmarks`, both in a clone of the repository"
_PARQUET = "a Delta table: finish a drain into Parquet files with 0.2.0, then begin a table"
INSPECTION = "the same name of `log.inspection`, for services and tools, under no promise"
_CLIENTS = (
    "a client for each service, as the recipe for several services shows; a drain reads all of them into one table"
)
_TOOLS = "nothing: only the package's own tools called it"
_TABLE = (
    "nothing: the table itself says how far its logs are stored; `--migrate-from` takes the positions of a checkpoint"
)
_UPKEEP = "delta-rs' own calls, as recipes show"
_PARSED = "`payload` stays next to the columns of `--schema`; a row that does not parse has nulls in them"
_CRATE = "`examples/import_quickwit.py` reads files of the crate into a new log; nothing writes them"
_FETCH_RUNS = "nothing: a fetch holds 4 MiB of records at a time, however many runs it returns"
_RARE = "their variables and keys in the file of `--config`, such as `MRECORDLOG_BODY_BYTES` and `body_bytes`"
_FIRST = "the directory or the URL as the first argument"
_SENTENCE = "the sentence and the exit code; `--json` stays where something is listed, and for `repair`"
_BATCHES = "nothing: a batch has up to 1,000 records and waits 200 ms for them; a program uses `consumer.batches`"
_SEGMENTS = "`MRECORDLOG_SEGMENT_BYTES` for `load`; a log gets new segments of the size that it is opened with"
REMOVED: dict[str, str] = {
    "append --dir": _FIRST,
    "append --url": _FIRST,
    "cat --dir": _FIRST,
    "cat --url": _FIRST,
    "configure --dir": _FIRST,
    "configure --url": _FIRST,
    "consume --dir": _FIRST,
    "consume --url": _FIRST,
    "consumers --dir": _FIRST,
    "consumers --url": _FIRST,
    "delete --dir": _FIRST,
    "delete --url": _FIRST,
    "dump --dir": _FIRST,
    "dump --url": _FIRST,
    "load --dir": _FIRST,
    "load --url": _FIRST,
    "ls --dir": _FIRST,
    "ls --url": _FIRST,
    "top --dir": _FIRST,
    "top --url": _FIRST,
    "truncate --dir": _FIRST,
    "truncate --url": _FIRST,
    "append --json": _SENTENCE,
    "configure --json": _SENTENCE,
    "delete --json": _SENTENCE,
    "lake --json": _SENTENCE,
    "load --json": _SENTENCE,
    "snapshot --json": _SENTENCE,
    "truncate --json": _SENTENCE,
    "verify --json": _SENTENCE,
    "cat --raw": "`--json`, whose payloads are exact",
    "cat --since": "`cat --start`, which takes a time too",
    "consume --batch": _BATCHES,
    "consume --wait": _BATCHES,
    "dump --queue": "the names after LOG: `mrecordlog dump LOG QUEUE...`",
    "load --segment-bytes": _SEGMENTS,
    "repair --segment-bytes": _SEGMENTS,
    "serve --access-log": _RARE,
    "serve --no-access-log": _RARE,
    "serve --connections": _RARE,
    "serve --log-format": _RARE,
    "serve --log-level": _RARE,
    "append --key": "one service for each command: `URL,URL` and `dns+http://…` are refused; "
    "`top` takes several arguments",
    "bench": _SUITE,
    "demo": "`examples/kill_it.py`",
    "drain --adopt-output": _PARQUET,
    "drain --checkpoint": _TABLE,
    "drain --format": _PARQUET,
    "drain --max-bytes-per-trigger": "`--max-bytes`",
    "drain --max-records-per-trigger": "`--max-records`",
    "drain --min-partitions": "nothing: a large batch has one task per core of Spark",
    "drain --no-payload": _PARSED,
    "drain --target-file-bytes": "nothing: files are closed at 128 MiB",
    "error": _PARSED,
    "_rest": _PARSED,
    "lake --bad": _PARSED,
    "lake --checkpoint": _TABLE,
    "lake --drop-older-than": _UPKEEP,
    "lake --dry-run": _UPKEEP,
    "lake --older-than": _UPKEEP,
    "lake --target-file-bytes": _UPKEEP,
    "export-quickwit": _CRATE,
    "import-quickwit": _CRATE,
    "inspect": "the column `keeps from` of `ls` for `--pins`, `verify` for damage",
    "internal": "`bad_request` where the head of a request is refused; `500 internal` stays",
    "load-parquet": "a recipe that appends the rows of a Delta table; rows of other files are written with Spark",
    "serve --bodies-bytes": _RARE,
    "serve --body-bytes": _RARE,
    "serve --consumers": _RARE,
    "serve --drain-seconds": _RARE,
    "serve --failure-grace": _RARE,
    "serve --metrics-per-queue": _RARE,
    "serve --no-metrics-per-queue": _RARE,
    "serve --no-recycle": _RARE,
    "serve --pending-bytes": _RARE,
    "serve --queues": _RARE,
    "serve --record-bytes": _RARE,
    "serve --recycle": _RARE,
    "serve --sending-bytes": _RARE,
    "serve --stall-seconds": _RARE,
    "serve --tails": _RARE,
    "mrecordlog_async.FileSystem.capacity_of": "`FileSystem.space_of`, which says what is free, too",
    "mrecordlog_async.MultiRecordLog.acknowledge": INSPECTION,
    "mrecordlog_async.MultiRecordLog.at": INSPECTION,
    "mrecordlog_async.MultiRecordLog.attach_consumer": INSPECTION,
    "mrecordlog_async.MultiRecordLog.check_holder": INSPECTION,
    "mrecordlog_async.MultiRecordLog.consumer_rules": INSPECTION,
    "mrecordlog_async.MultiRecordLog.deleted_end": INSPECTION,
    "mrecordlog_async.MultiRecordLog.durable_batch": INSPECTION,
    "mrecordlog_async.MultiRecordLog.extent": INSPECTION,
    "mrecordlog_async.MultiRecordLog.failure": INSPECTION,
    "mrecordlog_async.MultiRecordLog.fingerprints": INSPECTION,
    "mrecordlog_async.MultiRecordLog.held": INSPECTION,
    "mrecordlog_async.MultiRecordLog.iter_from": "`range(queue, position)`",
    "mrecordlog_async.MultiRecordLog.keep_unclosed": INSPECTION,
    "mrecordlog_async.MultiRecordLog.last_record": "`range(queue, log.last_position(queue))`",
    "mrecordlog_async.MultiRecordLog.names": INSPECTION,
    "mrecordlog_async.MultiRecordLog.next_positions": INSPECTION,
    "mrecordlog_async.MultiRecordLog.opening": INSPECTION,
    "mrecordlog_async.MultiRecordLog.openings": INSPECTION,
    "mrecordlog_async.MultiRecordLog.pending_records": INSPECTION,
    "mrecordlog_async.MultiRecordLog.pin": INSPECTION,
    "mrecordlog_async.MultiRecordLog.pin_in_steps": INSPECTION,
    "mrecordlog_async.MultiRecordLog.pinned_segments": INSPECTION,
    "mrecordlog_async.MultiRecordLog.public_id": INSPECTION,
    "mrecordlog_async.MultiRecordLog.queues_with_consumers": INSPECTION,
    "mrecordlog_async.MultiRecordLog.ranked_in_steps": INSPECTION,
    "mrecordlog_async.MultiRecordLog.recent_times": "`stats().last_minute`",
    "mrecordlog_async.MultiRecordLog.refuse_for_memory": "`check_memory` of `log.inspection`, under no promise",
    "mrecordlog_async.MultiRecordLog.times": INSPECTION,
    "mrecordlog_async.MultiRecordLog.under_way_seconds": INSPECTION,
    "mrecordlog_async.MultiRecordLog.version": INSPECTION,
    "mrecordlog_async.MultiRecordLog.waiting_seconds": INSPECTION,
    "mrecordlog_async.ReadOnlyLog.deleted_end": _TOOLS,
    "mrecordlog_async.ReadOnlyLog.extent": _TOOLS,
    "mrecordlog_async.ReadOnlyLog.fingerprints": _TOOLS,
    "mrecordlog_async.ReadOnlyLog.held": _TOOLS,
    "mrecordlog_async.ReadOnlyLog.iter_from": "`range(queue, position)`",
    "mrecordlog_async.ReadOnlyLog.last_record": "`range(queue, log.last_position(queue))`",
    "mrecordlog_async.ReadOnlyLog.names": _TOOLS,
    "mrecordlog_async.ReadOnlyLog.next_positions": _TOOLS,
    "mrecordlog_async.ReadOnlyLog.open_placed": "`ReadOnlyLog.open(directory, keep_records=False)`",
    "mrecordlog_async.ReadOnlyLog.queues_with_consumers": _TOOLS,
    "mrecordlog_async.ReadOnlyLog.ranked_in_steps": _TOOLS,
    "mrecordlog_async.ReadOnlyLog.times": _TOOLS,
    "mrecordlog_async.ReadOnlyLog.version": _TOOLS,
    "mrecordlog_async.aiohttp.ServiceOptions.fetch_runs": _FETCH_RUNS,
    "mrecordlog_async.client.BlockingRecordLogClient.iter_from": "`range(queue, position)`",
    "mrecordlog_async.client.BlockingRecordLogClient.last_record": "`range(queue, log.last_position(queue))`",
    "mrecordlog_async.client.FleetBatch": _CLIENTS,
    "mrecordlog_async.client.FleetConsumer": _CLIENTS,
    "mrecordlog_async.client.FleetError": _CLIENTS,
    "mrecordlog_async.client.FleetProducer": _CLIENTS,
    "mrecordlog_async.client.RecordLogClient.iter_from": "`range(queue, position)`",
    "mrecordlog_async.client.RecordLogClient.last_record": "`range(queue, log.last_position(queue))`",
    "mrecordlog_async.client.RecordLogFleet": _CLIENTS,
    "mrecordlog_async.client.ServerSummary": _CLIENTS,
    "mrecordlog_async.client.ServiceUnreachableError.after": _TOOLS,
    "mrecordlog_async.client.Stored": _CLIENTS,
    "mrecordlog_async.fastapi.ServiceOptions.fetch_runs": _FETCH_RUNS,
    "mrecordlog_drain_task_retries_total": "`mrecordlog_drain_failed_batches_total`: batches that were planned again",
    "path": "`mrecordlog serve` on the directory, and the option `servers`",
    "readAgain": "nothing: only a drain set them",
    "sharedMarker": "nothing: only a drain set them",
    "no_arrow": "415 `no_arrow` for every Arrow body that is sent, 406 `not_acceptable` for one that is asked for",
}
"""A line of `surface.json`, or the beginning of several ones → what to use instead, as the changelog says it."""
CHANGELOG = Path(__file__).parents[2] / "CHANGELOG.md"
_TABLE_OF_NAMES = re.compile(r"^\| 0\.2\.0 \| what to use \|\n(?:\|.*\n)+", re.MULTILINE)


def is_removed(line: str) -> bool:
    """Return whether the table has *line*: itself, or the name that it is a member, a parameter or a flag of."""
    return any(line == name or line.startswith((f"{name}.", f"{name}(", f"{name} ")) for name in REMOVED)


def table() -> str:
    """Return the table of the changelog: a row for each advice, with all names that it is for."""
    rows: dict[str, list[str]] = {}
    for name, instead in REMOVED.items():
        rows.setdefault(instead, []).append(name.removeprefix("mrecordlog_async."))
    lines = [f"| {_names(names)} | {instead} |" for instead, names in rows.items()]
    return "\n".join(["| 0.2.0 | what to use |", "|---|---|", *lines, ""])


def _names(names: list[str]) -> str:
    """Return names as a list; members of one class, or flags of one command, follow it."""
    owned: dict[str, list[str]] = {}
    for name in names:
        member = re.split("[. ]", name)[-1]
        owned.setdefault(name.removesuffix(member), []).append(member)
    parts = []
    for owner, members in owned.items():
        if len(members) > 2 and owner:
            parts.append(f"of `{owner.rstrip('. ')}`: " + ", ".join(f"`{member}`" for member in members))
        else:
            parts += [f"`{owner}{member}`" for member in members]
    return ("; " if any(part.startswith("of ") for part in parts) else ", ").join(parts)


def main() -> None:
    """Write the table into the changelog."""
    CHANGELOG.write_text(_TABLE_OF_NAMES.sub(lambda _: table(), CHANGELOG.read_text()))


if __name__ == "__main__":
    main()
