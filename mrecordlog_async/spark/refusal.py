"""A loss that was found once is refused until somebody accepts it, however the log looks later.

A log that went back grows past the checkpoint again: a drain that is only started again and again would go on one day
as if nothing had been. The sentence stands in `<checkpoint>/_mrecordlog/refused`.
"""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime

from mrecordlog_async.spark.identity import RefusedError
from mrecordlog_async.spark.lake import OWN, Lake

REFUSED = f"{OWN}/refused"

WENT_BACK = "--accept-went-back"
LOSS = "--allow-data-loss"

_LOSS = re.compile(r"(?:DataLossError|LogWentBackError): ")


def is_loss(failure: str) -> bool:
    """Tell whether a failed query's text speaks of lost records or of a log that went back."""
    return _LOSS.search(failure) is not None


def remember(checkpoint: Lake, sentence: str) -> None:
    """Refuse every start with *checkpoint* from now on; the first sentence stays."""
    found = {"why": sentence, "when": datetime.now(UTC).isoformat(timespec="seconds")}
    checkpoint.create(REFUSED, json.dumps(found).encode())


def check(checkpoint: Lake, accepted: set[str]) -> None:
    """Raise RefusedError for a loss that was found before, unless *accepted* names its flag; then forget it."""
    content = checkpoint.read(REFUSED)
    if content is None:
        return
    found = json.loads(content)
    flag = flag_for(found["why"])
    if flag not in accepted:
        raise RefusedError(f"{found['why']} (found at {found['when']}). {advice(flag)}")
    checkpoint.remove(OWN, ["refused"])


def flag_for(sentence: str) -> str:
    """Return the flag that accepts what *sentence* tells."""
    return WENT_BACK if "went back" in sentence else LOSS


def advice(flag: str) -> str:
    """Say what can be done, what destroys nothing first."""
    fresh = "A new output and a new checkpoint take everything that the log holds, and leave this output as it is."
    if flag == WENT_BACK:
        return (
            f"{fresh} {WENT_BACK} reads all that the log holds into this output: nothing is skipped, and records at "
            "positions that it has already are there twice"
        )
    return f"{fresh} {LOSS} goes on with what is left; what is lost stays lost"
