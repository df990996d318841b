"""After a loss was detected, every start is refused until the user accepts it, whatever the log looks like later.

A log that went back grows past the checkpoint again. A drain that is restarted often enough would then continue as if
nothing had happened. So the sentence that reports the loss is stored in `<checkpoint>/_mrecordlog/refused`.
"""

from __future__ import annotations

import json
import re
from ast import literal_eval
from datetime import UTC, datetime

from mrecordlog_async.spark.checkpoints.batches import OFFSETS, SparkBatches, newest, numbers
from mrecordlog_async.spark.checkpoints.identity import RefusedError
from mrecordlog_async.spark.checkpoints.lake import OWN, Lake
from mrecordlog_async.spark.settings.offset import Positions

REFUSED = f"{OWN}/refused"
ACCEPTED = f"{OWN}/accepted"
"""The positions at which a log that went back was accepted, kept until the checkpoint has advanced past them."""

WENT_BACK = "--accept-went-back"
LOSS = "--allow-data-loss"

_LITERAL = r"""('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")"""
_PLACE = re.compile(rf"server {_LITERAL}, queue {_LITERAL}: ")
_LOSS = re.compile(r"DataLossError: ")


def is_loss(failure: str) -> bool:
    """Return whether the text of a failed query names lost records or a log that went back."""
    return _LOSS.search(failure) is not None


def remember(checkpoint: Lake, sentence: str) -> None:
    """Refuse every start with *checkpoint* from now on, with *sentence* as the reason.

    A sentence that is already stored is kept, and other queues that went back are added to it. They are accepted
    together: otherwise a queue found later would stop those that were accepted before from being reread.
    """
    content = checkpoint.read(REFUSED)
    if content is None:
        found = {"why": sentence, "when": datetime.now(UTC).isoformat(timespec="seconds")}
        checkpoint.create(REFUSED, json.dumps(found).encode())
        return
    known = _stored(checkpoint, content)
    new = not set(_named(sentence)) <= set(_named(known["why"]))
    if new and flag_for(sentence) == flag_for(known["why"]) == WENT_BACK:
        checkpoint.remove(OWN, ["accepted"])
        checkpoint.write(REFUSED, json.dumps(known | {"why": f"{known['why']}; {sentence}"}).encode())


def check(checkpoint: Lake, accepted: set[str], position: Positions) -> Positions:
    """Refuse a start after a loss that was not accepted.

    The refusal of a log that went back is kept until the checkpoint has advanced past *position*: otherwise a start
    that is killed would leave no trace of it.

    accepted: the flags that the user set: `WENT_BACK`, `LOSS`. position: where the checkpoint is.

    Returns:
        The positions of queues that must be reread from their first record, because their log went back.

    Raises:
        RefusedError: a loss was found before, and *accepted* does not have its flag.
    """
    content = checkpoint.read(REFUSED)
    if content is None:
        return {}
    found = _stored(checkpoint, content)
    earlier = json.loads(checkpoint.read(ACCEPTED) or b"null")
    if earlier and _left(checkpoint, earlier["again"], earlier["batch"], position):
        _forget(checkpoint)
        return {}
    flag = flag_for(found["why"])
    if flag not in accepted:
        raise RefusedError(f"{found['why']} (found at {found['when']}). {advice(flag)}")
    again: Positions = {}
    for server, queue in _named(found["why"]) if flag == WENT_BACK else ():
        at = _at(position, server, queue)
        if at is not None:
            again.setdefault(server, {})[queue] = at
    if again:
        content = json.dumps({"batch": newest(checkpoint, OFFSETS), "again": again}).encode()
        checkpoint.write(ACCEPTED, content)
    else:
        _forget(checkpoint)
    return again


def _left(checkpoint: Lake, again: Positions, accepted_at: int, position: Positions) -> bool:
    """Return whether the checkpoint has advanced past every accepted position, even if it came back to it since."""
    batches = SparkBatches(checkpoint)
    later = [batches.end(batch) for batch in numbers(checkpoint, OFFSETS) if batch > accepted_at]
    seen = [position, *(end for end in later if end is not None)]
    return all(
        any(_at(end, server, queue) != at for end in seen)
        for server, queues in again.items()
        for queue, at in queues.items()
    )


def _stored(checkpoint: Lake, content: bytes) -> dict[str, str]:
    try:
        found = json.loads(content)
        return {"why": str(found["why"]), "when": str(found["when"])}
    except (ValueError, KeyError, TypeError):
        raise RefusedError(
            f"{checkpoint.path}/{REFUSED} is damaged; it records lost records or a log that went back. A new output "
            "and a new checkpoint store everything that the log still holds, and leave this output as it is"
        ) from None


def _forget(checkpoint: Lake) -> None:
    checkpoint.remove(OWN, ["refused", "accepted"])


def _named(sentence: str) -> list[tuple[str, str]]:
    """Return (server, queue) of each place that *sentence* names."""
    return [(str(literal_eval(server)), str(literal_eval(queue))) for server, queue in _PLACE.findall(sentence)]


def _at(offset: Positions, server: str, queue: str) -> list[int] | None:
    return offset.get(server, {}).get(queue)


def flag_for(sentence: str) -> str:
    """Return the flag that accepts what *sentence* reports."""
    return WENT_BACK if "went back" in _PLACE.sub("", sentence) else LOSS


def advice(flag: str) -> str:
    """Return what the user can do, what changes nothing first."""
    fresh = (
        "A new output and a new checkpoint store everything that the log still holds, and leave this output as it is."
    )
    if flag == WENT_BACK:
        return (
            f"{fresh} {WENT_BACK} rereads everything from the log into this output: no record is skipped, and records "
            "that the output already has are stored twice"
        )
    return f"{fresh} {LOSS} continues with what is left; the lost records stay lost"
