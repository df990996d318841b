"""Which checkpoint an output belongs to, and which output a checkpoint writes to: each carries the other's name.

    <checkpoint>/metadata             the query's id; Spark's file, written here before Spark would write it
    <output>/_mrecordlog/owner        that id, a name for the output, how it is partitioned
    <checkpoint>/_mrecordlog/output   the same three, in the checkpoint

They are written durably and in this order, and the owner only if there is none: of two jobs that start at the same time
on an empty output, one is refused. Spark's file sink skips every batch up to the newest one in the manifest, whichever
query wrote it, and the log is truncated afterwards. So another query's checkpoint, or an older one, must never be used.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from mrecordlog_async.errors import RecordLogError
from mrecordlog_async.spark.batches import COMMITS, MANIFEST, OFFSETS, Batches, newest
from mrecordlog_async.spark.lake import OWN, Lake

METADATA = "metadata"
OWNER = f"{OWN}/owner"
OUTPUT = f"{OWN}/output"

WHERE = f"what `mrecordlog lake show` prints as the table's query, or `query` in {OWNER} of an output of Parquet files"
"""Where the id of a query is, apart from its checkpoint."""


class RefusedError(RecordLogError):
    """The job would lose data, or might; nothing was started."""


@dataclass(frozen=True, slots=True)
class Bond:
    """What ties a checkpoint to an output.

    Attributes:
        query: the checkpoint's query id.
        output: the output's name, generated once.
        partition_by: the columns by which the output is partitioned.
    """

    query: str
    output: str
    partition_by: tuple[str, ...] = ()


def claim(
    checkpoint: Lake,
    output: Lake,
    partition_by: tuple[str, ...] = (),
    *,
    adopt: bool = False,
    check: Callable[[], None] = lambda: None,
) -> Bond:
    """Tie *checkpoint* and *output* together, or verify that they are.

    Args:
        checkpoint: the checkpoint's directory.
        output: the output's directory.
        partition_by: the columns by which the output is, or will be, partitioned.
        adopt: accept an output without an owner file, such as one written by a version without owner files.
        check: called before an output gets its owner. If it raises, the next start may choose another checkpoint,
            output or layout.

    Returns:
        What ties them together.

    Raises:
        RefusedError: they do not belong together, one of them is older than the other, or the output was moved.
    """
    query, owner, known = _query(checkpoint), _bond(output, OWNER), _bond(checkpoint, OUTPUT)
    if owner is None:
        _refuse_unknown(checkpoint, output, query, known, adopt=adopt)
        check()
        owner = _take(checkpoint, output, query, partition_by)
    if query is None and known is not None:
        raise RefusedError(
            f'{checkpoint.path}/{METADATA} is missing: restore it with the query\'s id, {{"id":"{known.query}"}}'
        )
    if owner.query != _query(checkpoint) or (known is not None and known.output != owner.output):
        raise RefusedError(
            f"{output.path} was written with another checkpoint than {checkpoint.path}: Spark would skip batches as "
            "already written. Use the checkpoint that belongs to it, or a new output and a new checkpoint"
        )
    if owner.partition_by != partition_by:
        raise RefusedError(
            f"{output.path} is partitioned by {','.join(owner.partition_by) or 'nothing'}: set --partition-by to that, "
            "or use a new output and a new checkpoint"
        )
    if known is None:
        checkpoint.write(OUTPUT, _json(owner))
    _refuse_older(checkpoint, output)
    _refuse_moved(checkpoint, output)
    return owner


def query_of(checkpoint: Lake) -> str:
    """Return the id of the query that *checkpoint* belongs to; a new checkpoint gets one.

    Raises:
        RefusedError: the id is missing or damaged, though the checkpoint has batches.
    """
    query = _query(checkpoint)
    if query is None:
        if newest(checkpoint, OFFSETS) >= 0 or newest(checkpoint, COMMITS) >= 0:
            raise RefusedError(
                f'{checkpoint.path}/{METADATA} is missing: restore it with the query\'s id, {{"id":"…"}}; the id is '
                f"{WHERE}"
            )
        query = _new_query(checkpoint)
    return query


def _new_query(checkpoint: Lake) -> str:
    query = str(uuid.uuid4())
    checkpoint.create(METADATA, json.dumps({"id": query}, separators=(",", ":")).encode())
    return _query(checkpoint) or query  # another job may have been first with this checkpoint


def _query(checkpoint: Lake) -> str | None:
    content = checkpoint.read(METADATA)
    if content is None:
        return None
    found = _parsed(content)
    if not isinstance(found.get("id"), str):
        raise RefusedError(
            f'{checkpoint.path}/{METADATA} is damaged: restore it with the query\'s id, {{"id":"…"}}; the id is {WHERE}'
        )
    return str(found["id"])


def _bond(lake: Lake, name: str) -> Bond | None:
    content = lake.read(name)
    if content is None:
        return None
    found = _parsed(content)
    try:
        return Bond(str(found["query"]), str(found["output"]), tuple(found["partition_by"]))
    except (KeyError, TypeError):
        raise RefusedError(
            f"{lake.path}/{name} is damaged; it records which query wrote which output. Restore it from a copy, or "
            "use a new output and a new checkpoint"
        ) from None


def _refuse_unknown(checkpoint: Lake, output: Lake, query: str | None, known: Bond | None, *, adopt: bool) -> None:
    """Raise RefusedError unless an output without an owner is new, or may be adopted."""
    if known is not None:
        raise RefusedError(
            f"{checkpoint.path} belongs to an output that is not at {output.path}: {OWNER} is missing there. Name the "
            f"output that this checkpoint wrote. If this is it, copy the checkpoint's {OUTPUT} to its {OWNER}; if it "
            "is lost, use a new output and a new checkpoint"
        )
    foreign = _foreign(checkpoint, output)
    begun = newest(checkpoint, OFFSETS) >= 0 or newest(checkpoint, COMMITS) >= 0
    if foreign and query is None:
        raise RefusedError(
            f"{output.path} holds {foreign!r}, which was written with another checkpoint than {checkpoint.path} or by "
            "another program; use a new output"
        )
    if begun and newest(output, MANIFEST) < 0 and not adopt:
        raise RefusedError(
            f"{checkpoint.path} belongs to an output that is not at {output.path}: name that output, or use a new "
            "output and a new checkpoint"
        )
    if foreign and not adopt:
        raise RefusedError(
            f"{output.path} holds {foreign!r}, but no record of the checkpoint it belongs to: use a new output and a "
            f"new checkpoint, or, if you know that {checkpoint.path} wrote all of it, add --adopt-output"
        )


def _foreign(checkpoint: Lake, output: Lake) -> str | None:
    """Return the name of a file in *output* that neither this package nor the checkpoint put there; None if none is."""
    below = checkpoint.path.startswith(f"{output.path}/")
    inside = checkpoint.path.removeprefix(f"{output.path}/").partition("/")[0] if below else ""
    ours = {METADATA, OFFSETS, COMMITS, "sources", "state"} if checkpoint.path == output.path else {inside}
    return next(
        (name for name in sorted(output.names()) if name not in ours and name != OWN and not name.startswith(".")), None
    )


def _take(checkpoint: Lake, output: Lake, query: str | None, partition_by: tuple[str, ...]) -> Bond:
    if query is None:
        query = _new_query(checkpoint)
    output.create(OWNER, _json(Bond(query, uuid.uuid4().hex, partition_by)))
    owner = _bond(output, OWNER)  # another job may have been first with this output
    assert owner is not None
    return owner


def _refuse_older(checkpoint: Lake, output: Lake) -> None:
    planned, stored = newest(checkpoint, OFFSETS), newest(output, MANIFEST)
    if stored > planned:
        raise RefusedError(
            f"{checkpoint.path} is older than {output.path}: it ends with batch {planned}, the output with batch "
            f"{stored}, and Spark would skip what is read now as already written. Use the newest checkpoint; if it is "
            "lost, a new output and a new checkpoint store everything that the log still holds"
        )


def _refuse_moved(checkpoint: Lake, output: Lake) -> None:
    """Raise RefusedError if the output was moved: Spark's manifest would name files that do not exist."""
    away = next((each.uri for each in Batches(checkpoint, output).newest_files() if not output.holds(each.uri)), None)
    if away is not None:
        raise RefusedError(
            f"{output.path} was moved or copied: its manifest names {away}, and Spark finds files only by that name. "
            "Move it back, or leave it as it is and use a new output and a new checkpoint"
        )


def _json(bond: Bond) -> bytes:
    return json.dumps(asdict(bond)).encode()


def _parsed(content: bytes) -> dict[str, Any]:
    try:
        found = json.loads(content)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
