"""A small writer of line charts with two logarithmic axes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

Points = Sequence[tuple[float, float]]

_WIDTH, _HEIGHT = 640, 400
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 20, 40, 90
_COLOURS = ("#777777", "#b07d2b", "#1b6ca8", "#2a8a4a", "#a83232")
_FONT = 'font-family="sans-serif" font-size="12"'


def chart(title: str, across: str, up: str, lines: Mapping[str, Points]) -> str:
    """Return the chart as the text of an SVG file; all coordinates are above zero."""
    every = [point for points in lines.values() for point in points]
    horizontal = _Axis([x for x, _ in every], _LEFT, _WIDTH - _RIGHT)
    vertical = _Axis([y for _, y in every], _HEIGHT - _BOTTOM, _TOP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
        _text(_WIDTH / 2, 22, title, "middle"),
        _text(_WIDTH / 2, _HEIGHT - _BOTTOM + 36, across, "middle"),
        _text(8, _TOP - 10, up, "start"),
    ]
    for tick in horizontal.ticks():
        x = horizontal.place(tick)
        parts.append(_line(x, _TOP, x, _HEIGHT - _BOTTOM))
        parts.append(_text(x, _HEIGHT - _BOTTOM + 18, f"{tick:,g}", "middle"))
    for tick in vertical.ticks():
        y = vertical.place(tick)
        parts.append(_line(_LEFT, y, _WIDTH - _RIGHT, y))
        parts.append(_text(_LEFT - 8, y + 4, f"{tick:,g}", "end"))
    for number, (name, points) in enumerate(lines.items()):
        colour = _COLOURS[number % len(_COLOURS)]
        places = [(horizontal.place(x), vertical.place(y)) for x, y in sorted(points)]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in places]
        x, y = _LEFT + (number % 2) * 280, _HEIGHT - 32 + (number // 2) * 16
        parts.append(f'<rect x="{x}" y="{y - 9}" width="16" height="4" fill="{colour}"/>')
        parts.append(_text(x + 22, y - 3, name, "start"))
    return "\n".join([*parts, "</svg>", ""])


class _Axis:
    """Maps values onto pixels, evenly by powers of ten."""

    def __init__(self, values: Sequence[float], first: float, last: float) -> None:
        self.low, self.high = math.floor(_log(min(values))), math.ceil(_log(max(values)))
        if self.low == self.high:
            self.high += 1
        self.first, self.last = first, last

    def place(self, value: float) -> float:
        share = (_log(value) - self.low) / (self.high - self.low)
        return self.first + share * (self.last - self.first)

    def ticks(self) -> list[float]:
        return [10.0**power for power in range(self.low, self.high + 1)]


def _log(value: float) -> float:
    # Rounded, for log10(1000) may miss 3 by a hair.
    return round(math.log10(value), 9)


def _text(x: float, y: float, words: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" {_FONT}>{escape(words)}</text>'


def _line(x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="#dddddd"/>'
