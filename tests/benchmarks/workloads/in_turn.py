"""A row of `compare` as a workload: this log, and others next to it, each in its own process and measured in turn."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from statistics import median

from tests.benchmarks.compare.command import make_peers, measure
from tests.benchmarks.compare.contenders import THIS_LOG
from tests.benchmarks.compare.place import Version
from tests.benchmarks.compare.process import Contestant
from tests.benchmarks.compare.suite import chosen
from tests.benchmarks.latency import Latencies
from tests.benchmarks.results import Row, median_ratio
from tests.benchmarks.scale import Bench


async def measured(bench: Bench, name: str, others: Sequence[str] = ()) -> list[Contestant]:
    """Measure this log and then the *others* in the row *name*; who is not installed is left out."""
    directory = bench.path(f"place-{name}")
    versions = await asyncio.to_thread(make_peers, [THIS_LOG, *others], directory)
    return await measured_versions(bench, name, versions)


async def measured_versions(bench: Bench, name: str, versions: Sequence[Version]) -> list[Contestant]:
    """Measure *versions* in the row *name*."""
    scale, (row,) = bench.scale, chosen([name])
    return await asyncio.to_thread(measure, row, versions, bench.directory, scale.rounds, scale.seconds, scale.at_most)


def row_of(workload: str, contestant: Contestant, first: Contestant, note: str = "") -> Row:
    """Return what was measured of *contestant*, with this log's lead over it in the note."""
    (row,) = chosen([contestant.row])
    rounds = contestant.rounds
    latencies = [seconds for one in rounds for seconds in one.latencies]
    raw_latencies = [seconds for one in rounds for seconds in one.raw_latencies]
    of_raw = [share for one in rounds if (share := one.of_raw) is not None]
    over_raw = [over for one in rounds if (over := one.p50_over_raw) is not None]
    return Row(
        workload,
        f"{contestant.version.label}, {row.what}",
        median(one.rate for one in rounds),
        f"{row.per_second}/s",
        raw=median(one.rate / share for one, share in zip(rounds, of_raw, strict=True)) if of_raw else None,
        ratio=median(of_raw) if of_raw else None,
        ratios=tuple(of_raw),
        latency=Latencies.of(latencies) if latencies else None,
        raw_latency=Latencies.of(raw_latencies) if raw_latencies else None,
        latency_ratio=median(over_raw) if over_raw else None,
        cpu_microseconds=median(one.cpu_microseconds for one in rounds),
        note=note or _lead_note(contestant, first),
    )


def lead(first: Contestant, other: Contestant) -> float:
    """Return how many times the rate of *other* that of *first* is; the median of the rounds."""
    return median(leads(first, other))


def leads(first: Contestant, other: Contestant) -> list[float]:
    """Return how many times the rate of *other* that of *first* is, in each round."""
    return [rate / base for rate, base in zip(_rates(first), _rates(other), strict=True)]


def _lead_note(contestant: Contestant, first: Contestant) -> str:
    if contestant is first:
        return ""
    cpu = median_ratio(_cpu(first), _cpu(contestant))
    return (
        f"{first.version.label} in the same rounds: {lead(first, contestant):.2f} × the rate, {cpu:.2f} × the CPU time"
    )


def _rates(contestant: Contestant) -> list[float]:
    return [one.rate for one in contestant.rounds]


def _cpu(contestant: Contestant) -> list[float]:
    return [one.cpu_microseconds for one in contestant.rounds]
