"""A Delta table as the output of a drain: tasks write files, and the driver commits them together with the positions.

A commit names the file of positions by its id, in a transaction of Delta: rows and positions change in one step. Two
commits cannot have the same version of the table, so of two drains one stops. The order is

1. data files and their directories are durable,
2. so is the file of positions, in `_mrecordlog/<name>/` of the table,
3. both are there, with their size: a task only says so,
4. the entry of the table's log is written,
5. it is read back: a store may have said something else,
6. it is made durable, with the entries before it, which others may not have synced.

Only then may records be truncated. What was begun and not committed never existed.

| a kill or a power cut | what is left | the next start |
|---|---|---|
| after some data files | files that no version names | plans a batch anew |
| after the positions | the same, and positions that nothing names: they are removed a day later | plans a batch anew |
| after the entry is written | the batch; after a power cut, maybe a torn entry | continues after it, or sets it aside |
| after the entry is durable | the batch | releases it in the log |
| before or inside a truncate | records in the log that the table has | releases them |
"""

from __future__ import annotations

import logging
import platform
import re
import secrets
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Field, PostCommitHookProperties, Schema, Transaction
from deltalake.exceptions import DeltaError, TableNotFoundError
from deltalake.transaction import AddAction
from msgspec.structs import replace

from mrecordlog_async.spark.delta_reasons import reason_of
from mrecordlog_async.spark.migration import earlier_state, refuse_columns
from mrecordlog_async.spark.output import BatchFailedError, OutputRefusedError, WrittenFile
from mrecordlog_async.spark.parquet_writer import STATED, Layout, write_rows
from mrecordlog_async.spark.runners import DATE, DAY
from mrecordlog_async.spark.state import DrainState, StateError
from mrecordlog_async.spark.table_changes import (
    STATED_COLUMNS,
    has_file,
    refuse_changes,
    refuse_restored,
    states_ends,
)
from mrecordlog_async.spark.table_entries import (
    LAST_CHECKPOINT,
    MARK,
    SIDECARS,
    entry_name,
    repair,
    restored_to,
    transactions_of,
)
from mrecordlog_async.spark.table_files import ENTRIES, NotSyncedError, TableFiles

logger = logging.getLogger("mrecordlog_async.spark")

OWN = "_mrecordlog"
"""The directory of positions: readers and vacuums leave out names that begin with an underscore."""

NAME = re.compile(r"[\w.-]{1,100}", re.ASCII)

ATTEMPTS = 15
"""Tries of a commit: another writer may have committed in between, and a drain may do so every second."""

SUM_UP_EVERY = 100
"""After this many batches of its own, a drain summarizes the table's log and deletes old entries."""

RENEW_SECONDS = 3_600.0
"""A drain without records stores again what it has seen, where others have rewritten the rows of its last batch."""

ABSENT_SECONDS = 7 * 86_400.0
"""A drain that is stopped finds the entries that it needs for this long; then they are deleted as others are."""

UNUSED_SECONDS = 86_400.0
"""Positions that nothing names are kept for this long: another process may be about to commit them."""

OWNER = "mrecordlog.query"
"""The property by which drains before 0.3 named the owner of a table."""

MIGRATING = "migrating:"
"""Begins the owner of a table whose positions are being taken from a checkpoint.

The name of the drain that takes them follows, and the id of the query.
"""

MOVED = "positions are in the table"
"""The owner of a table whose drain continues from its positions: earlier versions refuse it."""

UNSUPPORTED = ("Unsupported table features", "Unsupported reader features", "Unsupported writer features")
"""In delta-rs' error for a table that it cannot write."""

CLEANUP = "delta.enableExpiredLogCleanup"
"""The property of a table that keeps all entries of its log, if it is false."""

NOT_SYNCED = "not_synced"
"""In what a task returns: the disk failed, so the drain has to stop."""

TASK_NOT_SYNCED = "a task could not sync what it wrote to the table. Check the disk and start again"

NO_HOOKS = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)
"""delta-rs would write a checkpoint of the table and delete entries without a sync."""


