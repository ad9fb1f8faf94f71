import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from arl_lightning.envs.webshop.catalogue import written
from arl_lightning.envs.webshop.pages import Page, after, clickables, listed, observation, observation_limits
from arl_lightning.envs.webshop.shop import Shop, ShopSpec, open_shop
from arl_lightning.envs.webshop.synthetic import synthetic_records

WISH = "WebShop [SEP] Instruction: [SEP] Get a shirt, price lower than 30 dollars [SEP] "


@pytest.fixture
def shop(tmp_path: Path, record: Any) -> Shop:
    """Twelve shirts, ten a page, the first as in the conftest, the others bare; one goal, for the first."""
    bare = {"customization_options": None, "small_description": None, "full_description": None, "pricing": "$5"}
    records = [record(), *(record(asin=f"C{number:02d}", name="Plain shirt", **bare) for number in range(11))]
    catalogue, attributes = written(records, {}, str(tmp_path))
    goals = tmp_path / "goals.json"
    goals.write_text(json.dumps({"B01": [{"instruction": "Get a shirt, price lower than 30 dollars"}]}))
    return open_shop(ShopSpec(catalogue, attributes, str(goals)))


def walk(shop: Shop, *actions: str, start: Page | None = None) -> Page:
    page = start or Page()
    for action in actions:
        following = after(shop, page, action)
        assert following is not None, f"{action} on {page}"
        page = following
    return page


def shown(shop: Shop, page: Page, graded_reward: float = 0.0) -> str:
    text = observation(shop, page, shop.goals["all"][0], graded_reward)
    assert text.startswith(WISH)
    return text.removeprefix(WISH)


def test_the_search_page_shows_the_wish_and_offers_no_click(shop: Shop) -> None:
    assert shown(shop, Page()) == "Search"
    assert clickables(shop, Page()) == ()


def test_results_come_ten_a_page_with_price_and_ways_on(shop: Shop) -> None:
    first = walk(shop, "search[Shirts!]")
    assert first.query == "shirt"
    assert [product.asin for product in listed(shop, first)] == [f"C{number:02d}" for number in range(10)]
    assert shown(shop, first).startswith(
        "Back to Search [SEP] Page 1 (Total results: 12) [SEP] Next > [SEP] C00 [SEP] Plain shirt [SEP] $5.00 [SEP] C01"
    )
    assert clickables(shop, first)[:3] == ("back to search", "next >", "c00")
    second = walk(shop, "click[Next >]", start=first)
    assert shown(shop, second) == (
        "Back to Search [SEP] Page 2 (Total results: 12) [SEP] < Prev [SEP] C10 [SEP] Plain shirt [SEP] $5.00"
        " [SEP] B01 [SEP] Fennix cotton shirt for men [SEP] $19.50 to $24.00"
    )
    assert clickables(shop, second) == ("back to search", "< prev", "c10", "b01")
    assert walk(shop, "click[< prev]", start=second) == first
    assert after(shop, first, "click[< prev]") is None
    assert after(shop, second, "click[next >]") is None


def test_a_search_without_hits_is_a_page_too(shop: Shop) -> None:
    page = walk(shop, "search[submarine]")
    assert shown(shop, page) == "Back to Search [SEP] Page 1 (Total results: 0)"
    assert clickables(shop, page) == ("back to search",)


def test_an_item_page_shows_options_title_price_and_buttons(shop: Shop) -> None:
    page = walk(shop, "search[cotton]", "click[b01]")
    assert shown(shop, page) == (
        "Back to Search [SEP] < Prev [SEP] color [SEP] dark blue [SEP] red [SEP] size [SEP] small [SEP] x-large [SEP] "
        "Fennix cotton shirt for men [SEP] Price: $19.50 to $24.00 [SEP] Description [SEP] Features [SEP] Reviews"
        " [SEP] Buy Now"
    )
    assert clickables(shop, page) == (
        *("back to search", "< prev", "dark blue", "red", "small", "x-large"),
        *("description", "features", "reviews", "buy now"),
    )


