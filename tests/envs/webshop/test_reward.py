from collections.abc import Callable

import pytest

from arl_lightning.envs.webshop.catalogue import Product
from arl_lightning.envs.webshop.goals import Goal
from arl_lightning.envs.webshop.reward import (
    Purchase,
    best_options,
    has_attribute,
    judge,
    option_met,
    same_option,
    similar,
    type_factor,
)
from arl_lightning.envs.webshop.words import content_words, plain_colour

Make = Callable[..., Product]
# ten content words: fennix quilted walnut cedar maple birch linden poplar willow alder
TEN = "Fennix quilted walnut cedar maple birch linden poplar willow alder"
FAR = {"query": "something else", "product_category": "Toys › Games › Cards"}


@pytest.mark.parametrize(
    ("title", "factor"),
    [
        ("rope", 0.0),  # 0 of 10 words
        ("fennix rope", 0.5),  # 1 of 10 = 0.1, which is not below 0.1
        ("fennix quilted rope", 0.5),  # 2 of 10 = 0.2, which is not above 0.2
        ("fennix quilted walnut rope", 1.0),  # 3 of 10
    ],
)
def test_type_by_the_share_of_title_words(product: Make, title: str, factor: float) -> None:
    assert type_factor(product(name=TEN), product(name=title, **FAR)) == factor


def test_type_is_a_tenth_when_under_a_tenth_of_the_words_are_shared_whatever_the_query(product: Make) -> None:
    eleven = product(name=f"{TEN} hazel")
    assert type_factor(eleven, product(name="fennix rope")) == 0.1  # 1 of 11 = 0.09, same query


def test_same_query_or_two_category_levels_make_one_type(product: Make) -> None:
    wanted = product(name=TEN)
    one_level = {"query": "rope", "product_category": "Clothing › Women › Ropes"}
    two_levels = {"query": "rope", "product_category": "Clothing › Men › Ropes"}
    assert type_factor(wanted, product(name="fennix rope", product_category="Toys")) == 1.0  # same query
    assert type_factor(wanted, product(name="fennix rope", **two_levels)) == 1.0
    assert type_factor(wanted, product(name="fennix rope", **one_level)) == 0.5
    assert type_factor(wanted, product(name="rope")) == 0.0  # same query, no word shared


def test_a_wanted_title_without_content_words_is_in_every_title(product: Make) -> None:
    assert type_factor(product(name="12 x 5 red"), product(name="rope", **FAR)) == 1.0


def test_content_words_leave_out_numbers_units_colours_and_plurals() -> None:
    assert content_words("2 Pack of Navy Blue Cotton Shirts for Men, Size Large, 8 oz") == {"cotton", "shirt", "men"}


def test_an_attribute_matches_by_similarity_or_by_mention(product: Make) -> None:
    shirt = product(attributes=("easy to clean", "non slip sole"))
    assert has_attribute(shirt, "clean easy")  # 100: its words are among the attribute's
    assert has_attribute(shirt, "nonslip sole")  # 96: "sole non slip" and "sole nonslip" share 12 of 13 and of 12
    assert not has_attribute(shirt, "easy cleaning")  # 77: "easy clean to" and "easy cleaning" share 10 of 13 twice
    assert has_attribute(shirt, "machine wash")  # in the first feature
    assert has_attribute(shirt, "long sleeve")  # in the second feature, in other case
    assert has_attribute(shirt, "soft")  # in the description
    assert has_attribute(shirt, "Fennix")  # in the title
    assert not has_attribute(shirt, "dry clean only")
    assert not has_attribute(product(), "easy to clean")


def test_similarity_ignores_case_and_punctuation_and_has_a_threshold() -> None:
    assert similar("Machine-Washable", "machine washable")
    assert similar("cotton", "cotton spandex")  # all words of one are in the other
    assert not similar("paraben free", "sulfate free")


@pytest.mark.parametrize(
    ("value", "plain"),
    [("dark blue", "blue"), ("Blue (Navy)", "blue"), ("navy", "blue"), ("grey/white", "gray white"), ("Oak", "oak")],
)
def test_colours_are_made_plain(value: str, plain: str) -> None:
    assert plain_colour(value) == plain


def test_sizes_must_be_equal_and_others_similar() -> None:
    assert same_option("size", "large", "size", "large")
    assert not same_option("size", "large", "size", "x-large")  # a token set ratio of 100
    assert not same_option("size", "large", "style", "large")
    assert same_option("color", "dark blue", "color", "blue (navy)")
    assert not same_option("color", "dark blue", "color", "red")
    assert same_option("flavor name", "chocolate", "flavor name", "dark chocolate")
    assert not same_option("flavor name", "white chocolate", "flavor name", "white cheddar")  # no colours here


