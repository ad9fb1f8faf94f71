from collections.abc import Callable

from arl_lightning.envs.webshop.catalogue import Product
from arl_lightning.envs.webshop.search import SearchIndex
from arl_lightning.envs.webshop.shop import normalised

Make = Callable[..., Product]


def bare(make: Make, name: str, **fields: object) -> Product:
    empty = {"full_description": None, "small_description": None, "customization_options": None}
    return make(name=name, **{**empty, **fields})


def found(products: list[Product], query: str, most: int = 50) -> tuple[int, ...]:
    return SearchIndex(products).ranked(tuple(normalised(query).split()), most)


def test_title_description_first_feature_and_options_are_searched(product: Make) -> None:
    products = [
        bare(product, "kettle"),
        bare(product, "pan", full_description="goes with a kettle"),
        bare(product, "pan", small_description=["kettle", "lid"]),
        bare(product, "pan", small_description=["lid", "kettle"]),  # the second feature is not
        bare(product, "pan", customization_options={"kettle": [{"value": "steel"}]}),
        bare(product, "pan", customization_options={"set": [{"value": "kettle"}]}),
    ]
    assert set(found(products, "kettle")) == {0, 1, 2, 4, 5}
    assert found(products, "kettle")[0] == 0  # the shortest text


def test_equally_good_products_come_in_catalogue_order_and_no_more_than_asked_for(product: Make) -> None:
    products = [bare(product, name) for name in ("red kettle", "pan", "red kettle", "kettle kettle")]
    assert found(products, "kettle") == (3, 0, 2)
    assert found(products, "kettle", most=2) == (3, 0)


def test_rare_words_weigh_more(product: Make) -> None:
    products = [bare(product, name) for name in ("steel pan", "steel pot", "steel lid", "copper pot")]
    assert found(products, "steel copper")[0] == 3


def test_queries_without_known_words_find_nothing(product: Make) -> None:
    products = [bare(product, "kettle"), bare(product, "pan")]
    for query in ("", "the and", "submarine", "!?"):
        assert found(products, query) == ()


def test_queries_are_told_apart_by_their_words_only() -> None:
    assert normalised("  Find the KETTLES, 8-ounce (glass)! ") == "kettle 8 ounce glass"
