"""The sizes at which the log changes its way of working, reduced, so that a short history reaches them.

They belong to the rooms that have them: whoever renames one renames it here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from importlib import import_module
from unittest.mock import patch

BLOCK_BYTES = 32_768


@contextmanager
def replaced(sizes: Mapping[str, object]) -> Iterator[None]:
    """Replace constants of the log, by their full names."""
    with ExitStack() as stack:
        for name, size in sizes.items():
            module, _, constant = name.rpartition(".")
            stack.enter_context(patch.object(import_module(module), constant, size))
        yield


def early_roll(size: int) -> Mapping[str, object]:
    """Let an idle log without live records roll when it is larger than *size* bytes."""
    return {"mrecordlog_async.engine.commit.upkeep.EARLY_ROLL_BYTES": size}


def staging(size: int) -> Mapping[str, object]:
    """Let one direct write take *size* bytes."""
    return {"mrecordlog_async.storage.direct.STAGING_BYTES": size}


def pieces(size: int) -> Mapping[str, object]:
    """Write batches of this size in pieces of this size; runs are half as large."""
    return {
        "mrecordlog_async.engine.commit.journal.LARGE_BYTES": size,
        "mrecordlog_async.storage.direct.PIECE_BYTES": size,
        "mrecordlog_async.format.frame.STEP_BYTES": size // 2,
        "mrecordlog_async.engine.planning.draft.RUN_BYTES": size // 2,
    }


def little_memory(size: int) -> Mapping[str, object]:
    """Let segments be gathered by a log that has *size* bytes of memory."""
    return {"mrecordlog_async.recovery.beyond_memory.SLACK_BYTES_MAX": size // 16}


SMALL: Mapping[str, object] = {
    "mrecordlog_async.engine.commit.dead_segments.SHRINK_BYTES": 5_000,
    "mrecordlog_async.engine.commit.batch.JOIN_BYTES_MAX": 300,
    "mrecordlog_async.engine.commit.batch.JOIN_BUFFER_BYTES": 8,
    "mrecordlog_async.engine.commit.journal.LARGE_BYTES": 9_000,
    "mrecordlog_async.format.frame.STEP_BYTES": 3_000,
    "mrecordlog_async.storage.direct.PIECE_BYTES": 4_096,
    "mrecordlog_async.storage.direct.PIECES_MAX": 4,
    "mrecordlog_async.storage.direct.STAGING_BYTES": 6 * 4_096,
    "mrecordlog_async.storage.filesystem.BUFFERS_MAX": 2,
    "mrecordlog_async.storage.filesystem.CALL_BYTES_MAX": 5_000,
    "mrecordlog_async.storage.segment.PIECE_BYTES": BLOCK_BYTES,
    "mrecordlog_async.storage.segment.STEP_BYTES_MIN": 3_000,
    "mrecordlog_async.storage.segment.STEP_BYTES_MAX": 9_000,
    "mrecordlog_async.recovery.follower.PIECE_BYTES": BLOCK_BYTES,
    "mrecordlog_async.recovery.follower.PIECE_BYTES_MIN": BLOCK_BYTES,
    "mrecordlog_async.recovery.cleanup.ZEROS": bytes(1_000),
    "mrecordlog_async.engine.intake.admission.BATCH_BYTES": 3_000,
    "mrecordlog_async.engine.commit.writer.CALLERS_PER_TURN": 2,
    "mrecordlog_async.engine.planning.draft.RUN_BYTES": 1_000,
    "mrecordlog_async.memory.store.SEAL_BYTES": 2_000,
    "mrecordlog_async.memory.store.SEAL_RECORDS": 6,
    "mrecordlog_async.memory.store.SEAL_SPREAD": 2,
    "mrecordlog_async.memory.store.KEPT_BYTES": 900,
    "mrecordlog_async.memory.store.KEPT_RECORDS": 4,
    "mrecordlog_async.memory.store.COMPACT_BYTES": 100,
    "mrecordlog_async.memory.store.NEWEST_MAX": 3,
    "mrecordlog_async.memory.store.NEWEST_BYTES_MAX": 150,
    "mrecordlog_async.memory.queues.NEWEST_MAX": 3,
    "mrecordlog_async.memory.queues.NEWEST_BYTES_MAX": 150,
    "mrecordlog_async.memory.store.GAPLESS_MAX": 2,
    "mrecordlog_async.maintenance.snapshot.COPY_BYTES": 9_000,
    "mrecordlog_async.maintenance.transfer.QUEUES_AT_ONCE": 2,
}
"""Constants of the log, and their reduced values."""
