"""The driver's side: one commit of the table for each batch, durable when `DrainTable.store` returns.

delta-rs writes the table's log; what it does not check is checked here, before each commit: that the table stands right
before the batch (`content.judge`), that its columns are the sink's, and that every file is there with its size. On a
disk the new entry is made durable afterwards, because delta-rs never syncs.
"""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from deltalake import DeltaTable, Schema
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, CommitProperties, PostCommitHookProperties, RemoveAction, Transaction

from mrecordlog_async.spark.checkpoints.lake import SyncFailedError, WriteFailedError
from mrecordlog_async.spark.checkpoints.local_lake import LocalLake, make_directories
from mrecordlog_async.spark.delta.changes import (
    BROKEN,
    BROKEN_VERSION,
    OWNER,
    broken_after,
    refuse_mapped_columns,
    refuse_other_owner,
    refuse_restored,
    refuse_rules,
    refuse_statistics,
)
from mrecordlog_async.spark.delta.content import (
    BatchVerdict,
    ForeignBatchError,
    QueueRows,
    TableError,
    digest,
    judge,
    merged,
)
from mrecordlog_async.spark.delta.entries import MARK, entry_name, entry_numbers, mark_of, sync_entries
from mrecordlog_async.spark.delta.parts import STATED, NewFile, stated
from mrecordlog_async.spark.delta.place import LOG, TablePlace
from mrecordlog_async.spark.delta.reasons import reason_of

logger = logging.getLogger("mrecordlog_async.spark")

ATTEMPTS = 15
"""Tries of a commit: another writer may have committed in between, and a drain may do so every second."""

FILE_SECONDS_MAX = 30 * 60
"""Files of a batch that took longer may be removed by a vacuum, which spares files of the last hour."""

CONTENT = "/content"
"""Appended to a query's id: the transaction whose version is the digest of the batch."""

CHECKPOINT_INTERVAL = 100
"""After how many versions a checkpoint of the table is written."""

UNSUPPORTED = "Unsupported table features"
"""In delta-rs' error for a table that it cannot write, which otherwise looks like that of a faster writer."""

APPEND_ONLY = "table is append-only"
"""In delta-rs' error for rows that are dropped from a table whose property says that none may be."""

CLEANUP = "delta.enableExpiredLogCleanup"
"""The property of a table that keeps all entries of its log, if it is false."""

NO_HOOKS = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)
"""delta-rs would write a checkpoint of the table and delete log entries without a sync: `upkeep` does both."""


@dataclass(frozen=True, slots=True)
class NewBatch:
    """Files that a batch adds to the table."""

    query: str  # the id of the drain's query
    number: int  # Spark's number of the batch
    content: list[QueueRows]  # what it holds, by queue
    files: list[NewFile]  # where

    @property
    def records(self) -> int:
        """Number of rows of the batch."""
        return sum(each.records for each in self.content)

    @property
    def digest(self) -> int:
        """A number that is different for any other content."""
        return digest(merged(self.content))


Step = Callable[[str], None]
"""Called with the name of the step that comes next. Tests end the process there."""