def test_a_wanted_option_counts_when_chosen_or_told_of_a_product_without_that_choice(product: Make) -> None:
    blue, red = (("color", "dark blue"),), (("color", "red"),)
    assert option_met(product(), "color", "blue (navy)", blue)
    assert not option_met(product(), "color", "blue (navy)", red)
    assert not option_met(product(name="dark blue shirt"), "color", "dark blue", ())  # it can be chosen, and was not
    only_blue = product(name="dark blue shirt", customization_options=None)
    assert option_met(only_blue, "color", "dark blue", ())
    assert not option_met(only_blue, "color", "green", ())


@pytest.fixture
def goal(product: Make) -> Goal:
    target = product(attributes=("cotton spandex", "classic fit"))
    options = (("color", "dark blue"), ("size", "small"))
    return Goal(target, ("classic fit", "machine washable"), options, 30.0, "Find me a shirt.")


def test_the_target_with_its_options_earns_one(goal: Goal) -> None:
    bought = judge(goal, goal.target, goal.options)
    assert bought == Purchase(1.0, 2, 2, within_price=True, wanted_attributes=2, wanted_options=2)
    assert bought.graded_reward == 1.0  # 1 * (2 + 2 + 1) / (2 + 2 + 1)


def test_every_miss_costs_a_fifth_here(goal: Goal, product: Make) -> None:
    def earned(bought: Product, *chosen: tuple[str, str]) -> float:
        return judge(goal, bought, chosen).graded_reward

    same = ("classic fit",)
    assert earned(goal.target, ("color", "dark blue")) == pytest.approx(0.8)  # (2 + 1 + 1) / 5
    assert earned(goal.target) == pytest.approx(0.6)  # (2 + 0 + 1) / 5
    assert earned(product(attributes=same, pricing="$30.01"), *goal.options) == pytest.approx(0.8)  # (2 + 2 + 0) / 5
    assert earned(product(attributes=same, pricing="$30.00"), *goal.options) == 1.0  # the limit itself is within it
    assert earned(product(), *goal.options) == pytest.approx(0.8)  # (1 + 2 + 1) / 5
    far = product(name="Fennix rope", query="rope", product_category="Toys", attributes=same)
    # wanted words: fennix cotton shirt men, of which one is shared: 0.25 > 0.2
    assert earned(far, *goal.options) == 1.0
    other = product(name="Rope", query="rope", product_category="Toys", attributes=same)
    assert earned(other, *goal.options) == 0.0


def test_the_type_factor_multiplies_what_was_matched() -> None:
    # 0.5 * (1 + 0 + 1) / (2 + 1 + 1)
    assert Purchase(0.5, 1, 0, within_price=True, wanted_attributes=2, wanted_options=1).graded_reward == 0.25


def test_a_goal_without_attributes_and_options_is_about_type_and_price(goal: Goal) -> None:
    assert judge(Goal(goal.target, (), (), 30.0, ""), goal.target, ()).graded_reward == 1.0
    assert judge(Goal(goal.target, (), (), 20.0, ""), goal.target, ()).graded_reward == 0.0


def test_a_price_range_counts_with_its_upper_end_and_none_with_a_hundred(product: Make) -> None:
    assert product().price == 24.0
    assert product(pricing="$5").price == 5.0
    assert product(pricing=None).price == 100.0


def test_best_options_prefer_the_very_value_and_choose_nothing_else(goal: Goal, product: Make) -> None:
    assert best_options(goal, goal.target) == (("color", "dark blue"), ("size", "small"))
    colours = [{"value": "blue (navy)"}, {"value": "red"}]
    near = product(customization_options={"color": colours, "size": [{"value": "x-large"}]})
    assert best_options(goal, near) == (("color", "blue (navy)"),)
    both = product(customization_options={"color": [*colours, {"value": "dark blue"}]})
    assert best_options(goal, both) == (("color", "dark blue"),)


def test_best_options_take_one_value_an_option(product: Make) -> None:
    wanted = (("color", "dark blue"), ("color", "red"), ("size", "small"))
    goal = Goal(product(), (), wanted, 30.0, "")
    assert best_options(goal, product()) == (("color", "dark blue"), ("size", "small"))
    assert judge(goal, product(), best_options(goal, product())).options == 2
