"""Shopping in text: search, look, choose, buy what an instruction asks for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import gymnasium
from gymnasium.error import ResetNeeded
from gymnasium.spaces import Text

from arl_lightning.envs.webshop.expert import Plan, make_plan, next_action
from arl_lightning.envs.webshop.goals import Goal
from arl_lightning.envs.webshop.pages import (
    INVALID_SENTENCE,
    SEPARATOR,
    Page,
    after,
    clickables,
    observation,
    observation_limits,
)
from arl_lightning.envs.webshop.rendering import Shown, page_html
from arl_lightning.envs.webshop.reward import judge
from arl_lightning.envs.webshop.shop import ShopSpec, open_shop
from arl_lightning.types import ArlError

_LONGEST_ACTION = 1000


def sparse_reward(graded_reward: float) -> float:
    """1 for a purchase with nothing missing, else 0: the published setting of training."""
    return float(graded_reward == 1)


def graded_reward(graded_reward: float) -> float:
    """What the purchase got right, from 0 to 1."""
    return graded_reward


_REWARDS: dict[str, Callable[[float], float]] = {"sparse": sparse_reward, "graded": graded_reward}


class WebShopEnv(gymnasium.Env[str, str]):
    """A web shop with the visible texts of a page as observation and `search[words]`, `click[text]` as actions.

    The search page leads to pages of results, they to products, a product to its description, features and reviews;
    `click[buy now]` ends the episode. Any other text than an action that the page offers (case and outer blanks
    aside) is invalid, leads nowhere, and counts as a step. A seed names a goal: seeds from 0 on name different goals
    until the split has no more, and `options={"instruction": text}` plays the goal with that instruction.
    Beside the usual entries, `info["graded_reward"]` is what the purchase got right, from 0 to 1, and 0 before it; 100
    times its mean is the published score, and `success` means 1. `info["admissible_actions"]` lists all clicks; of the
    searches, which nobody can list, it names one: the instruction word for word, which tells nothing new.

    Goals differ between splits in what is wanted (kind and attributes), never only in option, price or wording.
    Synthetic goals can all be met, each by the product from which it was made; human goals may be out of reach.

    Args:
        split: goals to draw from: `train`, `validation`, `test`, `demonstration`, or `all`.
        catalogue: path of a JSON list of products in the published format; None for a synthetic catalogue.
        attributes: path of the JSON object from asin to `{"attributes": [...]}` for a catalogue file.
        goals: path of the JSON object from asin to a list of human instructions for a catalogue file; None for goals
            made from the products' attributes, options and prices.
        products: size of the synthetic catalogue, 1 to 100,000.
        categories: kinds of products in the synthetic catalogue, 1 to 45, None for all. One or two kinds with a hundred
            products make a shop for tiny models.
        catalogue_seed: seed of synthetic catalogue, goals and price limits, for all splits alike.
        goals_per_product: most goals made from one product; they differ in attributes, options or limit.
        max_steps: steps after which an episode without purchase is truncated.
        reward: `sparse` pays for a purchase with nothing missing only, `graded` pays what it got right.
        success_reward: reward of a purchase with nothing missing; a graded one earns its share of it.
        results_per_page: products on a page of results.
        most_results: most products that a search finds.
        render_mode: `html` for a document that shows the present page, None for none.

    Source: WebShop, arXiv:2207.01206; re-created from its description, without its code and data.
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["html"], "render_fps": 1}  # type: ignore[misc]

    def __init__(
        self,
        split: str = "all",
        catalogue: str | None = None,
        attributes: str | None = None,
        goals: str | None = None,
        products: int = 5000,
        categories: int | None = None,
        catalogue_seed: int = 0,
        goals_per_product: int = 2,
        max_steps: int = 15,
        reward: str = "sparse",
        success_reward: float = 10.0,
        results_per_page: int = 10,
        most_results: int = 50,
        render_mode: str | None = None,
    ) -> None:
        if reward not in _REWARDS:
            raise ArlError(f"WebShop has no reward {reward!r}: choose {' or '.join(_REWARDS)}.")
        if max_steps < 1:
            raise ArlError(f"WebShop needs max_steps >= 1, not {max_steps}.")
        if render_mode is not None and render_mode not in self.metadata["render_modes"]:
            raise ArlError(f"WebShop does not render as {render_mode!r}: choose html or null.")
        self.split = split
        self.shop = open_shop(
            ShopSpec(
                catalogue=catalogue,
                attributes=attributes,
                goals=goals,
                products=products,
                categories=categories,
                catalogue_seed=catalogue_seed,
                goals_per_product=goals_per_product,
                results_per_page=results_per_page,
                most_results=most_results,
            )
        )
        self.shop.goal(split, 0)  # fails here rather than in an episode when the split is unknown or empty
        self.max_steps = max_steps
        self.success_reward = success_reward
        self.render_mode = render_mode
        length, charset = observation_limits(self.shop)
        self.observation_space = Text(length, charset=charset)
        self.action_space = Text(_LONGEST_ACTION, charset=charset)
        self._reward = _REWARDS[reward]
        self._goal: Goal | None = None
        self._page = Page()
        self._plan: Plan | None = None
        self._steps = 0
        self._graded_reward = 0.0

    @property
    def goal(self) -> Goal:
        """What is wanted in this episode.

        Raises:
            ResetNeeded: nothing before the first reset.
        """
        if self._goal is None:
            raise ResetNeeded("WebShop has no goal before its first reset.")
        return self._goal

    @property
    def page(self) -> Page:
        """The present page."""
        return self._page

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """The search page with the goal of `seed`, or of the next seed that this environment's own generator draws.

        Args:
            seed: names the goal, at least 0.
            options: `instruction`, that of a goal of any split, is played in place of the seed's.
        """
        super().reset(seed=seed)
        self._goal = self._chosen_goal(seed, (options or {}).get("instruction"))
        self._page, self._plan, self._steps, self._graded_reward = Page(), None, 0, 0.0
        return self._observation(valid=True), self._state(valid=True)

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """The page that the action leads to; for an invalid one the same page, one step later.

        Raises:
            ResetNeeded: the episode has not begun or is over; a second purchase would be paid twice.
        """
        goal = self.goal
        if self._over:
            raise ResetNeeded("This WebShop episode is over: reset before the next step.")
        page = after(self.shop, self._page, action)
        self._page = self._page if page is None else page
        self._steps += 1
        bought = self._page.kind == "done"
        if bought:
            self._graded_reward = judge(goal, self._page.item, self._page.chosen).graded_reward
        valid = page is not None
        reward = self.success_reward * self._reward(self._graded_reward)
        truncated = not bought and self._steps >= self.max_steps
        return self._observation(valid), reward, bought, truncated, self._state(valid)

    def expert_actions(self) -> tuple[str, ...]:
        """One action that leads to a purchase of the best reward within the expert's reach; none after the purchase.

        It goes the expert's way, which need not be the shortest, and returns to it from any page.
        """
        goal = self.goal
        if self._over:
            return ()
        self._plan = self._plan or make_plan(self.shop, goal)
        action = next_action(self.shop, goal, self._plan, self._page)
        return () if action is None else (action,)

    def render(self) -> str | None:
        """A self-contained HTML document of the present page, or None without `render_mode`."""
        if self.render_mode is None:
            return None
        return page_html(Shown(self._observation(valid=True), self._admissible_actions()))

    @property
    def _over(self) -> bool:
        return self._page.kind == "done" or self._steps >= self.max_steps

    def _chosen_goal(self, seed: int | None, instruction: str | None) -> Goal:
        if instruction is None:
            return self.shop.goal(self.split, int(self.np_random.integers(2**31)) if seed is None else seed)
        for goal in self.shop.goals["all"]:
            if goal.instruction == instruction:
                return goal
        raise ArlError(f"This WebShop has no goal with the instruction {instruction!r}.")

    def _observation(self, valid: bool) -> str:
        shown = observation(self.shop, self._page, self.goal, self._graded_reward)
        return shown if valid else SEPARATOR.join((shown, INVALID_SENTENCE))

    def _admissible_actions(self) -> tuple[str, ...]:
        if self._page.kind == "search":
            return (f"search[{self.goal.instruction}]",)
        return tuple(f"click[{text}]" for text in clickables(self.shop, self._page))

    def _state(self, valid: bool) -> dict[str, Any]:
        page = self._page
        asin = page.product.asin if page.product else None
        return {
            "success": self._graded_reward == 1,
            "state_key": (self.goal.instruction, page.kind, page.query, page.number, asin, page.chosen),
            "admissible_actions": self._admissible_actions(),
            "task_type": f"webshop-{self.goal.target.category}",
            "action_valid": valid,
            "graded_reward": self._graded_reward,
        }