class DrainTable:
    """A Delta table that batches are added to. For one thread; `loaded` keeps the state between two batches."""

    def __init__(self, place: TablePlace, *, step: Step = lambda name: None) -> None:
        self.place = place
        self._step = step
        self._loaded: DeltaTable | None = None
        self._broken = -1  # the last version that was reported as broken
        self._own_version = -1  # of the last commit of this object: nothing happened since if it is the newest

    @property
    def loaded(self) -> DeltaTable:
        """The newest version of the table. Raises TableError if there is none."""
        try:
            if self._loaded is None:
                self._loaded = DeltaTable(self.place.uri, storage_options=dict(self.place.storage_options))
            else:
                self._loaded.update_incremental()
        except TableNotFoundError:
            self._loaded = None
            raise TableError(f"there is no Delta table at {self.place.address}; the drain creates it") from None
        return self._loaded

    def store(
        self, batch: NewBatch, schema: Schema, partition_by: Iterable[str], prepare: Callable[[], None] = lambda: None
    ) -> BatchVerdict:
        """Add *batch* to the table, durably, unless the table has it; return which of the two.

        prepare: called before the commit: syncs the checkpoint, which must not know less than the table.

        Raises:
            ForeignBatchError: the table and the checkpoint do not continue each other.
            TableError: the table changed, a file is missing, or other writers were faster each time.
            SyncFailedError, WriteFailedError: the disk failed; the batch may be in the table or not.
        """
        # First: after a power cut the table may know more than a checkpoint that was not synced, and then refuses it.
        self._step("sync of the checkpoint")
        prepare()
        try:
            return self._store(batch, schema, partition_by)
        except (DeltaError, OSError) as error:
            raise TableError(
                f"batch {batch.number} could not be committed to {self.place.address}: {reason_of(error)}. Check the "
                "rights and the free space of the disk or the object store, and start again: the batch is stored once"
            ) from error

    def _store(self, batch: NewBatch, schema: Schema, partition_by: Iterable[str]) -> BatchVerdict:
        for attempt in range(ATTEMPTS + 1):
            # Loaded in each attempt: a commit whose response was lost shows here as a batch that the table has.
            table = self.loaded
            version = table.version()
            stands = table.transaction_version(batch.query)
            stored = table.transaction_version(batch.query + CONTENT)
            verdict = judge(batch.number, batch.digest, stands, stored, self.place.address)
            if version != self._own_version:
                self._refuse_changes(table, batch)
            if verdict is BatchVerdict.STORE:
                if attempt == ATTEMPTS:
                    break  # the last commit failed, and its response was not lost
                refuse_changed(table, schema, partition_by, self.place.address)
                self._refuse_missing(batch)
                self._step("commit")
                if not self._committed(table, batch, partition_by):
                    continue
                version += 1
                self._step("sync of the entry")
            # Even for a batch that is skipped: the run that committed it may have ended before its entry was durable.
            self._make_durable(batch)
            self._step("end of the commit")
            self._look_again(batch, version)
            return verdict
        raise TableError(
            f"other writers changed {self.place.address} {ATTEMPTS} times while batch {batch.number} was committed; "
            "the batch was not stored. Start again"
        )

    def _refuse_changes(self, table: DeltaTable, batch: NewBatch) -> None:
        """Raise ForeignBatchError, TableError for what others did to the table that no batch may follow."""
        if batch.files:  # `resume` stores its empty batch before it takes the table
            refuse_other_owner(table, batch.query, self.place.address)
            refuse_rules(table, self.place.address)
            refuse_statistics(table, self.place.address)
        refuse_mapped_columns(table, self.place.address)
        last = refuse_restored(table, self.place, batch.query)
        if last is not None:
            self._report_broken(broken_after(table, self.place, last))

    def _report_broken(self, versions: list[int]) -> None:
        """Warn of versions of other writers by which rows may be in the table twice; the next batch's entry has it."""
        for version in versions:
            if version > self._broken:
                logger.warning("%s: %s", self.place.address, BROKEN_VERSION.format(version, version - 1))
                self._broken = version

    def _committed(self, table: DeltaTable, batch: NewBatch, partition_by: Iterable[str]) -> bool:
        """Commit *batch*; return False if the table has changed since it was loaded."""
        now = round(time.time() * 1_000)  # milliseconds since 1970, as entries have them
        added: list[AddAction | RemoveAction] = [
            AddAction(each.path, each.size, each.values, now, True, each.statistics) for each in batch.files
        ]
        facts = {"query": batch.query, "batch": batch.number, "records": batch.records, "files": len(added)}
        transactions = [Transaction(batch.query, batch.number), Transaction(batch.query + CONTENT, batch.digest)]
        if self._broken > (table.transaction_version(batch.query + BROKEN) or -1):
            transactions.append(Transaction(batch.query + BROKEN, self._broken))
        before = table.version()
        if not commit(table, added, list(partition_by), facts, transactions, self.place.address):
            return False
        if batch.files or before == self._own_version:  # otherwise the next batch looks at the owner
            self._own_version = before + 1  # it is tried once, and fails if another writer has that version
        return True

    def _refuse_missing(self, batch: NewBatch) -> None:
        """Raise TableError unless every file of *batch* is there, with its size, and young."""
        # A task on a machine without the mount has written its file somewhere else, and has reported success.
        found = self.place.sizes([each.path for each in batch.files])
        for each in batch.files:
            size, changed = found.get(each.path, (-1, 0.0))
            if size != each.size:
                what = "is missing" if size < 0 else f"has {size} bytes instead of {each.size}"
                raise TableError(
                    f"{each.path} in {self.place.address} {what}; batch {batch.number} was not stored. Tasks and "
                    "driver must see the same directory. Start again: the batch runs again"
                )
            if time.time() - changed > FILE_SECONDS_MAX:
                raise TableError(
                    f"batch {batch.number} took longer than {FILE_SECONDS_MAX // 60} minutes, and a vacuum may remove "
                    "its files; it was not stored. Start again with a higher --min-partitions, or give Spark more "
                    "cores: the batch runs again with the same records. For later batches, set "
                    "--max-records-per-trigger lower"
                )

    def _look_again(self, batch: NewBatch, version: int) -> None:
        """Raise TableError if *batch* is no longer the last one of its query; write a checkpoint of the table if due.

        Without checkpoints, every reader would read all entries since the table was created. A failure to read or to
        write is only logged while the entry of *version*, which has the batch, exists: then the table is complete.
        """
        try:
            table = self.loaded
            self._refuse_replaced(table, batch, version)
            if table.version() % CHECKPOINT_INTERVAL == 0:
                sum_up(table, self.place)
        except (DeltaError, OSError, SyncFailedError, WriteFailedError) as error:
            self._refuse_removed(batch, version)
            logger.warning(
                "%s was not read after batch %d was stored, or no checkpoint of it was written: %s",
                self.place.address,
                batch.number,
                reason_of(error),
            )

    def _refuse_replaced(self, table: DeltaTable, batch: NewBatch, version: int) -> None:
        if table.transaction_version(batch.query) != batch.number:
            self._refuse_removed(batch, version)
            raise TableError(
                f"another writer replaced the entry of batch {batch.number} in {self.place.address}: its store ignores "
                "If-None-Match. Nothing of the batch was truncated. Let no other writer change the table, or "
                "use another store, and start again: the batch runs again"
            )

    def _refuse_removed(self, batch: NewBatch, version: int) -> None:
        with suppress(DeltaError, OSError):  # whether it exists is not known
            if self.place.read(f"{LOG}/{entry_name(version)}") is None:
                raise TableError(
                    f"{self.place.address} was deleted, or replaced by an older one, right after batch {batch.number} "
                    "was stored. Nothing of the batch was truncated. Restore the table, or use a new table and a new "
                    "checkpoint"
                )

    def _make_durable(self, batch: NewBatch) -> None:
        """Make the entries of the table's log durable, from this batch's back to the one before it."""
        if self.place.path is not None:
            with closing(LocalLake(self.place.path)) as lake:
                sync_entries(lake, *_entries_since(lake, batch))


