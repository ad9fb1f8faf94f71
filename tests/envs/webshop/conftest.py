from collections.abc import Callable
from typing import Any

import pytest

from arl_lightning.envs.webshop.catalogue import Product, parse_products

RECORD = {
    "asin": "B01",
    "name": "Fennix cotton shirt for men",
    "full_description": "A soft shirt.",
    "small_description": ["machine washable", "Long Sleeve"],
    "pricing": "$19.50 to $24.00",
    "customization_options": {
        "Color": [{"value": "Dark Blue"}, {"value": "red"}],
        "size": [{"value": "small"}, {"value": "x-large"}],
    },
    "category": "fashion",
    "query": "men's shirts",
    "product_category": "Clothing › Men › Shirts",
}


@pytest.fixture
def record() -> Callable[..., dict[str, Any]]:
    """A product record, fields of which can be replaced."""
    return lambda **fields: {**RECORD, **fields}


@pytest.fixture
def product(record: Callable[..., dict[str, Any]]) -> Callable[..., Product]:
    """A product, fields and attributes of which can be replaced."""

    def make(attributes: tuple[str, ...] = (), **fields: Any) -> Product:
        made = record(**fields)
        return parse_products([made], {made["asin"]: {"attributes": list(attributes)}}, "test")[0]

    return make
