"""The chart: callers against appends per second, a line for each policy; an SVG written by hand, axes logarithmic."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from xml.sax.saxutils import escape

from tests.benchmarks.results import Point

WIDTH, HEIGHT = 720, 440
LEFT, RIGHT, TOP, BOTTOM = 84, 132, 58, 62
COLORS = ("#0b5fa5", "#c2570c", "#2a7d3f", "#7a3e9d", "#555555")
"""Dark enough for thin lines on white, and distinct for colour-blind readers."""
MARKERS = ("circle", "square", "diamond", "triangle", "cross")


def svg(points: Sequence[Point], caption: str) -> str:
    """Return the whole document; *points* must not be empty."""
    return "\n".join(_lines(points, caption)) + "\n"


def _lines(points: Sequence[Point], caption: str) -> Iterator[str]:
    x = _Axis([point.callers for point in points], LEFT, WIDTH - RIGHT)
    y = _Axis([point.rate for point in points], HEIGHT - BOTTOM, TOP)
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        'font-family="system-ui, sans-serif" font-size="13" fill="#222222">'
    )
    yield "<title>Appends per second by number of waiting callers, for each persist policy</title>"
    yield f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>'
    yield f'<text x="{LEFT}" y="26" font-size="16" font-weight="600">Appends per second, 100 B each</text>'
    yield f'<text x="{LEFT}" y="44" fill="#666666" font-size="11">{escape(caption)}</text>'
    yield from _grid(x, y)
    for index, policy in enumerate(dict.fromkeys(point.policy for point in points)):
        line = sorted((point for point in points if point.policy == policy), key=lambda point: point.callers)
        yield from _series(policy, [(x.at(point.callers), y.at(point.rate)) for point in line], index)
    yield from _legend(list(dict.fromkeys(point.policy for point in points)))
    yield "</svg>"


class _Axis:
    """Whole decades, drawn from one pixel to another."""

    def __init__(self, values: Sequence[float], begin: float, end: float) -> None:
        self.first = math.floor(math.log10(min(values)))
        self.last = max(math.ceil(math.log10(max(values))), self.first + 1)
        self.begin, self.end = begin, end

    def at(self, value: float) -> float:
        """Return the pixel of *value*."""
        share = (math.log10(value) - self.first) / (self.last - self.first)
        return self.begin + share * (self.end - self.begin)

    def ticks(self) -> list[int]:
        """Return the powers of ten."""
        return [10**power for power in range(self.first, self.last + 1)]


def _grid(x: _Axis, y: _Axis) -> Iterator[str]:
    for tick in y.ticks():
        at = y.at(tick)
        yield f'<line x1="{x.begin}" y1="{at:.1f}" x2="{x.end}" y2="{at:.1f}" stroke="#dddddd"/>'
        yield f'<text x="{x.begin - 10}" y="{at + 4:.1f}" text-anchor="end">{tick:,}</text>'
    for tick in x.ticks():
        at = x.at(tick)
        yield f'<line x1="{at:.1f}" y1="{y.end}" x2="{at:.1f}" y2="{y.begin}" stroke="#eeeeee"/>'
        yield f'<text x="{at:.1f}" y="{y.begin + 20}" text-anchor="middle">{tick:,}</text>'
    yield f'<line x1="{x.begin}" y1="{y.begin}" x2="{x.end}" y2="{y.begin}" stroke="#444444"/>'
    middle = (x.begin + x.end) / 2
    yield f'<text x="{middle:.1f}" y="{HEIGHT - 18}" text-anchor="middle">callers that wait at the same time</text>'


def _series(policy: str, places: Sequence[tuple[float, float]], index: int) -> Iterator[str]:
    color = COLORS[index % len(COLORS)]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    yield f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="2.5" stroke-linejoin="round"/>'
    for x, y in places:
        yield _marker(MARKERS[index % len(MARKERS)], x, y, color, policy)


def _legend(policies: Sequence[str]) -> Iterator[str]:
    left = WIDTH - RIGHT + 22
    for index, policy in enumerate(policies):
        color, at = COLORS[index % len(COLORS)], TOP + 16 + 24 * index
        yield f'<line x1="{left}" y1="{at}" x2="{left + 20}" y2="{at}" stroke="{color}" stroke-width="2.5"/>'
        yield _marker(MARKERS[index % len(MARKERS)], left + 10, at, color, policy)
        yield f'<text x="{left + 28}" y="{at + 4}">{escape(policy)}</text>'


def _marker(shape: str, x: float, y: float, color: str, title: str) -> str:
    paths = {
        "square": f"M{x - 4:.1f},{y - 4:.1f}h8v8h-8z",
        "diamond": f"M{x:.1f},{y - 5.5:.1f}l5.5,5.5l-5.5,5.5l-5.5,-5.5z",
        "triangle": f"M{x:.1f},{y - 5:.1f}l5,9h-10z",
        "cross": f"M{x - 4:.1f},{y - 4:.1f}l8,8m0,-8l-8,8",
    }
    title = f"<title>{escape(title)}</title>"
    if shape == "circle":
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4.5" fill="{color}">{title}</circle>'
    return f'<path d="{paths[shape]}" fill="{color}" stroke="{color}">{title}</path>'