@dataclass(frozen=True)
class DeltaWriter:
    """The tasks' side.

    Attributes:
        mark: A file of the driver that a task has to see first; "" for none. A task whose sync fails renames it.
    """

    files: TableFiles
    layout: Layout
    schema: pa.Schema
    mark: str = ""

    def write(self, batches: Iterable[pa.RecordBatch]) -> list[WrittenFile]:
        """Store rows as durable files that no version names yet; return what a commit needs of them."""
        mark = Path(self.files.path, self.mark) if self.mark and self.files.path is not None else None
        if mark is not None and not mark.exists():
            if failed(mark).exists():
                return [not_synced(TASK_NOT_SYNCED)]
            raise OutputRefusedError(
                f"{self.files.path} on {platform.node()} is not the directory that the driver sees: mount it on every "
                "machine, or use storage that all machines share (s3://, gs://, az://)"
            )
        try:
            return write_rows(self.files, self.layout, batches, self.schema)
        except NotSyncedError as error:
            # Not raised: Spark would try the task again, and then the sync would succeed and prove nothing.
            if mark is not None:
                with suppress(OSError):
                    mark.rename(failed(mark))  # the driver does not get what is returned if another task fails
            return [not_synced(str(error))]
        except OSError as error:
            raise BatchFailedError(
                f"a file of the table {self.files.address} could not be written "
                f"({error.strerror or reason_of(error)}): free space, or repair the disk or the rights"
            ) from error


def failed(mark: Path) -> Path:
    """Return the name of a mark once a task has failed to sync."""
    return mark.with_name(f"{mark.name}-failed")


def not_synced(sentence: str) -> WrittenFile:
    """Return what a task returns that has failed to sync, instead of files."""
    return {"path": "", "size": 0, "rows": 0, NOT_SYNCED: sentence}