def sum_up(table: DeltaTable, place: TablePlace) -> None:
    """Write a checkpoint of *table*, sync it, and only then delete old entries. Raises DeltaError, SyncFailedError.

    Entries stay while they show that the table was restored to a version without the last batch of its drain, and where
    the table turns their cleanup off, which delta-rs leaves to its caller.
    """
    # The entries that it sums up are deleted below: after a power cut, nothing else would have what they say.
    table.create_checkpoint()
    place.sync()
    properties = table.metadata().configuration
    if properties.get(CLEANUP, "true").lower() == "false":
        return
    try:
        refuse_restored(table, place, properties.get(OWNER, ""))
    except ForeignBatchError:
        return
    table.cleanup_metadata()


def commit(
    table: DeltaTable,
    actions: list[AddAction | RemoveAction],
    partition_by: list[str],
    facts: dict[str, Any],
    transactions: list[Transaction],
    address: str,
) -> bool:
    """Commit *actions* and this package's *facts*; return False if the table has changed since it was loaded."""
    # Without a retry inside delta-rs: a new version has to be checked first.
    properties = CommitProperties({MARK: facts}, max_commit_retries=0, app_transactions=transactions)
    try:
        table.create_write_transaction(
            actions,
            "append",
            table.schema(),
            partition_by,
            commit_properties=properties,
            post_commithook_properties=NO_HOOKS,
        )
    except CommitFailedError as error:
        refuse_unsupported(error, address)
        return False
    return True


