"""The options of the data source: parsed from Spark's strings, and checked once. Pure.

Names are those a Spark user knows from other streaming sources (`option_names`); `option_values` reads their texts.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from mrecordlog_async.servers.names import Endpoint, Lookup
from mrecordlog_async.spark.settings.option_names import refuse_unknown_options, without_table_properties
from mrecordlog_async.spark.settings.option_values import (
    Bound,
    OptionError,
    Subscription,
    parse_servers,
    read_bound,
    read_count,
    read_logs,
    read_name,
    read_path,
    read_paths,
    read_seconds,
    read_size,
    read_subscription,
    read_switch,
    read_token,
    read_tokens,
    read_uuid,
)

RECORDS_PER_TRIGGER = 1_000_000
BYTES_PER_TRIGGER = 256 << 20
TARGET_FILE_BYTES = 128 << 20
"""The size of a Parquet file that a drain begins another one after, and that `lake optimize` joins files up to."""
DELAY_SECONDS = 60.0
SERVER_WAIT_SECONDS = 120.0
"""How long a stream waits for a service that it has reached before: long enough for a restart with recovery."""


@dataclass(frozen=True, slots=True)
class Options:
    """Everything a user may set. `parse` reads Spark's option names, in camel case.

    Attributes:
        servers: services to read, or the one to write to (option `servers`); excludes *path*.
        path: a log directory on this machine, for batch reads.
        subscription: the queues to read (`subscribe`, `subscribePattern`).
        starting: where reading begins: "earliest", "latest" or positions (`startingOffsets`), or with the first record
            that was stored at a time or later (`startingTimestamp`, `timeZone`).
        ending: where a batch read ends: "latest" or positions, which are not read themselves (`endingOffsets`), or
            before the first record that was stored at a time or later (`endingTimestamp`, `timeZone`).
        records_per_trigger: records of one micro-batch at most (`maxRecordsPerTrigger`).
        records_min: an endless stream waits until it has that many records (`minRecordsPerTrigger`) …
        delay_seconds: … or the first of them has waited for that long (`maxTriggerDelay`).
        bytes_per_trigger: payload bytes of one micro-batch at most (`maxBytesPerTrigger`).
        partitions_min: tasks per batch at least, about (`minPartitions`).
        records_per_partition: records of one task at most, but for positions with gaps (`maxRecordsPerPartition`).
        fail_on_data_loss: fail when records were deleted unread (`failOnDataLoss`); False warns and continues.
        fail_on_server_down: fail when a server cannot be reached (`failOnServerDown`); False skips it …
        fail_at_end: … and a run that ends fails once the others are read (`failOnServerDown=atEnd`, see `outages`).
        truncate: truncate the logs up to what the checkpoint has committed.
        consumer: acknowledge what the checkpoint has committed, as this consumer of every queue, instead of truncating.
        consumer_owner: a UUID that alone may hold the consumer (`consumerOwner`), the same at every start.
        take_over: take the consumer over from another owner (`takeOver`).
        sync_directories: directories whose file systems are synced before each truncate or acknowledgement
            (`syncDirs`).
        shared_marker: file that every task must see, proof of a shared output (`sharedMarker`); set by the drain.
        read_again: positions of logs that went back and are reread (`readAgain`); set by the drain.
        accept_went_back: read all of a log again that went back (`acceptWentBack`).
        forget: first digits of the ids of logs that are lost (`forget`): they leave the checkpoint.
        payload: False reads positions without payloads.
        queue: the queue of a write whose rows have no column `queue`.
        create_queues: create missing queues when writing (`createQueues`).
        token: bearer token of the services (`token`) …
        tokens: … and of those that have another one, by the name of the server (`token.NAME`).
        timeout_seconds: for each response of a service (`timeout`).
        retries: further attempts after a failed request.
        server_wait_seconds: how long a stream waits for a service that it has reached before (`serverWait`).
        parallelism: tasks that can run at once; None for this machine's cores.
    """

    servers: tuple[Endpoint | Lookup, ...] = ()
    path: str | None = None
    subscription: Subscription = field(default_factory=Subscription)
    starting: Bound = "earliest"
    ending: Bound = "latest"
    records_per_trigger: int = RECORDS_PER_TRIGGER
    records_min: int = 1
    delay_seconds: float = DELAY_SECONDS
    bytes_per_trigger: int = BYTES_PER_TRIGGER
    partitions_min: int | None = None
    records_per_partition: int | None = None
    fail_on_data_loss: bool = True
    fail_on_server_down: bool = True
    fail_at_end: bool = False
    truncate: bool = False
    consumer: str | None = None
    consumer_owner: str | None = None
    take_over: bool = False
    sync_directories: tuple[str, ...] = ()
    shared_marker: str | None = None
    read_again: dict[str, dict[str, list[int]]] | None = None
    accept_went_back: bool = False
    forget: tuple[str, ...] = ()
    payload: bool = True
    queue: str | None = None
    create_queues: bool = True
    token: str | None = field(default=None, repr=False)
    tokens: Mapping[str, str] = field(default_factory=dict, repr=False)
    timeout_seconds: float = 60.0
    retries: int = 5
    server_wait_seconds: float = SERVER_WAIT_SECONDS
    parallelism: int | None = None

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> Options:
        """Read Spark's options, whose names may have any case.

        Raises:
            OptionError: an option is unknown, malformed, or excluded by another one.
        """
        found = without_table_properties({name.lower(): str(value) for name, value in given.items()})
        refuse_unknown_options(found)
        _refuse_pushdown(found)
        servers = parse_servers(found["servers"]) if "servers" in found else ()
        at_end = found.get("failonserverdown", "").strip().lower() == "atend"
        options = cls(
            servers=servers,
            path=read_path(found),
            subscription=read_subscription(found),
            starting=read_bound(found, "startingOffsets", "startingTimestamp", "earliest", ("earliest", "latest")),
            ending=read_bound(found, "endingOffsets", "endingTimestamp", "latest", ("latest",)),
            records_per_trigger=read_count(found, "maxRecordsPerTrigger") or RECORDS_PER_TRIGGER,
            records_min=read_count(found, "minRecordsPerTrigger") or 1,
            delay_seconds=read_seconds(found, "maxTriggerDelay", DELAY_SECONDS),
            bytes_per_trigger=read_size(found, "maxBytesPerTrigger", BYTES_PER_TRIGGER),
            partitions_min=read_count(found, "minPartitions"),
            records_per_partition=read_count(found, "maxRecordsPerPartition"),
            fail_on_data_loss=read_switch(found, "failOnDataLoss", True),
            fail_on_server_down=not at_end and read_switch(found, "failOnServerDown", True),
            fail_at_end=at_end,
            truncate=read_switch(found, "truncate", False),
            consumer=read_name(found, "consumer"),
            consumer_owner=read_uuid(found, "consumerOwner"),
            take_over=read_switch(found, "takeOver", False),
            sync_directories=read_paths(found, "syncDirs"),
            shared_marker=found.get("sharedmarker"),
            read_again=json.loads(found["readagain"]) if "readagain" in found else None,
            accept_went_back=read_switch(found, "acceptWentBack", False),
            forget=read_logs(found, "forget"),
            payload=read_switch(found, "payload", True),
            queue=read_name(found, "queue"),
            create_queues=read_switch(found, "createQueues", True),
            token=read_token(found, "token"),
            tokens=read_tokens(found, servers),
            timeout_seconds=read_seconds(found, "timeout", 60.0),
            retries=read_count(found, "retries", least=0, default=5) or 0,
            server_wait_seconds=read_seconds(found, "serverWait", SERVER_WAIT_SECONDS, zero=True),
            parallelism=read_count(found, "parallelism"),
        )
        options._check(late_commits=read_switch(found, "asyncProgressTrackingEnabled", False))
        return options

    def token_of(self, name: str) -> str | None:
        """Return the bearer token of the server *name*."""
        return self.tokens.get(name, self.token)

    def _check(self, *, late_commits: bool) -> None:
        """Raise OptionError for options that exclude each other. late_commits: Spark writes commits asynchronously."""
        if bool(self.servers) == bool(self.path):
            raise OptionError(
                'set exactly one of the options servers ("name=http://host:port,…") and path (a log directory)'
            )
        self._check_release(late_commits=late_commits)
        if self.records_min > self.records_per_trigger:
            raise OptionError(
                f"minRecordsPerTrigger ({self.records_min}) is above maxRecordsPerTrigger "
                f"({self.records_per_trigger}), which no batch reaches: lower the first, or raise the second"
            )
        if isinstance(self.starting, datetime) and isinstance(self.ending, datetime) and self.starting > self.ending:
            raise OptionError("startingTimestamp is after endingTimestamp: nothing would be read; swap them")
        self._refuse_unknown_servers()

    def _check_release(self, *, late_commits: bool) -> None:
        """Raise OptionError for what must not be combined with releasing records from the log."""
        if self.consumer is not None and self.truncate:
            raise OptionError("set consumer or truncate=true, not both: a consumer acknowledges instead of truncating")
        if self.consumer is None and (self.consumer_owner is not None or self.take_over):
            raise OptionError("consumerOwner and takeOver are for a stream that is a consumer: set consumer")
        if not self.truncate and self.consumer is None:
            return
        how, what = ("truncate=true", "truncate") if self.truncate else ("consumer", "acknowledgement")
        if self.starting != "earliest":
            raise OptionError(
                f"{how} requires startingOffsets=earliest: the first {what} would release the records before the "
                "start, which were never read"
            )
        if late_commits:
            raise OptionError(
                f"{how} excludes asyncProgressTrackingEnabled, which writes commits late: set one, not both"
            )

    def _refuse_unknown_servers(self) -> None:
        if any(isinstance(server, Lookup) for server in self.servers):
            return  # which services there are is not known yet
        known = {server.name for server in self.servers} or {""}
        for name, positions in (("startingOffsets", self.starting), ("endingOffsets", self.ending)):
            unknown = [] if isinstance(positions, str | datetime) else sorted(set(positions) - known)
            if unknown:
                raise OptionError(f"{name} names {unknown[0]!r}, but the option servers has no server {unknown[0]!r}")

    def check_stream_read(self) -> None:
        """Raise OptionError for options that a streaming read does not support."""
        if self.path is not None:
            raise OptionError(
                "path is for batch reads; to stream a directory, run `mrecordlog serve` on it and set servers"
            )
        if self.ending != "latest":
            raise OptionError(
                "endingOffsets and endingTimestamp are for batch reads; remove them, a stream does not end"
            )

    def check_batch_read(self) -> None:
        """Raise OptionError for options that a batch read does not support."""
        if self.consumer is not None:
            raise OptionError("consumer is for streams; a batch read has no checkpoint that proves what is stored")
        if self.truncate:
            raise OptionError("truncate=true is for streams; a batch read has no checkpoint that proves what is stored")
        if self.fail_at_end:
            raise OptionError("failOnServerDown=atEnd is for streams; a table has all servers or leaves some out")
        if self.starting == "latest":
            raise OptionError("startingOffsets=latest is for streams; a batch read would always be empty")

    def check_write(self) -> None:
        """Raise OptionError for options that a write does not support."""
        if self.path is not None:
            raise OptionError("path cannot be written to: start `mrecordlog serve` on the directory and set servers")
        if len(self.servers) != 1 or isinstance(self.servers[0], Lookup):
            count = "all addresses of a name" if len(self.servers) == 1 else str(len(self.servers))
            raise OptionError(
                f"a write goes to one server, not {count}: filter the rows and write once for each server"
            )


def _refuse_pushdown(found: Mapping[str, str]) -> None:
    """Raise OptionError for `pushdown=true`; false is what every read does, and stays allowed.

    Spark plans a Python reader once per DataFrame or view. A filter that is pushed down narrows that plan, and a later
    query without this filter would use it: nothing in Python is called then, so no reader can prevent it.
    """
    if read_switch(found, "pushdown", False):
        raise OptionError(
            "pushdown=true is not supported: Spark would use what one query filtered for the next query of the same "
            "DataFrame or view, which then misses rows. Remove the option; to fetch less, set subscribe, "
            "startingOffsets or endingOffsets; filters on the DataFrame work without it"
        )
