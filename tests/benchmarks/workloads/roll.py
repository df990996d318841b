"""Rolling to the next segment: no caller should notice."""

from __future__ import annotations

from mrecordlog_async.bench.drive import duration, payloads
from mrecordlog_async.options import GIB, KIB
from tests.benchmarks.results import Row
from tests.benchmarks.scale import Bench
from tests.benchmarks.subject import (
    Round,
    cpu_microseconds_of,
    latencies_of,
    rate_of,
    ratio_of,
    raw_disk,
    raw_latencies_of,
    raw_rate_of,
    subject,
)
from tests.benchmarks.targets import Check, JudgedRow, at_most

CALLERS = 16
PAYLOAD_BYTES = 16 * KIB
ROLLS_MIN = 3
ROUNDS_MAX = 40
"""On a slow disk more rounds are run, up to this many, until enough segments were full."""


async def run(bench: Bench) -> list[Row]:
    """Run the same callers on a log that rolls several times per second and on one that never does, in turn."""
    scale = bench.scale
    kept: list[Round] = []
    rolling: list[Round] = []
    texts = payloads(CALLERS, PAYLOAD_BYTES)
    async with (
        raw_disk(bench) as raw,
        subject(bench, raw, "log-kept", segment_bytes=4 * GIB) as calm,
        subject(bench, raw, "log-rolling", segment_bytes=scale.roll_segment_bytes) as busy,
    ):
        while len(rolling) < scale.rounds or (busy.log.stats().rolls < ROLLS_MIN and len(rolling) < ROUNDS_MAX):
            bench.say(f"without and with rolls, round {len(rolling) + 1}")
            kept.append(await calm.round(calm.one_by_one(texts), scale.seconds))
            rolling.append(await busy.round(busy.one_by_one(texts), scale.seconds))
        rolls, roll = busy.log.stats().rolls, busy.log.stats().roll_seconds
    p99, longest = latencies_of(kept).p99, latencies_of(rolling).longest
    check = at_most(
        "roll: no append waits longer than 3 × the p99 of a run without a roll",
        longest / p99,
        3.0,
        f"{longest / p99:.1f} × ({duration(longest)} over {duration(p99)}; batches that rolled took at most "
        f"{duration(roll.quantile(1.0))})",
        of_times=True,  # one append decides it: the longest of a minute
    )
    return [
        _row(f"{CALLERS} callers, 16 KiB, no roll", kept, ()),
        _row(f"{CALLERS} callers, 16 KiB, {rolls} rolls", rolling, (check,)),
    ]


def _row(what: str, rounds: list[Round], checks: tuple[Check, ...]) -> Row:
    raw = raw_latencies_of(rounds)
    return JudgedRow(
        "roll",
        what,
        rate_of(rounds),
        "records/s",
        raw=raw_rate_of(rounds),
        ratio=ratio_of(rounds),
        latency=latencies_of(rounds),
        raw_latency=raw,
        cpu_microseconds=cpu_microseconds_of(rounds),
        checks=checks,
        note=f"longest {duration(latencies_of(rounds).longest)}; a single write + sync of the raw disk took up to "
        f"{duration(raw.longest)}",
    )