def refuse_unsupported(error: Exception, address: str) -> None:
    """Raise TableError if a commit failed because of the table, and not because another writer was faster."""
    if APPEND_ONLY in str(error):
        raise TableError(
            f"{address} is append-only (delta.appendOnly): no rows were dropped. Remove this property first"
        ) from error
    if UNSUPPORTED in str(error):
        raise TableError(
            f"{address} was changed and needs what delta-rs does not write ({reason_of(error)}); nothing was stored. "
            "Drop the feature from the table, and start again"
        ) from error


def _entries_since(lake: LocalLake, batch: NewBatch) -> tuple[list[int], int | None]:
    """Return the numbers of the entries of the table's log after the batch before *batch*, in order, and its own.

    Others may have committed in between without a sync: an entry that is missing below a durable one would make the
    table unreadable.
    """
    found, own = list[int](), None
    for number in sorted(entry_numbers(lake.path), reverse=True):
        mark = mark_of(lake.read(f"{LOG}/{entry_name(number)}") or b"")
        if mark.get("query") == batch.query and "batch" in mark:
            if mark["batch"] < batch.number:
                break
            own = number
        found.append(number)
    return found[::-1], own


def create_table(place: TablePlace, schema: Schema, partition_by: Iterable[str], query: str) -> None:
    """Create an empty table, durably, unless another drain is faster (check the owner). Raises DeltaError."""
    if place.path is not None:
        make_directories(place.path)
    columns = list(partition_by)
    properties = {"delta.logRetentionDuration": "interval 1 days", STATED: stated(columns)}
    try:
        DeltaTable.create(
            place.uri,
            schema,
            mode="error",
            partition_by=columns,
            configuration={**properties, OWNER: query},
            raise_if_key_not_exists=False,
            storage_options=dict(place.storage_options) or None,
        )
    except DeltaError:
        if not DeltaTable.is_deltatable(place.uri, dict(place.storage_options)):
            raise
    place.sync()


@contextmanager
def explained(place: TablePlace) -> Iterator[None]:
    """Replace an error of delta-rs by one sentence: raise TableError."""
    try:
        yield
    except (DeltaError, OSError) as error:
        refuse_unsupported(error, place.address)
        advice = (
            "Its log is damaged: restore the table from a copy, or use a new table and a new checkpoint"
            if _is_damage(str(error).replace(place.address, ""))
            else "Check the address, the rights and the free space"
        )
        raise TableError(
            f"the table at {place.address} cannot be used: {reason_of(error)}. {advice}; nothing was stored"
        ) from error


def _is_damage(said: str) -> bool:
    """Return whether an error of delta-rs is about what it read, and not about reading: that may work later."""
    if re.search(r"Error performing|Generic \w+ error|HTTP error", said):
        return False
    return re.search(r"Json error|Invalid JSON|Parquet|Arrow error", said) is not None


def refuse_changed(table: DeltaTable, schema: Schema, partition_by: Iterable[str], address: str) -> None:
    """Raise TableError unless the columns of *table* are those of *schema*, and it is partitioned by *partition_by*."""
    known, given = columns_of(table.schema()), columns_of(schema)
    if known != given:
        name = next(name for name in {**known, **given} if known.get(name) != given.get(name))
        raise TableError(
            f"{address}: the column {name!r} is {known.get(name, 'missing')} in the table and "
            f"{given.get(name, 'missing')} in the drain: somebody changed the table. Start the drain again"
        )
    parts = table.metadata().partition_columns
    if parts != list(partition_by):
        raise TableError(f"{address} is partitioned by {','.join(parts) or 'nothing'}: somebody replaced the table")


def columns_of(schema: Schema) -> dict[str, str]:
    """Return column → type, as text that can be compared."""
    return {each.name: _type_name(each.type) for each in schema.fields}


def _type_name(kind: Any) -> str:
    """Return a simple type as Delta names it, and any other as its JSON."""
    found = json.loads(kind.to_json())
    return found if isinstance(found, str) else str(kind.to_json())