def test_a_choice_replaces_the_one_of_its_option_and_is_shown(shop: Shop) -> None:
    page = walk(shop, "search[cotton]", "click[B01]", "click[small]", "click[Dark Blue]", "click[red]")
    assert page.chosen == (("color", "red"), ("size", "small"))
    assert " [SEP] You have chosen color: red, size: small [SEP] Fennix cotton shirt" in shown(shop, page)
    assert walk(shop, "click[features]", "click[< prev]", start=page) == page
    assert walk(shop, "click[< prev]", "click[b01]", start=page).chosen == ()
    assert walk(shop, "click[back to search]", start=page) == Page()


def test_sub_pages_show_what_the_product_has(shop: Shop) -> None:
    page = walk(shop, "search[cotton]", "click[b01]")
    ways = "Back to Search [SEP] < Prev [SEP] "
    assert shown(shop, walk(shop, "click[description]", start=page)) == ways + "A soft shirt."
    assert shown(shop, walk(shop, "click[features]", start=page)) == ways + "machine washable [SEP] Long Sleeve"
    assert shown(shop, walk(shop, "click[reviews]", start=page)) == ways + "This product has no reviews."
    plain = walk(shop, "search[plain]", "click[c00]", "click[description]")
    assert shown(shop, plain) == ways + "This product has no description."
    assert clickables(shop, plain) == ("back to search", "< prev")


def test_texts_of_sub_pages_are_cut_at_two_thousand_characters(shop: Shop) -> None:
    page = walk(shop, "search[cotton]", "click[b01]", "click[features]")
    assert page.product is not None
    long = replace(page, product=replace(page.product, features=("x" * 1500, "y" * 1500, "z")))
    assert shown(shop, long).split(" [SEP] ")[2:] == ["x" * 1500, "y" * 500 + " ..."]
    exact = replace(page, product=replace(page.product, features=("x" * 2000, "y")))
    assert shown(shop, exact).split(" [SEP] ")[2:] == ["x" * 2000]


def test_buying_ends_and_shows_the_score(shop: Shop) -> None:
    page = walk(shop, "search[cotton]", "click[b01]", "click[red]", "click[buy now]")
    assert (page.kind, page.chosen) == ("done", (("color", "red"),))
    assert shown(shop, page, 0.75).endswith("Your score (min 0.0, max 1.0) [SEP] 0.75")
    assert clickables(shop, page) == ()


@pytest.mark.parametrize(
    "action",
    ["invalid", "", "search[]", "search[ ]", "click[back to search]", "search shirt", "search[shirt", "find[shirt]"],
)
def test_the_search_page_offers_nothing_else(shop: Shop, action: str) -> None:
    assert after(shop, Page(), action) is None


@pytest.mark.parametrize(
    "action", ["search[cotton]", "click[c00]", "click[buy]", "click[]", "click[buy now", "buy now"]
)
def test_an_item_page_offers_nothing_else(shop: Shop, action: str) -> None:
    assert after(shop, walk(shop, "search[cotton]", "click[b01]"), action) is None


def test_case_and_blanks_of_actions_do_not_matter(shop: Shop) -> None:
    assert after(shop, Page(), " Search[ COTTON\n shirt ]\n") == after(shop, Page(), "search[cotton shirt]")
    page = walk(shop, "search[cotton]", "click[b01]")
    assert after(shop, page, "CLICK[ Buy  Now ]") == after(shop, page, "click[buy now]")


def test_no_observation_exceeds_the_limits(tmp_path: Path) -> None:
    records, attributes = synthetic_records(60, 2)
    records[0]["full_description"] = "ü" * 5000
    records[1]["small_description"] = ["long " * 100] * 9
    records[2]["customization_options"]["color"] = [{"value": f"colour number {number}"} for number in range(80)]
    shop = open_shop(ShopSpec(*written(records, attributes, str(tmp_path)), results_per_page=30))
    most, charset = observation_limits(shop)
    rng = random.Random(0)
    longest = 0
    for goal in shop.goals["all"][:60]:
        page = Page("results", " ".join(goal.target.query.split()))
        for _ in range(20):
            text = observation(shop, page, goal, 0.0)
            longest = max(longest, len(text))
            assert len(text) <= most
            assert charset.issuperset(text)
            offered = [text for text in clickables(shop, page) if text not in ("buy now", "back to search")]
            page = after(shop, page, f"click[{rng.choice(offered)}]") or page if offered else page
    assert longest > most / 4
