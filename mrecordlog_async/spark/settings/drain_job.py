"""The settings of a drain. Those that are no options of the data source have their only row here. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from mrecordlog_async.spark.settings.offset import Positions
from mrecordlog_async.spark.settings.option import Flag
from mrecordlog_async.spark.settings.option_values import interval, size
from mrecordlog_async.spark.settings.options import TARGET_FILE_BYTES
from mrecordlog_async.support.paths import absolute

PARTITIONS = ("server", "queue", "date")
"""Columns by which the table can be partitioned.

date: the day, in UTC, on which a record was stored. It stays the same when a batch runs again.
"""


def directory(text: str) -> str:
    """Read a path or an address; a slash at its end means nothing, and `~/` at its beginning the home directory."""
    return absolute(text) if text.startswith("~") or not text else text.rstrip("/")


def columns(text: str) -> tuple[str, ...]:
    """Read names of columns, separated by commas."""
    return tuple(filter(None, text.split(",")))


def pair(text: str) -> tuple[str, str]:
    """Read KEY=VALUE."""
    key, found, value = text.partition("=")
    if not key or not found:
        raise ValueError(f"{text!r} is not of the form KEY=VALUE")
    return key, value


@dataclass(frozen=True, slots=True)
class DrainJob:
    """Source and destination of a drain. Its flag says what a field sets, or the option of the same name."""

    servers: str = field(
        metadata=Flag(
            "--server",
            "service to drain, or dns+http://host:port for all services behind a name; may be repeated",
            "NAME=URL",
            gather=",".join,
            required=True,
        ).row
    )
    output: str = field(
        metadata=Flag(
            "--output", "the Delta table: a directory, or s3://…, gs://…, az://…", "PATH", directory, required=True
        ).row
    )
    checkpoint: str = field(
        metadata=Flag("--checkpoint", "directory of the checkpoint of this output", "DIR", directory, required=True).row
    )
    every_seconds: float | None = field(
        default=None,
        metadata=Flag("--every", "keep running, with at most one batch per TIME (10s, 1min)", "TIME", interval).row,
    )
    truncate: bool = True
    consumer: str | None = None
    take_over: bool = False
    metrics: str | None = field(
        default=None,
        metadata=Flag(
            "--metrics",
            "serve metrics of the drain for Prometheus at http://HOST:PORT/metrics; PORT alone: on this machine only",
            "HOST:PORT",
        ).row,
    )
    partition_by: tuple[str, ...] = field(
        default=(),
        metadata=Flag(
            "--partition-by",
            "columns by which the table is partitioned: server, queue, or date, the day on which records were "
            "stored: date,queue",
            "COLUMNS",
            columns,
        ).row,
    )
    shared_paths: bool = field(
        default=False,
        metadata=Flag(
            "--shared-paths",
            "allow local paths on a cluster: every machine mounts the same file system there",
            means=True,
        ).row,
    )
    accept_went_back: bool = False
    target_file_bytes: int = field(
        default=TARGET_FILE_BYTES,
        metadata=Flag(
            "--target-file-bytes", "size at which a file of the table is closed (default: 128m)", "SIZE", size
        ).row,
    )
    schema: str | None = field(
        default=None,
        metadata=Flag(
            "--schema",
            "add columns parsed from JSON payloads: 'customer string, amount bigint'; rows that fail to parse "
            "have the reason in the column error",
            "DDL",
        ).row,
    )
    payload: bool = field(
        default=True,
        metadata=Flag(
            "--no-payload",
            "do not store payloads parsed by --schema; fields without a column are kept in _rest",
            means=False,
        ).row,
    )
    storage_options: Mapping[str, str] = field(
        default_factory=dict,
        repr=False,
        metadata=Flag(
            "--storage-option",
            "option of the object store of a Delta table (AWS_ENDPOINT_URL=…); may be repeated; keys and secrets "
            "are better set as environment variables, which Spark's processes inherit",
            "KEY=VALUE",
            pair,
            gather=dict,
        ).row,
    )
    options: Mapping[str, str] = field(default_factory=dict, repr=False)  # others of the data source, with the tokens

    def __post_init__(self) -> None:
        """Read the places as the command does. Raises ValueError for one that is empty or needs a home directory."""
        for name in ("output", "checkpoint"):
            object.__setattr__(self, name, directory(getattr(self, name)))

    def source_options(self, shared_marker: str | None = None, again: Positions | None = None) -> dict[str, str]:
        """Return the options of the data source, without those of `release_options`.

        Args:
            shared_marker: file that every task must see.
            again: the positions of queues that went back and are reread; any other that is found to have gone back
                by its mark fails the query, whatever `options` allow.
        """
        found = {"servers": self.servers, "truncate": "false", "readAgain": json.dumps(again or {})}
        found["failOnServerDown"] = "atEnd"  # no watermark that an outage could let pass: the other servers continue
        found |= self.options
        if self.accept_went_back:
            found["acceptWentBack"] = "true"
        if shared_marker is not None:
            found["sharedMarker"] = shared_marker
        return found

    def release_options(self, query: str) -> dict[str, str]:
        """Return the options with which the data source itself releases what is stored. query: the query's id."""
        if self.consumer is None:
            return {"truncate": str(self.truncate).lower()}
        return {"consumer": self.consumer, "consumerOwner": query, "takeOver": str(self.take_over).lower()}
