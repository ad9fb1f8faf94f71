"""Plots as plain SVG, which shows without scripts and takes its colours from the page."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from arl_lightning.study.view_plots import Plot
from arl_lightning.study.view_reading import Curve

WIDTH, HEIGHT = 420, 190
LEFT, RIGHT, TOP, BOTTOM = 50, 410, 10, 166
MARKED = ("watch", "danger", "healthy", "action", "stop", "resume", "error")
"""Kinds of events that are drawn into the plots; the others only stand in the list."""
_MAX_POINTS = 600
_LOG_RANGE = 300.0


def draw(plot: Plot, curves: Mapping[str, Curve], events: Sequence[Mapping[str, Any]], last_epoch: int) -> str:
    """One plot with its legend; an epoch is a place on the x axis, an event a vertical line."""
    ends = [end for name in plot.names for end in plot.bands.get(name, ())]
    values = [value for name in (*plot.names, *ends) for value in curves[name].values()]
    scale = Scale(values, last_epoch)
    parts = [*_axes(scale), *_marks(scale, events)]
    legend = []
    for index, name in enumerate(plot.names):
        if name in plot.bands:
            low, high = (curves[end] for end in plot.bands[name])
            outline = scale.points(low) + scale.points(high)[::-1]
            parts.append(f'<polygon class="band s{index}" points="{_joined(outline)}"/>')
        points = scale.points(thin(curves[name], _MAX_POINTS))
        parts.append(f'<polyline class="line s{index}" points="{_joined(points)}"/>')
        if len(points) < 40:
            parts += [f'<circle class="dot s{index}" cx="{x:.1f}" cy="{y:.1f}" r="1.8"/>' for x, y in points]
        last = list(curves[name].values())[-1]
        legend.append(
            f'<li data-name="{escape(name)}"><i class="key s{index}"></i>{escape(name)} <b>{last:.4g}</b></li>'
        )
    title = f"{escape(plot.title)}{' <small>log scale</small>' if scale.log else ''}"
    return (
        f'<figure class="plot" data-last="{last_epoch}"><figcaption>{title}</figcaption>'
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(plot.title)}">{"".join(parts)}'
        f'<line class="cursor" x1="0" x2="0" y1="{TOP}" y2="{BOTTOM}"/></svg><ul>{"".join(legend)}</ul></figure>'
    )


class Scale:
    """Where epochs and values lie on the paper; logarithmic where positive values differ more than 300-fold.

    Args:
        values: all that is to be shown, at least one.
        last_epoch: right end of the x axis.
    """

    def __init__(self, values: Sequence[float], last_epoch: int) -> None:
        self.log = min(values) > 0 and max(values) / min(values) > _LOG_RANGE
        low, high = self._bend(min(values)), self._bend(max(values))
        room = 0.05 * (high - low) or max(abs(high), 1.0) * 0.1
        self.low, self.high = low - room, high + room
        self.last_epoch = max(last_epoch, 1)

    def x(self, epoch: float) -> float:
        """Horizontal place of an epoch."""
        return LEFT + (RIGHT - LEFT) * epoch / self.last_epoch

    def y(self, value: float) -> float:
        """Vertical place of a value."""
        return BOTTOM - (BOTTOM - TOP) * (self._bend(value) - self.low) / (self.high - self.low)

    def points(self, curve: Curve) -> list[tuple[float, float]]:
        """Places of a curve's points."""
        return [(self.x(epoch), self.y(value)) for epoch, value in curve.items()]

    def ticks(self) -> list[float]:
        """Some round values between the ends."""
        if not self.log:
            return _round_values(self.low, self.high, 5)
        first, last = math.ceil(self.low), math.floor(self.high)
        return [10.0**power for power in range(first, last + 1, max(1, (last - first) // 4))]

    def _bend(self, value: float) -> float:
        return math.log10(value) if self.log else value


def thin(curve: Curve, most: int) -> Curve:
    """The curve, or of each stretch of it the lowest and the highest point, so that no spike is lost."""
    if len(curve) <= most:
        return curve
    points = list(curve.items())
    size = math.ceil(2 * len(points) / most)
    stretches = [points[i : i + size] for i in range(0, len(points), size)]
    kept = {chosen for stretch in stretches for by in (min, max) for chosen in [by(stretch, key=lambda p: p[1])]}
    return dict(sorted(kept))


def _axes(scale: Scale) -> list[str]:
    parts = []
    for value in scale.ticks():
        y = scale.y(value)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="tick" x="{LEFT - 5}" y="{y + 3:.1f}" text-anchor="end">{value:g}</text>')
    for epoch in _round_values(0, scale.last_epoch, 6):
        if epoch == int(epoch):
            x = scale.x(epoch)
            parts.append(f'<text class="tick" x="{x:.1f}" y="{BOTTOM + 14}" text-anchor="middle">{epoch:g}</text>')
    return parts


def _marks(scale: Scale, events: Sequence[Mapping[str, Any]]) -> list[str]:
    return [
        f'<line class="mark {event["kind"]}" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{BOTTOM}">'
        f"<title>epoch {event['epoch']}, {event['kind']}: {escape(str(event['text']))}</title></line>"
        for event in events
        if event["kind"] in MARKED
        for x in [scale.x(min(event["epoch"], scale.last_epoch))]
    ]


def _round_values(low: float, high: float, about: int) -> list[float]:
    raw = (high - low) / about
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw)
    return [round(step * k, 12) for k in range(math.ceil(low / step), math.floor(high / step) + 1)]


def _joined(points: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