class DeltaOutput:
    """A Delta table on a disk or in a store. For one thread."""

    def __init__(
        self,
        files: TableFiles,
        schema: pa.Schema,
        *,
        name: str = "drain",
        partition_by: tuple[str, ...] | None = None,
        plain: bool = True,
        accepts_restore: bool = False,
        migrate_from: TableFiles | None = None,
        report: Callable[[str], None] = logger.warning,
    ) -> None:
        """Describe the output; `open` creates it.

        Args:
            files: where it is.
            schema: the columns of the rows.
            name: of this drain, among those that write to the table.
            partition_by: the columns by which it is partitioned; None for those of a table that exists.
            plain: the rows are those of the logs; no function has changed them.
            accepts_restore: continue after the last batch, even if a RESTORE has taken it back.
            migrate_from: the checkpoint of the drain of an earlier version that the table belongs to.
            report: called with a sentence for people.
        """
        if not NAME.fullmatch(name) or name.startswith("."):
            raise OutputRefusedError(f"--name {name!r}: use letters, digits, '-', '_' and '.', at most 100")
        self.files, self.name, self.schema = files, name, schema
        self._partition_by, self._plain, self._accepts_restore = partition_by, plain, accepts_restore
        self._report, self._migrate_from = report, migrate_from
        self._loaded: DeltaTable | None = None
        self._state, self._number, self._seen = DrainState(), -1, -1
        self._tries = set[int]()  # the ids of positions whose entry may arrive late
        self._mark = ""
        self._durable = -1  # entries up to this version are synced …
        self._pointer: bytes | None = None  # … and the checkpoint of the table that this names
        self._failed: NotSyncedError | None = None  # asking the disk again would prove nothing
        self._leaves_files = False  # it was reported that files cannot be deleted
        self._is_rewritten = False  # others have removed the file by which a RESTORE is noticed
        self._renewed = float("-inf")
        self._written = -1  # the version that this process has committed last
        self._read_to = self._restored = -1  # entries were read up to this version; the newest RESTORE among them

    @property
    def writer(self) -> DeltaWriter:
        """What tasks write with. It renews the mark, which another drain of this name removes after a day."""
        if self._mark and self.files.path is not None:
            Path(self.files.path, self._mark).touch()
        layout = Layout(self._partition_by or (), has_ends=states_ends(self._table))
        return DeltaWriter(self.files, layout, self.schema, self._mark)

    @property
    def owner(self) -> str:
        """A UUID of this drain of this table, for consumers."""
        return self.load().owner or str(uuid.uuid5(uuid.UUID(str(self._table.metadata().id)), self.name))

    @property
    def _table(self) -> DeltaTable:
        assert self._loaded is not None, "it is open"
        return self._loaded

    @property
    def _own(self) -> str:
        return f"{OWN}/{self.name}"  # other drains do not know which files of it are in use

    @property
    def _application(self) -> str:
        return f"{MARK}/{self.name}"

    # Opening.

    def exists(self) -> bool:
        """Return whether there is a table. Raises OutputRefusedError, BatchFailedError."""
        with _explained(self.files):
            return DeltaTable.is_deltatable(self.files.uri, self.files.options)

    def open(self) -> None:
        """Repair what a power cut left, create the table if it is missing, and add new columns.

        Raises:
            OutputRefusedError: the table cannot take these rows.
            BatchFailedError: the disk or the store failed.
        """
        if self.files.is_misread:
            raise OutputRefusedError(f"{self.files.address}: delta-rs misreads paths with % or a backslash: rename it")
        if self._migrate_from is not None and not self.exists():
            raise OutputRefusedError(f"--migrate-from: there is no table at {self.files.address}")
        with _explained(self.files):
            self.files.make_directory()
            for sentence in repair(self.files):
                self._report(sentence)
            if not DeltaTable.is_deltatable(self.files.uri, self.files.options):
                self._create()
                self._report(
                    f"a new table is created at {self.files.address}: it gets what the logs still hold. If there was "
                    "one, stop the drain, and look whether its disk is mounted and the address is right"
                )
            self._loaded = DeltaTable(self.files.uri, storage_options=self.files.options)
            owner = self._owner_of_earlier_versions()
            self._take_partitioning()
            self._add_columns()
            self._sync_entries(0, self._table.version())
            if owner:
                self._migrate(owner)
            if self.files.path is not None:
                self._mark = f"{self._own}/mark-{secrets.token_hex(8)}"
                self._make_own_directory()
                Path(self.files.path, self._mark).touch()

    def close(self) -> None:
        """Remove the mark that tasks look for."""
        if self._mark:
            for each in (Path(self._mark), failed(Path(self._mark))):
                self._remove(str(each))
            self._mark = ""

    def _create(self) -> None:
        there = sorted(name for name in self.files.names("") if not name.startswith((".", "_")))
        if there:
            raise OutputRefusedError(
                f"{self.files.address} has other files, such as {there[0]}, and no table: name a new or empty directory"
            )
        columns = list(self._partition_by or ())
        lacking = [each for each in columns if each not in self.schema.names]
        if lacking:
            raise OutputRefusedError(
                f"the table cannot be partitioned by {','.join(lacking)}: its rows have the columns "
                f"{', '.join(self.schema.names)}"
            )
        stated = ",".join(name for name in STATED if name in self.schema.names and name not in columns)
        try:
            DeltaTable.create(
                self.files.uri,
                self.schema,
                "error",
                partition_by=columns,
                configuration={"delta.logRetentionDuration": "interval 1 days", STATED_COLUMNS: stated},
                raise_if_key_not_exists=False,
                storage_options=self.files.options or None,
            )
        except DeltaError:  # another drain may have been faster
            if not DeltaTable.is_deltatable(self.files.uri, self.files.options):
                raise

    def _owner_of_earlier_versions(self) -> str:
        """Return the id of the query that the table has to be taken over from; "" for none."""
        owner = self._table.metadata().configuration.get(OWNER)
        if owner is None and self._migrate_from is not None:
            raise OutputRefusedError(
                f"--migrate-from: {self.files.address} is not the table of a drain of an earlier version; name the one "
                "that its checkpoint belongs to"
            )
        if owner in (None, MOVED):
            return ""
        if self._migrate_from is None and not owner.startswith(MIGRATING):
            raise OutputRefusedError(
                f"{self.files.address} belongs to a drain of an earlier version, which keeps its positions in a "
                "checkpoint. Continue it once with `mrecordlog drain --server NAME=URL --output "
                f"{self.files.address} --migrate-from CHECKPOINT`, which takes them into the table"
            )
        refuse_columns(self._table, frozenset(self.schema.names), self.files.address)
        if owner.startswith(MIGRATING):
            name, _, owner = owner.removeprefix(MIGRATING).partition(":")
            if name != self.name:
                raise OutputRefusedError(
                    f"the drain {name!r} began to continue {self.files.address}: start it again with --migrate-from, "
                    "until it says that the positions are in the table"
                )
        return owner

    def _take_partitioning(self) -> None:
        """Take the columns that partition a table that exists. Raises OutputRefusedError for what rows cannot have."""
        if self._partition_by is None:
            self._partition_by = tuple(self._table.metadata().partition_columns)
        if DATE in self._partition_by and DATE not in self.schema.names:
            self.schema = self.schema.append(DAY)
        missing = [each for each in self._partition_by if each not in self.schema.names]
        if missing:
            raise OutputRefusedError(
                f"{self.files.address} is partitioned by {','.join(missing)}, and the rows of the drain have no such "
                "column: give it by --transform, or drain into a new table"
            )

    def _migrate(self, owner: str) -> None:
        """Take the positions of an earlier version, in three steps: after a kill, the next start continues."""
        if not self.load().owner:
            if self._migrate_from is None:
                raise OutputRefusedError(
                    f"{self.files.address}: start again with --migrate-from, which was interrupted"
                )
            earlier_state(self._table, self.files, self._migrate_from, owner)
            self._own_table(f"{MIGRATING}{self.name}:{owner}")  # from now on, earlier versions refuse the table
            # Only now: the earlier drain may still have run, and stored another batch.
            state = earlier_state(self._table, self.files, self._migrate_from, owner)
            self._make_own_directory()
            self.commit((), state)
            self._report(f"the positions of {self._migrate_from.address} are in the table: it is not needed any more")
        self._own_table(MOVED)

    def _own_table(self, owner: str) -> None:
        if self._table.metadata().configuration.get(OWNER) != owner:
            properties = {OWNER: owner}
            self._table.alter.set_table_properties(
                properties, raise_if_not_exists=False, post_commithook_properties=NO_HOOKS
            )
            self._update()
            self._sync_entries(0, self._table.version())
            self._judge()

    def _add_columns(self) -> None:
        known = {each.name for each in self._table.schema().fields}
        new = [each for each in Schema.from_arrow(self.schema).fields if each.name not in known]
        if new:
            known_schema = pa.schema([each for each in self.schema if each.name in known])
            refuse_changes(self._table, known_schema, self._partition_by or (), plain=self._plain)
            columns = [Field(each.name, each.type, nullable=True) for each in new]
            self._table.alter.add_columns(columns, post_commithook_properties=NO_HOOKS)
            self._table.update_incremental()

    def _make_own_directory(self) -> None:
        if self.files.path is not None:
            for each in (OWN, self._own):
                Path(self.files.path, each).mkdir(exist_ok=True)
            self.files.sync_names([f"{self._own}/x"])

    # Loading.

    def load(self) -> DrainState:
        """Return the positions of the newest version. Raises OutputRefusedError, BatchFailedError, NotSyncedError."""
        with self._working():
            self._update()
            self._judge()
            if self._is_rewritten and self._table.version() > self._state.onto + 1:
                self._renew()
        return self._state

    def _renew(self) -> None:
        """Store that no RESTORE took rows back up to now, while the entries that say so are there."""
        if _clock() - self._renewed >= RENEW_SECONDS:
            self._renewed = _clock()
            self.commit((), replace(self._state, batch=self._state.batch + 1))

    def _update(self) -> None:
        try:
            self._table.update_incremental()
        except TableNotFoundError:
            raise OutputRefusedError(f"the table at {self.files.address} was deleted while the drain ran") from None
        except DeltaError:  # entries since the last look may be deleted, and a checkpoint has what they said
            self._loaded = DeltaTable(self.files.uri, storage_options=self.files.options)

    def _judge(self) -> None:
        """Take the positions of the loaded version, if others have changed the table since the last look."""
        table = self._table
        if table.version() == self._seen:
            return
        if table.version() < self._seen:
            raise OutputRefusedError(f"version {self._seen} of {self.files.address} is gone: the table was replaced")
        refuse_changes(table, self.schema, self._partition_by or (), plain=self._plain)
        self._read_positions()
        try:
            self._is_rewritten = refuse_restored(table, self.files, self._state, self._seen)
        except OutputRefusedError as error:
            if not self._accepts_restore:
                raise
            self._report(f"accepted, as allowed: {error}")
            # It is stored with the next positions: otherwise the next start would refuse it again.
            self._state, self._is_rewritten = replace(self._state, witness="", rows_at=-1), True
        self._seen = self._table.version()

    def _read_positions(self) -> None:
        number = self._table.transaction_version(f"{self._application}/positions")
        if number is None or number == self._number:
            return
        content = self.files.read(f"{self._own}/{number}.json")
        if content is None:
            self._table.update_incremental()  # another drain may just have committed, and removed them
            newer = self._table.transaction_version(f"{self._application}/positions")
            if newer != number:
                self._read_positions()
                return
            raise OutputRefusedError(
                f"{self.files.address} lacks {self._own}/{number}.json, which says how far its logs are stored: it is "
                "a clone without this directory. Copy the directory as well, or drain into a new table"
            )
        self._sync_to(self._table.version())  # whoever committed it may have died before
        try:
            self._state, self._number = DrainState.decode(content), number
        except StateError as error:
            raise OutputRefusedError(f"{self._own}/{number}.json in {self.files.address}: {error}") from None

    # Committing.

    def commit(self, files: Sequence[WrittenFile], state: DrainState) -> DrainState:
        """Add *files* and *state* to the table, in one durable step; return the state as it is stored.

        Raises:
            OutputRefusedError: another drain has committed, or somebody changed the table.
            BatchFailedError: a file is missing, or the commit failed; it may have been carried out.
            NotSyncedError: the disk failed.
        """
        for sentence in (each[NOT_SYNCED] for each in files if NOT_SYNCED in each):
            self._failed = self._failed or NotSyncedError(sentence)
        with self._working():
            for _ in range(ATTEMPTS):
                stored, number = self._prepared(files, state)
                self._tries.add(number)
                failure = self._tried(files, stored, number)
                if self._is_committed(stored, number):
                    return self._finish(stored, number)
                self._after_failure(number, failure)
        raise BatchFailedError(
            f"other writers changed {self.files.address} {ATTEMPTS} times while a batch was committed"
        )

    def _prepared(self, files: Sequence[WrittenFile], state: DrainState) -> tuple[DrainState, int]:
        """Write the positions, and look at all files; return the state to store and the id of its positions."""
        if self._table.version() != self._written:
            self._refuse_shared(state)
        self._sync_to(self._table.version())  # ours is worth nothing without those before it
        stored = replace(state, onto=self._table.version())
        if files:
            stored = replace(stored, witness=files[-1]["path"].rpartition("/")[2], rows_at=stored.onto + 1)
        number, content = secrets.randbits(62), stored.encode()
        self.files.write(f"{self._own}/{number}.json", content)
        sizes = {each["path"]: each["size"] for each in files}
        # Of the loaded version, too: without it the table was deleted, or replaced by one with fewer versions.
        missing = self.files.missing({**sizes, f"{self._own}/{number}.json": len(content)})
        if missing:
            raise BatchFailedError(
                f"{self.files.address} lacks {len(missing)} of {len(sizes) + 1} files of the batch, or they have "
                f"another size, such as {missing[0]}: every machine must write to the same place"
            )
        entry = self.files.read(entry_name(stored.onto))
        if entry is None or (stored.onto == self._written and not self._names(entry, self._number)):
            raise OutputRefusedError(f"version {stored.onto} of {self.files.address} is gone: the table was replaced")
        return stored, number

    def _refuse_shared(self, state: DrainState) -> None:
        """Raise OutputRefusedError if a drain of another name stores a queue of *state*: the table would have it twice.

        Of two that begin at once, the second commit meets the positions of the first.
        """
        for name, content, _ in self._committed():
            try:
                logs = DrainState.decode(content).logs if name != self.name else {}
            except StateError:
                continue  # that drain is refused for this
            for log, theirs in logs.items():
                ours = {each.id for each in state.logs[log].queues.values()} if log in state.logs else set()
                queue = next((queue for queue, each in theirs.queues.items() if each.id in ours), None)
                if queue is not None:
                    raise OutputRefusedError(
                        f"the drain {name!r} stores queue {queue!r} of the log {log} in {self.files.address} as well, "
                        f"and each record would be there twice: start with --name {name}, or drain into another table. "
                        f"If that drain is not needed any more, delete {OWN}/{name} in the table"
                    )

    def _tried(self, files: Sequence[WrittenFile], state: DrainState, number: int) -> Exception | None:
        """Write the entry; return the error, which does not say whether the entry was written."""
        now = round(time.time() * 1_000)  # milliseconds since 1970, as entries have them
        actions: list[Any] = [
            AddAction(each["path"], each["size"], each["partition_values"], now, True, each["stats"]) for each in files
        ]
        properties = CommitProperties(
            {MARK: {"drain": self.name, "batch": state.batch, "files": len(actions)}},
            max_commit_retries=0,  # a new version has to be judged first
            app_transactions=[
                Transaction(self._application, state.batch),
                Transaction(f"{self._application}/positions", number),
            ],
        )
        try:
            self._table.create_write_transaction(
                actions,
                "append",
                self._table.schema(),
                list(self._partition_by or ()),
                commit_properties=properties,
                post_commithook_properties=NO_HOOKS,
            )
        except (DeltaError, OSError) as error:
            return error
        return None

    def _is_committed(self, state: DrainState, number: int) -> bool:
        """Read the entry back: a response may be lost or wrong, and a store may let another writer replace an entry."""
        return self._names(self.files.read(entry_name(state.onto + 1)) or b"", number)

    def _names(self, entry: bytes, number: int) -> bool:
        """Return whether *entry* commits the positions with this id."""
        return transactions_of(entry).get(f"{self._application}/positions") == number

    def _after_failure(self, number: int, failure: Exception | None) -> None:
        """Load what the table is now. Raises OutputRefusedError, BatchFailedError if another attempt would not help."""
        before = self._table.version()
        self._loaded = DeltaTable(self.files.uri, storage_options=self.files.options)  # it may know a lost commit
        refuse_unsupported(failure, self.files.address)
        found = self._table.transaction_version(f"{self._application}/positions")
        if found is not None and found not in {self._number, *self._tries}:
            raise OutputRefusedError(
                f"another drain named {self.name!r} writes to {self.files.address}: stop one of them, or give each its "
                "own --name"
            ) from failure
        if self._table.version() <= before or found in self._tries:
            # The entry may still arrive, so its positions stay; then the next look at the table finds it.
            why = reason_of(failure) if failure else "no entry was written"
            raise BatchFailedError(f"{self.files.address} could not be committed to: {why}") from failure
        self._remove(f"{self._own}/{number}.json")  # its version is another one's
        self._judge()

    def _finish(self, state: DrainState, number: int) -> DrainState:
        """Make the entry durable, and only then take its state; only what is superseded by it is removed."""
        self._sync_to(state.onto + 1)
        old = self._number
        self._state, self._number, self._seen = state, number, state.onto + 1
        self._written = self._seen
        self._is_rewritten &= state.rows_at != self._seen
        self._tries.clear()
        if old >= 0:
            self._remove(f"{self._own}/{old}.json")
        self._update()
        if state.batch % SUM_UP_EVERY == 0:
            self._sum_up()
        return state

    def _remove(self, name: str) -> None:
        """Delete a file that nothing needs any more; where that fails, it stays."""
        try:
            self.files.remove([name])
        except (DeltaError, OSError) as error:
            if not self._leaves_files:
                self._report(f"{name} in {self.files.address} could not be deleted, and stays: {reason_of(error)}")
            self._leaves_files = True

    def _sync_to(self, version: int) -> None:
        """Make the entries of the table's log durable up to *version*, whoever wrote them."""
        if version > self._durable:
            self._sync_entries(self._durable + 1, version)

    def _sync_entries(self, first: int, last: int) -> None:
        """Make the entries from version *first* to *last* durable, and a checkpoint that others may have written.

        Whoever writes a checkpoint may delete the entries that it sums up; then nothing else has what they say.
        """
        if self.files.path is None:
            return
        if first:
            self.files.sync([entry_name(number) for number in range(first, last + 1)])
        pointer = self.files.read(f"{ENTRIES}/{LAST_CHECKPOINT}")
        if not first or pointer != self._pointer:
            names = [f"{each}/{name}" for each in (f"{ENTRIES}/{SIDECARS}", ENTRIES) for name in self.files.names(each)]
            self.files.sync([name for name in names if not Path(self.files.path, name).is_dir()])
        self._durable, self._pointer = max(last, self._durable), pointer

    @contextmanager
    def _working(self) -> Iterator[None]:
        """Explain errors; after a sync that failed, do nothing more."""
        if self._mark and self.files.path is not None and failed(Path(self.files.path, self._mark)).exists():
            self._failed = self._failed or NotSyncedError(TASK_NOT_SYNCED)
        if self._failed is not None:
            raise self._failed
        try:
            with _explained(self.files):
                yield
        except NotSyncedError as error:
            self._failed = error
            raise

    # Upkeep.

    def _sum_up(self) -> None:
        """Write a checkpoint of the table, sync it, and only then delete old entries. The batch is stored anyway."""
        self._sync_to(self._table.version())
        try:
            self._table.create_checkpoint()
            # The entries that it sums up are deleted below: after a power cut, nothing else has what they say.
            self._sync_entries(0, self._table.version())
            if (
                self._table.metadata().configuration.get(CLEANUP, "true").lower() != "false"
                and not self._is_proof_left()
            ):
                self._table.cleanup_metadata()
            self._drop_unused()
        except NotSyncedError as error:
            self._failed = error  # raised by the next call: entries of others may be among what the disk has lost
        except (DeltaError, OSError, StateError) as error:
            logger.warning("%s: its log was not summarized: %s", self.files.address, reason_of(error))

    def _is_proof_left(self) -> bool:
        """Return whether a drain of this table has not seen all entries, and needs old ones to judge the others."""
        table, lowest = self._table, self._table.version()
        for _, content, absent in self._committed():
            state = DrainState.decode(content)
            lowest = min(lowest, state.onto)
            is_stopped = 2 * RENEW_SECONDS < absent < ABSENT_SECONDS  # one that runs would have stored it again
            if is_stopped and state.witness and not has_file(table, state.witness):
                return True
        for version in range(max(lowest, self._read_to) + 1, table.version() + 1):
            if restored_to(self.files.read(entry_name(version)) or b"") is not None:
                self._restored = version
        self._read_to = table.version()
        return lowest < self._restored

    def _committed(self) -> Iterator[tuple[str, bytes, float]]:
        """Yield each drain of this table, its positions, and for how many seconds they have been so."""
        for name in self.files.directories(OWN):
            number = self._table.transaction_version(f"{MARK}/{name}/positions")
            content = None if number is None else self.files.read(f"{OWN}/{name}/{number}.json")
            if content is not None:
                now = time.time()
                written = self.files.names(f"{OWN}/{name}").get(f"{number}.json", now)
                yield name, content, now - written

    def _drop_unused(self) -> None:
        """Remove positions and marks that killed drains have left."""
        oldest = time.time() - UNUSED_SECONDS
        names = {name for name, written in self.files.names(self._own).items() if written < oldest}
        keep = {f"{self._number}.json", self._mark.rpartition("/")[2]}
        self.files.remove(f"{self._own}/{name}" for name in names - keep)


@contextmanager
def _explained(files: TableFiles) -> Iterator[None]:
    """Replace an error of delta-rs or the system by one sentence. Raises OutputRefusedError, BatchFailedError."""
    try:
        yield
    except (DeltaError, OSError) as error:
        refuse_unsupported(error, files.address)
        raise BatchFailedError(
            f"the table at {files.address} cannot be used: {reason_of(error)}. Check the address, the rights and the "
            "free space"
        ) from error


def refuse_unsupported(error: Exception | None, address: str) -> None:
    """Raise OutputRefusedError if delta-rs cannot write the table, or read it."""
    if any(each in str(error) for each in UNSUPPORTED):
        raise OutputRefusedError(
            f"{address} needs what delta-rs does not write ({reason_of(error)}); nothing was stored. Drop the feature "
            "from the table, and start again"
        ) from error


_clock: Callable[[], float] = time.monotonic
