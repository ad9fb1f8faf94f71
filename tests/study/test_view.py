"""`arl view`: what it reads of a run, how it arranges and draws it, and that no text of a run becomes markup."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from torch.utils.tensorboard import SummaryWriter

from arl_lightning.cli import main
from arl_lightning.study.view_plots import Plot, arrange
from arl_lightning.study.view_reading import read_curves, read_run, thin
from arl_lightning.study.view_svg import Scale, draw
from arl_lightning.study.view_svg import thin as thin_curve

LeaveRun = Callable[..., Path]


class Markup(HTMLParser):
    """All tags of a page, and what its attributes would load or lead to."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str | None] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [value for name, value in attrs if name in ("src", "href", "action", "data", "srcset", "style")]


def shown(page: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="shown">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    read: dict[str, Any] = json.loads(found[1])
    return read


def test_the_view_is_one_file_that_names_no_other_and_holds_no_markup_of_the_run(
    tmp_path: Path, leave_run: LeaveRun, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = leave_run(tmp_path / "run")
    main(["view", str(folder)])
    page = (folder / "view.html").read_text(encoding="utf-8")
    assert capsys.readouterr().out.startswith(f"wrote {folder / 'view.html'} (")
    markup = Markup(page)
    assert markup.links == ["#curves", "#events", "#episodes"]
    assert markup.tags.count("script") == 2  # the data and the one script
    assert {"img", "link", "iframe", "object"}.isdisjoint(markup.tags)
    assert "default-src 'none'; style-src 'sha256-" in page
    # names, events and configuration as text; `$name` of the run is not filled in
    assert page.count("&lt;/script&gt;") >= 4
    assert "$name" in page
    data = shown(page)
    assert data["episodes"][0]["task_seed"] == "4611686018427387905"  # 2**62 + 1, all digits
    assert data["episodes"][0]["turns"][0]["tokens"][1].startswith("</script><script>")
    assert data["curves"]["train/success_rate"][5] == [5, 0.5]


def test_the_output_may_lie_elsewhere(tmp_path: Path, leave_run: LeaveRun) -> None:
    main(["view", str(leave_run(tmp_path / "run")), "--output", str(tmp_path / "new" / "page.html")])
    assert (tmp_path / "new" / "page.html").is_file()
    assert not (tmp_path / "run" / "view.html").exists()


def refused(command: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as stop:
        main(command)
    assert stop.value.code == 1
    return capsys.readouterr().err.strip()


def test_wrong_folders_are_told_in_one_sentence(
    tmp_path: Path, leave_run: LeaveRun, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = tmp_path / "runs"
    assert refused(["view", str(runs)], capsys) == (
        f"arl: there is no folder {str(runs)!r}: name the folder of a run, its trainer.default_root_dir"
    )
    runs.mkdir()
    assert refused(["view", str(runs)], capsys) == (
        f"arl: {str(runs)!r} holds no run: name the folder of a run, its default_root_dir"
    )
    leave_run(runs / "a")
    assert refused(["view", str(runs)], capsys) == f"arl: {str(runs)!r} holds no run: name one of {runs / 'a'}"
    assert refused(["view", str(runs / "a"), "--max_mb", "0"], capsys) == "arl: max_mb is 0.0: it must be above 0"


def test_a_run_that_has_only_begun_can_be_looked_at(tmp_path: Path) -> None:
    SummaryWriter(str(tmp_path)).close()
    (tmp_path / "events.jsonl").write_text('{"epoch": 0, "kind": "begin", "text": "the run begins"}\n{"epo')
    main(["view", str(tmp_path)])
    page = (tmp_path / "view.html").read_text()
    assert "under way, or killed" in page
    assert "Nothing has been logged yet." in page


def test_an_epoch_that_was_logged_twice_has_its_later_value(tmp_path: Path) -> None:
    for values in ({0: 0.1, 1: 0.2}, {1: 0.3, 2: float("nan")}):  # killed in epoch 1, resumed
        with SummaryWriter(str(tmp_path), filename_suffix=str(len(list(tmp_path.iterdir())))) as log:
            for epoch, value in values.items():
                log.add_scalar("epoch", epoch, 10 * epoch)
                log.add_scalar("train/loss", value, 10 * epoch)
    curves = read_curves(tmp_path)
    assert list(curves) == ["train/loss"]
    assert curves["train/loss"] == pytest.approx({0: 0.1, 1: 0.3})  # what is not finite is left out


def test_too_many_episodes_are_thinned_by_whole_epochs_from_the_last_one() -> None:
    episodes = [{"epoch": epoch, "text": "x" * 70} for epoch in (0, 10, 20, 30) for _ in range(2)]
    size = len(json.dumps(episodes[-1]))  # 97 bytes, and two less in epoch 0
    kept = {limit: [e["epoch"] for e in thin(episodes, limit * size)] for limit in (8, 4, 2, 1, 0)}
    assert kept == {8: [0, 0, 10, 10, 20, 20, 30, 30], 4: [10, 10, 30, 30], 2: [30, 30], 1: [30], 0: [30]}


def test_what_was_left_out_is_counted(tmp_path: Path, leave_run: LeaveRun) -> None:
    folder = leave_run(tmp_path, epochs=6)  # 3 episodes in each of epochs 0, 2, 4
    whole = read_run(folder, 10**9)
    assert (len(whole.episodes), whole.left_out) == (9, 0)
    part = read_run(folder, 1)
    assert (len(part.episodes), part.left_out) == (1, 8)
    assert part.episodes[0]["epoch"] == 4


def test_curves_of_one_subject_and_like_size_share_a_plot() -> None:
    sizes = {
        "train/success_rate": 0.4,
        "val/success_rate": 0.5,
        "val/success_rate_low": 0.4,
        "val/success_rate_high": 0.6,
        "val/t06/success_rate": 0.7,
        "train/completions/mean_length": 40.0,
        "val/t06/completions/mean_length": 30.0,
        "train/completions/cut_ratio": 0.1,
        "train/completions/repeat_ratio": 0.0,
        "train/kl": 0.1,
        "train/kl_monitor/sampler": 0.05,
        "time/update_s": 2.0,
        "mine/thing": 1.0,
    }
    sections = arrange({name: {0: size} for name, size in sizes.items()})
    arranged = {section: [(plot.title, plot.names) for plot in plots] for section, plots in sections.items()}
    assert arranged == {
        "Outcome": [("success rate", ("train/success_rate", "val/success_rate", "val/t06/success_rate"))],
        "Answers": [
            # what is always 0 fits anywhere; 0.1 beside 40 would be a flat line
            ("completions", ("train/completions/mean_length", "val/t06/completions/mean_length")),
            ("completions", ("train/completions/cut_ratio", "train/completions/repeat_ratio")),
        ],
        "Update": [("kl", ("train/kl", "train/kl_monitor/sampler"))],
        "Cost": [("time update s", ("time/update_s",))],
        "More": [("mine thing", ("mine/thing",))],
    }
    bands = sections["Outcome"][0].bands
    assert bands == {"val/success_rate": ("val/success_rate_low", "val/success_rate_high")}


def test_points_lie_where_their_values_say() -> None:
    scale = Scale([0.0, 1.0], last_epoch=10)
    assert (scale.x(0), scale.x(5), scale.x(10)) == (50, 230, 410)
    # 5 % of room at each end: the paper is 156 high, and 1.1 units
    assert (scale.y(0.0), scale.y(1.0)) == pytest.approx((166 - 156 * 0.05 / 1.1, 166 - 156 * 1.05 / 1.1))
    assert scale.ticks() == [0.0, 0.5, 1.0]
    wide = Scale([0.001, 10.0], last_epoch=1)
    assert wide.log
    assert wide.y(0.1) == pytest.approx(166 - 156 / 2)  # midway between 10^-3 and 10^1
    assert wide.ticks() == [0.001, 0.01, 0.1, 1.0, 10.0]


@pytest.mark.parametrize("value", [0.0, 3.0, -2e-9])
def test_a_curve_without_spread_is_drawn_inside_the_paper(value: float) -> None:
    scale = Scale([value], last_epoch=0)
    assert 10 < scale.y(value) < 166
    assert scale.ticks()


def test_a_plot_has_line_band_and_the_marks_of_events() -> None:
    curves = {name: {0: 0.0, 2: high} for name, high in (("v", 1.0), ("v_low", 0.5), ("v_high", 1.5))}
    events = [
        {"epoch": 1, "kind": "danger", "text": "a <b>"},
        {"epoch": 1, "kind": "filter", "text": "only in the list"},
    ]
    svg = draw(Plot("v", ("v",), {"v": ("v_low", "v_high")}), curves, events, last_epoch=2)
    # 0 and 1.5 with 5 % of room: 1 is at 166 − 156·1.075/1.65
    assert '<polyline class="line s0" points="50.0,158.9 410.0,64.4"/>' in svg
    assert svg.count("<polygon") == 1
    assert svg.count('<line class="mark') == 1
    assert '<line class="mark danger" x1="230.0" x2="230.0"' in svg
    assert "a &lt;b&gt;" in svg


def test_a_long_curve_keeps_its_spikes() -> None:
    curve = dict.fromkeys(range(5000), 0.0) | {3333: 9.0, 4444: -9.0}
    kept = thin_curve(curve, 100)
    assert len(kept) <= 100
    assert (kept[3333], kept[4444]) == (9.0, -9.0)
