"""Pages and whole episodes as self-contained HTML, made from what any transcript holds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

from arl_lightning.envs.webshop.pages import SEPARATOR

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 52rem; padding: 0 1rem; color: #222; }
article { border: 1px solid #ccc; border-radius: .6rem; margin: 0 0 .4rem; padding: .6rem 1rem 1rem; }
.wish { background: #fff6dd; border-radius: .4rem; padding: .5rem .8rem; }
.button { border: 1px solid #888; border-radius: 1rem; display: inline-block; margin: .15rem; padding: 0 .7rem; }
.pressed { background: #1b6e3c; border-color: #1b6e3c; color: #fff; }
.hit { border-top: 1px solid #ddd; display: block; padding: .3rem 0; }
.action { color: #1b6e3c; font-family: ui-monospace, monospace; margin: 0 0 1.2rem 1rem; }
p { margin: .3rem 0; }
"""


@dataclass(frozen=True, slots=True)
class Shown:
    """What a buyer saw and did: observation, admissible actions (None when not recorded), and the action, if any."""

    observation: str
    admissible_actions: Sequence[str] | None = None
    action: str | None = None


def page_html(shown: Shown) -> str:
    """An HTML document of one page; what can be clicked looks so, and what was clicked stands out."""
    return _document("WebShop page", [_page(shown)])


def episode_html(steps: Sequence[Shown], title: str = "WebShop episode") -> str:
    """An HTML document of an episode: each page, and below it the action taken there.

    Args:
        steps: in the order of play; the last one has no action.
        title: heading of the document.
    """
    return _document(title, [f"<h2>Page {number}</h2>{_page(step)}" for number, step in enumerate(steps, start=1)])


def _document(title: str, parts: Sequence[str]) -> str:
    head = f'<meta charset="utf-8"><title>{escape(title)}</title><style>{_STYLE}</style>'
    body = f"<h1>{escape(title)}</h1>{''.join(parts)}"
    return f'<!doctype html><html lang="en"><head>{head}</head><body>{body}</body></html>'


def _page(shown: Shown) -> str:
    taken = "" if shown.action is None else f'<p class="action">→ {escape(shown.action)}</p>'
    return f"<article>{''.join(_parts(shown))}</article>{taken}"


def _parts(shown: Shown) -> Iterator[str]:
    """Each visible text as a paragraph or a button; a product of the results takes title and price with it."""
    offered = {_argument(action) for action in shown.admissible_actions or ()}
    pressed = _argument(shown.action or "")
    texts = iter(shown.observation.split(SEPARATOR))
    for text in texts:
        if text == "Instruction:":
            yield f'<p class="wish">{escape(next(texts, ""))}</p>'
        elif text.lower() not in offered:
            yield f"<p>{escape(text)}</p>"
        else:
            state = " pressed" if text.lower() == pressed else ""
            yield f'<span class="button{state}">{escape(text)}</span>'


def _argument(action: str) -> str:
    """What stands between the brackets of an action, lower-cased; empty when it has none."""
    return action.partition("[")[2].strip().removesuffix("]").strip().lower()
