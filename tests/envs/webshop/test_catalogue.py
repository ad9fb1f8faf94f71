import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from arl_lightning.envs.webshop.catalogue import Product, load_products, parse_products, read_json, written
from arl_lightning.envs.webshop.synthetic import synthetic_records
from arl_lightning.types import ArlError

Record = Callable[..., dict[str, Any]]


def test_a_record_becomes_a_product(product: Callable[..., Product]) -> None:
    shirt = product(attributes=("Classic Fit",))
    assert shirt.title == "Fennix cotton shirt for men"
    assert shirt.options == (("color", ("dark blue", "red")), ("size", ("small", "x-large")))
    assert shirt.attributes == ("classic fit",)
    assert shirt.prices == (19.5, 24.0)
    assert shirt.price_text == "$19.50 to $24.00"
    assert shirt.levels == {"clothing", "men", "shirts"}
    assert shirt.search_text == (
        "Fennix cotton shirt for men\nA soft shirt.\nmachine washable\ncolor dark blue red\nsize small x-large"
    )


def test_optional_fields_may_be_null_empty_or_absent(record: Record) -> None:
    names = ("full_description", "small_description", "pricing", "customization_options")
    empty = parse_products([record(**dict.fromkeys(names))], {}, "test")[0]
    bare = {name: value for name, value in record().items() if name not in names}
    assert parse_products([bare], {}, "test")[0] == empty
    assert (empty.description, empty.features, empty.options, empty.price_text) == ("", (), (), "$100.00")


def test_prices_are_read_in_each_published_form(product: Callable[..., Product]) -> None:
    assert product(pricing="$1,234.50").prices == (1234.5,)
    assert product(pricing="$7.99$5.99").prices == (5.99, 7.99)


def test_values_are_distinct_clicks(product: Callable[..., Product]) -> None:
    options = {
        "color": [{"value": "Mint"}, {"value": "mint "}, {"value": "Features"}],
        "flavor": [{"value": "mint"}, {"value": " "}],
        "empty": [],
        "null": None,
        "Color": [{"value": "red"}],
    }
    assert product(customization_options=options).options == (
        ("color", ("mint", "color: features", "red")),
        ("flavor", ("flavor: mint",)),
    )


def test_of_products_with_one_asin_the_first_is_kept(record: Record) -> None:
    products = parse_products([record(), record(name="Other")], {}, "test")
    assert [product.title for product in products] == ["Fennix cotton shirt for men"]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"asin": None}, "In the WebShop file shop.json, the field 'asin' of product 0 must be a text."),
        ({"name": " "}, "In the WebShop file shop.json, the field 'name' of product B01 must be a text."),
        ({"query": 3}, "In the WebShop file shop.json, the field 'query' of product B01 must be a text."),
        ({"small_description": [1]}, "field 'small_description' of product B01 must be a list of texts"),
        ({"pricing": "dear"}, "field 'pricing' of product B01 must state dollars as in '$5.00 to $7.50', not 'dear'"),
        ({"customization_options": []}, None),
        ({"customization_options": ["x"]}, "'customization_options' of product B01 must be an object"),
        ({"customization_options": {"size": ["x"]}}, "must list objects whose 'value' is a text"),
        ({"customization_options": {"size": "x"}}, "must list objects whose 'value' is a text"),
        ({"customization_options": {"size": 5}}, "must list objects whose 'value' is a text"),
    ],
)
def test_a_fault_names_file_product_and_field(record: Record, fields: dict[str, Any], message: str | None) -> None:
    if message is None:
        assert parse_products([record(**fields)], {}, "shop.json")[0].options == ()
        return
    with pytest.raises(ArlError) as fault:
        parse_products([record(**fields)], {}, "shop.json")
    assert message in str(fault.value)


def test_other_faults_of_files_are_told(tmp_path: Path, record: Record) -> None:
    broken = tmp_path / "broken.json"
    broken.write_text("{", encoding="utf-8")
    with pytest.raises(ArlError, match=r"broken\.json is not JSON"):
        read_json(str(broken))
    with pytest.raises(ArlError, match=r"missing\.json cannot be read \(No such file or directory\)"):
        read_json(str(tmp_path / "missing.json"))
    wrong: tuple[Any, ...] = ([], {}, None)
    for records in wrong:
        with pytest.raises(ArlError, match=r"shop\.json must be a non-empty JSON list of products"):
            parse_products(records, {}, "shop.json")
    with pytest.raises(ArlError, match="product 0 must be a JSON object"):
        parse_products(["shirt"], {}, "shop.json")
    with pytest.raises(ArlError, match=r"names\.json must be a JSON object from asin"):
        parse_products([record()], [], "shop.json", "names.json")
    with pytest.raises(ArlError, match=r"names\.json, the field 'attributes' of product B01 must be a list of texts"):
        parse_products([record()], {"B01": {"attributes": 5}}, "shop.json", "names.json")
    with pytest.raises(ArlError, match=r"names\.json, product B01 must be a JSON object"):
        parse_products([record()], {"B01": ["soft"]}, "shop.json", "names.json")


def test_a_synthetic_catalogue_survives_its_files(tmp_path: Path) -> None:
    records, attributes = synthetic_records(200, 3)
    catalogue, named = written(records, attributes, str(tmp_path))
    assert json.loads(Path(catalogue).read_text(encoding="utf-8")) == records
    assert load_products(catalogue, named) == parse_products(records, attributes, "synthetic")
    assert not any(product.attributes for product in load_products(catalogue, None))
