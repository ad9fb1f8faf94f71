"""`arl view`: one HTML file to look at a run with, which needs nothing but itself."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from arl_lightning.study.view_plots import arrange
from arl_lightning.study.view_reading import RunRecord, read_run
from arl_lightning.study.view_svg import LEFT, RIGHT, WIDTH, draw
from arl_lightning.types import ArlError


def view(run: str, output: str | None = None, max_mb: float = 8.0) -> None:
    """Writes one self-contained HTML file of a run: curves, events, and episodes token by token.

    The run may still be going; TensorBoard's writer keeps its last numbers for up to two minutes.

    Args:
        run: folder of the run.
        output: file to write; null for `view.html` in the run's folder.
        max_mb: megabytes that episodes may take; of more, those of every second, fourth, … epoch are shown. Curves
            take some 20 kB each at most.
    """
    if max_mb <= 0:
        raise ArlError(f"max_mb is {max_mb}: it must be above 0")
    folder = Path(run)
    record = read_run(folder, round(max_mb * 1e6))
    file = folder / "view.html" if output is None else Path(output)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(render(record), encoding="utf-8", errors="replace")
    print(f"wrote {file} ({file.stat().st_size / 1e6:.2f} MB)")


def render(record: RunRecord) -> str:
    """The page. What a run left is text to it and never markup: its one script and style are named by their hashes."""
    style, script = _part("view.css"), _part("view.js")
    shown = {
        # a seed has more digits than a number of JavaScript
        "episodes": [{**episode, "task_seed": str(episode["task_seed"])} for episode in record.episodes],
        "curves": {name: list(curve.items()) for name, curve in record.curves.items()},
        "plot": {"left": LEFT / WIDTH, "right": RIGHT / WIDTH},
    }
    return Template(_part("view.html")).substitute(
        style_hash=_hash(style),
        script_hash=_hash(script),
        style=style,
        script=script,
        name=escape(record.name),
        facts=_facts(record),
        sections=_sections(record),
        events=_events(record.events),
        left_out=f"{record.left_out} more episodes of other epochs did not fit." if record.left_out else "",
        config=escape(record.config),
        # in a script element nothing but `<` could end it
        shown=json.dumps(shown, separators=(",", ":")).replace("<", "\\u003c"),
    )


def _facts(record: RunRecord) -> str:
    facts = {"state": record.state, "last epoch": str(record.last_epoch)}
    for title, name in (("success, played", "train/success_rate"), ("success, held out", "val/success_rate")):
        curve = record.curves.get(name)
        if curve:
            best = max(curve, key=lambda epoch: curve[epoch])
            facts[title] = f"{list(curve.values())[-1]:.3f} (best {curve[best]:.3f} at epoch {best})"
    counts = {kind: sum(event["kind"] == kind for event in record.events) for kind in ("danger", "action")}
    facts["alarms"] = f"{counts['danger']} of danger, {counts['action']} actions"
    return "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(fact)}</dd></div>" for name, fact in facts.items())


def _sections(record: RunRecord) -> str:
    sections = arrange(record.curves)
    if not sections:
        return '<p class="note">Nothing has been logged yet.</p>'
    return "".join(
        f'<h3>{escape(section)}</h3><div class="plots">'
        + "".join(draw(plot, record.curves, record.events, record.last_epoch) for plot in plots)
        + "</div>"
        for section, plots in sections.items()
    )


def _events(events: Sequence[dict[str, Any]]) -> str:
    if not events:
        return '<tr><td colspan="3">none is recorded</td></tr>'
    return "".join(
        f'<tr data-epoch="{escape(str(event["epoch"]))}"><td>{escape(str(event["epoch"]))}</td>'
        f'<td><span class="kind {escape(str(event["kind"]))}">{escape(str(event["kind"]))}</span></td>'
        f"<td>{escape(str(event['text']))}</td></tr>"
        for event in events
    )


def _part(name: str) -> str:
    return (files("arl_lightning.study") / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
