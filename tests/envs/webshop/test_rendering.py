from html.parser import HTMLParser

from arl_lightning.envs.webshop.environment import WebShopEnv
from arl_lightning.envs.webshop.rendering import Shown, episode_html, page_html


class Balance(HTMLParser):
    """Counts open elements and gathers the classes seen."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.classes: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.classes += [value for name, value in attrs if name == "class" and value]
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def parsed(document: str) -> Balance:
    balance = Balance()
    balance.feed(document)
    balance.close()
    assert balance.open == []
    return balance


def test_a_page_shows_wish_texts_and_buttons() -> None:
    shown = Shown("WebShop [SEP] Instruction: [SEP] a <b>bold</b> wish [SEP] Buy Now [SEP] text", ("click[buy now]",))
    document = page_html(shown)
    assert '<p class="wish">a &lt;b&gt;bold&lt;/b&gt; wish</p>' in document
    assert '<span class="button">Buy Now</span><p>text</p>' in document
    parsed(document)


def test_an_episode_shows_each_page_and_what_was_pressed_there() -> None:
    env = WebShopEnv(products=120, categories=3)
    observation, state = env.reset(seed=1)
    steps = []
    while actions := env.expert_actions():
        steps.append(Shown(observation, state["admissible_actions"], actions[0]))
        observation, _, _, _, state = env.step(actions[0])
    document = episode_html([*steps, Shown(observation)], title="One & only")
    seen = parsed(document).classes
    assert seen.count("wish") == len(steps) + 1
    assert seen.count("action") == len(steps)
    assert seen.count("button pressed") == len(steps) - 1  # all but the search
    assert "<h1>One &amp; only</h1>" in document
    assert "http" not in document


def test_the_environment_renders_the_present_page_when_asked_to() -> None:
    env = WebShopEnv(products=120, categories=3, render_mode="html")
    env.reset(seed=0)
    env.step(env.expert_actions()[0])
    document = env.render()
    assert document is not None
    assert parsed(document).classes.count("button") >= 11  # back to search and ten products
    silent = WebShopEnv(products=120, categories=3)
    silent.reset(seed=0)
    assert silent.render() is None
