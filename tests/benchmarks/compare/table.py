"""The table of a comparison: one line per version, with medians of the rounds and ratios to the first version."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from statistics import median

from mrecordlog_async.bench.drive import duration
from tests.benchmarks.compare.figures import Figures
from tests.benchmarks.compare.process import Contestant
from tests.benchmarks.compare.suite import Row
from tests.benchmarks.report import aligned, amount
from tests.benchmarks.targets import spread

HEADER = ("version", "rate", "p50", "p99", "longest", "µs CPU", "of raw", "p50 / raw")
RATIO_HEADER = ("ratio to the first version (95 % confidence)", "rate", "p50", "p99", "CPU")


def text(row: Row, contestants: Sequence[Contestant]) -> Iterator[str]:
    """Yield the table of *row*, line by line."""
    yield f"{row.name}: {row.what}; median of {len(contestants[0].rounds)} rounds"
    yield from aligned([HEADER, *(_figures(row, each) for each in contestants)], left=1)
    if len(contestants) > 1:
        yield ""
        yield from aligned([RATIO_HEADER, *(_ratios(each, contestants[0]) for each in contestants[1:])], left=1)


def ratios(rounds: Sequence[Figures], base: Sequence[Figures], figure: Callable[[Figures], float]) -> list[float]:
    """Return the ratio of each round; nothing where the figure was not measured."""
    pairs = [(figure(one), figure(other)) for one, other in zip(rounds, base, strict=True)]
    return [value / of for value, of in pairs if of]


def _figures(row: Row, contestant: Contestant) -> tuple[str, ...]:
    rounds = contestant.rounds
    of_raw = [share for one in rounds if (share := one.of_raw) is not None]
    over_raw = [over for one in rounds if (over := one.p50_over_raw) is not None]
    return (
        contestant.version.label,
        amount(median(one.rate for one in rounds), f"{row.per_second}/s"),
        _duration(median(one.p50 for one in rounds)),
        _duration(median(one.p99 for one in rounds)),
        _duration(max(seconds for one in rounds for seconds in one.latencies or [0.0])),
        f"{median(one.cpu_microseconds for one in rounds):.2f}",
        f"{median(of_raw):.0%}" if of_raw else "",
        f"{median(over_raw):.2f} ×" if over_raw else "",
    )


def _ratios(contestant: Contestant, base: Contestant) -> tuple[str, ...]:
    kinds: tuple[Callable[[Figures], float], ...] = (
        lambda one: one.rate,
        lambda one: one.p50,
        lambda one: one.p99,
        lambda one: one.cpu_microseconds,
    )
    return (contestant.version.label, *(_ratio(ratios(contestant.rounds, base.rounds, kind)) for kind in kinds))


def _ratio(found: Sequence[float]) -> str:
    return spread(found, lambda ratio: f"{ratio:.2f} ×") if found else ""


def _duration(seconds: float) -> str:
    return duration(seconds) if seconds else ""
