"""The page of `arl view` in a real browser: it draws, it colours, and text of a run does nothing in it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from arl_lightning.cli import main

if TYPE_CHECKING:
    from tests.study.conftest import Page

pytestmark = pytest.mark.slow

TOKENS = "[...document.querySelectorAll('.turn')][0].querySelectorAll('.token')"
COLOURS = f"[...{TOKENS}].map(token => getComputedStyle(token).backgroundColor)"

Browse = Callable[..., "Page"]


@pytest.fixture
def file(tmp_path: Path, leave_run: Callable[..., Path]) -> Path:
    """The page of a made-up run of six epochs."""
    folder = leave_run(tmp_path / "run")
    main(["view", str(folder)])
    return folder / "view.html"


def press(page: Page, name: str) -> None:
    names = page.ask("[...document.querySelectorAll('#colours button')].map(b => b.textContent)")
    page.click("#colours button", names.index(name))
    assert page.ask("[...document.querySelectorAll('#colours [aria-pressed=true]')].map(b => b.textContent)") == [name]


def test_the_page_draws_its_curves_and_asks_for_nothing_else(file: Path, browse: Browse) -> None:
    page = browse()
    page.open(file)
    assert page.ask("document.querySelectorAll('.plot').length") == 3  # success, KL, and the run's own
    boxes = page.ask("[...document.querySelectorAll('polyline.line')].map(l => l.getBoundingClientRect().width)")
    assert len(boxes) == 4
    assert all(width > 200 for width in boxes)
    assert page.ask("document.querySelectorAll('.mark.danger').length") == 3
    assert page.ask("document.documentElement.scrollWidth <= innerWidth")
    assert page.faults == []
    assert page.requests == [file.resolve().as_uri()]


def test_each_colouring_changes_the_colours_of_the_tokens(file: Path, browse: Browse) -> None:
    page = browse()
    page.open(file)
    seen = {"mask": page.ask(COLOURS)}
    assert seen["mask"][0] == seen["mask"][1] != seen["mask"][2]  # the third was dropped by the mask
    for name in ("advantage", "log-ratio", "log-prob", "entropy"):
        press(page, name)
        seen[name] = page.ask(COLOURS)
    assert len({tuple(colours) for colours in seen.values()}) == 5
    assert len(set(seen["advantage"])) == 1  # one turn has one advantage
    assert len(set(seen["log-ratio"])) == 3  # 0.02, −0.04, and one that is not finite
    press(page, "mask")
    assert page.ask(COLOURS) == seen["mask"]
    assert page.ask(f"{TOKENS}[1].title").split("\n")[1:] == [
        "log-prob -2",
        "log-ratio -0.04, ratio 0.9608",  # exp(−0.04)
        "advantage -1.5",
        "entropy 0.9",
        "in the policy term, clipped",
    ]
    assert page.faults == []


def test_epochs_and_episodes_are_chosen_by_click(file: Path, browse: Browse) -> None:
    page = browse()
    page.open(file)
    chosen = "document.getElementById('epoch').selectedOptions[0].textContent"
    assert page.ask(chosen) == "4 · train"  # the last one that was played
    page.click("#groups button", 1)
    pressed = "[...document.querySelectorAll('#groups [aria-pressed=true]')].map(b => b.textContent)"
    assert page.ask(pressed) == ["episode 1: score -0.1"]
    page.click("#before")
    assert page.ask(chosen) == "2 · val"
    assert page.ask("document.querySelectorAll('.token.out').length") == 0 + 1  # only that of the legend
    page.click("#events tbody tr", 0)
    assert page.ask(chosen) == "0 · train"
    assert page.ask("document.querySelectorAll('.turn').length") == 2
    assert page.faults == []


def test_pointing_at_a_plot_reads_all_of_them(file: Path, browse: Browse) -> None:
    page = browse()
    page.open(file)
    value = "document.querySelector('.plot li b').textContent"
    assert page.ask(value) == "0.5"
    x, y = page.ask(
        "(r => [r.x + r.width * 122 / 420, r.y + 40])(document.querySelector('svg').getBoundingClientRect())"
    )
    page.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
    assert page.ask(value) == "0.1"  # 122 is 50 + 360 · 1/5: epoch 1
    assert page.ask("document.querySelectorAll('.cursor.on').length") == 3


def test_text_of_the_run_does_nothing_but_show(file: Path, browse: Browse) -> None:
    page = browse()
    page.open(file)
    for name in ("advantage", "log-ratio", "mask"):
        press(page, name)
    assert page.ask("window.hacked === undefined")
    assert page.ask("document.querySelectorAll('img').length") == 0
    assert page.ask("document.querySelectorAll('script').length") == 2
    response = page.ask("document.querySelector('.response').textContent")
    assert response.startswith("a</script><script>window.hacked = 1</script><img src=x")
    assert page.ask("document.querySelector('#events tbody').textContent").count("</script>") == 2
    # and what the page's escaping should ever miss, its policy stops
    page.ask("document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=\"window.hacked = 1\">')")
    page.ask(
        "document.body.append(Object.assign(document.createElement('script'), {textContent: 'window.hacked = 1'}))"
    )
    assert page.ask("window.hacked === undefined")
    assert any("Content Security Policy" in fault for fault in page.faults)


def test_without_scripts_curves_and_events_are_still_there(file: Path, browse: Browse) -> None:
    page = browse()
    page.without_scripts()
    page.open(file)
    boxes = page.call("DOMSnapshot.captureSnapshot", computedStyles=["display"])
    names = [boxes["strings"][i].lower() for i in boxes["documents"][0]["nodes"]["nodeName"] if i >= 0]
    assert names.count("polyline") == 4
    assert "drift is 1.0" in " ".join(boxes["strings"])


@pytest.mark.parametrize(("scheme", "dark"), [("light", False), ("dark", True)])
def test_the_page_follows_the_reader_s_light_or_dark(scheme: str, dark: bool, file: Path, browse: Browse) -> None:
    page = browse(scheme=scheme)
    page.open(file)
    colour = page.ask("getComputedStyle(document.body).backgroundColor")
    brightness = sum(int(part) for part in colour.removeprefix("rgb(").removesuffix(")").split(","))
    assert (brightness < 3 * 64) == dark


def test_the_page_fits_a_telephone(file: Path, browse: Browse) -> None:
    page = browse(width=390, height=800)
    page.open(file)
    assert page.ask("document.documentElement.scrollWidth") == 390
