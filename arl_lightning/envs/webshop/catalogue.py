"""Products, read from JSON files with the fields of the published shop; every fault names file, product and field."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from arl_lightning.envs.webshop.words import content_words
from arl_lightning.types import ArlError

PRICE_WHEN_UNKNOWN = 100.0
BUTTONS = ("back to search", "< prev", "next >", "description", "features", "reviews", "buy now")
"""What pages offer beside products and option values; lower-cased, as clicks are compared."""


@dataclass(frozen=True)
class Product:
    """One product as the shop shows and judges it.

    `options` holds (name, values) pairs, lower-cased, no value twice and none equal to a button, so that a click names
    one choice. `prices` are those that the catalogue states, in dollars, lowest first.
    """

    asin: str
    title: str
    description: str
    features: tuple[str, ...]
    prices: tuple[float, ...]
    options: tuple[tuple[str, tuple[str, ...]], ...]
    attributes: tuple[str, ...]
    category: str
    query: str
    levels: frozenset[str] = field(repr=False)

    @property
    def price(self) -> float:
        """What the product costs, in dollars: the upper end of a range, whatever is chosen; 100 when not stated."""
        return self.prices[-1] if self.prices else PRICE_WHEN_UNKNOWN

    @property
    def price_text(self) -> str:
        """The price as pages show it."""
        return " to ".join(f"${price:.2f}" for price in dict.fromkeys((*self.prices[:1], self.price)))

    @cached_property
    def text(self) -> str:
        """Title, features and description, lower-cased: where a wanted attribute may be mentioned."""
        return "\n".join((self.title, *self.features, self.description)).lower()

    @cached_property
    def search_text(self) -> str:
        """What search looks at: title, description, first feature, and options with their names."""
        options = (" ".join((name, *values)) for name, values in self.options)
        return "\n".join((self.title, self.description, *self.features[:1], *options))

    @cached_property
    def title_nouns(self) -> frozenset[str]:
        """The content words of the title."""
        return content_words(self.title)


def read_json(path: str) -> Any:
    """What a JSON file holds; ArlError when there is none or it is not JSON."""
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ArlError(f"The WebShop file {path} cannot be read ({error.strerror}): correct its path.") from error
    except ValueError as error:  # also what is not UTF-8
        raise ArlError(f"The WebShop file {path} is not JSON ({error}): repair or replace it.") from error


def load_products(catalogue: str, attributes: str | None) -> tuple[Product, ...]:
    """The products of a catalogue file, with the attributes of another; see `parse_products` for the fields.

    Args:
        catalogue: path of a JSON list of products.
        attributes: path of a JSON object `{asin: {"attributes": [...]}}`, or None for products without attributes.
    """
    named = {} if attributes is None else read_json(attributes)
    return parse_products(read_json(catalogue), named, catalogue, attributes or "")


def parse_products(
    records: Any, attributes: Any, catalogue_name: str, attributes_name: str = "attributes"
) -> tuple[Product, ...]:
    """The products of JSON records, in their order; of those with one asin the first.

    Fields read: `asin`, `name`, `category`, `query`, `product_category` ("A › B › C") must be text;
    `full_description` (text), `small_description` (list of texts, or text), `pricing` ("$a to $b") and
    `customization_options` ({name: [{"value": text, ...}, ...]}) may be null, empty or absent. Others are ignored.

    Args:
        records: the list of product objects.
        attributes: `{asin: {"attributes": [text, ...]}}`; products that it does not name have none.
        catalogue_name: what a fault calls the source of the records.
        attributes_name: what a fault calls the source of the attributes.

    Raises:
        ArlError: a field is missing or of another type.
    """
    if not isinstance(records, list) or not records:
        raise ArlError(f"The WebShop file {catalogue_name} must be a non-empty JSON list of products.")
    if not isinstance(attributes, dict):
        raise ArlError(f"The WebShop file {attributes_name} must be a JSON object from asin to attributes.")
    products: dict[str, Product] = {}
    for number, record in enumerate(records):
        fields = Fields(record, catalogue_name, f"product {number}")
        product = _product(fields, attributes, attributes_name)
        products.setdefault(product.asin, product)
    return tuple(products.values())


class Fields:
    """A JSON object whose fields are read by type.

    Args:
        record: the object.
        file: what a fault calls its file.
        place: what a fault calls the object.
    """

    def __init__(self, record: Any, file: str, place: str) -> None:
        self.file = file
        self.place = place
        if not isinstance(record, dict):
            raise self.fault(None, "must be a JSON object")
        self.record: Mapping[str, Any] = record

    def fault(self, name: str | None, law: str) -> ArlError:
        """The error that says which field of which object in which file breaks `law`."""
        what = self.place if name is None else f"the field {name!r} of {self.place}"
        return ArlError(f"In the WebShop file {self.file}, {what} {law}.")

    def text(self, name: str) -> str:
        """A field that must be text with something in it; white space is collapsed."""
        value = self.record.get(name)
        if not isinstance(value, str) or not value.strip():
            raise self.fault(name, "must be a text")
        return _collapsed(value)

    def texts(self, name: str) -> tuple[str, ...]:
        """A list of texts, one text, null or nothing, as a tuple without empty ones."""
        value = self.record.get(name) or []
        value = [value] if isinstance(value, str) else value
        if not isinstance(value, list) or not all(isinstance(part, str) for part in value):
            raise self.fault(name, "must be a list of texts, a text or null")
        return tuple(_collapsed(part) for part in value if part.strip())


def _product(fields: Fields, attributes: Mapping[str, Any], attributes_name: str) -> Product:
    asin = fields.text("asin")
    fields.place = f"product {asin}"
    named = attributes.get(asin)
    levels = (level.strip().lower() for level in fields.text("product_category").split("›"))
    return Product(
        asin=asin,
        title=fields.text("name"),
        description=" ".join(fields.texts("full_description")),
        features=fields.texts("small_description"),
        prices=_prices(fields),
        options=_options(fields),
        attributes=() if named is None else _attributes(named, attributes_name, asin),
        category=fields.text("category").lower(),
        query=fields.text("query").lower(),
        levels=frozenset(level for level in levels if level),
    )


def _attributes(named: Any, file: str, asin: str) -> tuple[str, ...]:
    return tuple(one.lower() for one in Fields(named, file, f"product {asin}").texts("attributes"))


def _prices(fields: Fields) -> tuple[float, ...]:
    stated = " ".join(fields.texts("pricing"))
    found = re.findall(r"\d[\d,]*(?:\.\d+)?", stated)
    if stated and not found:
        raise fields.fault("pricing", f"must state dollars as in '$5.00 to $7.50', not {stated!r}")
    return tuple(sorted(float(price.replace(",", "")) for price in found))


def _options(fields: Fields) -> tuple[tuple[str, tuple[str, ...]], ...]:
    groups = fields.record.get("customization_options") or {}
    if not isinstance(groups, dict):
        raise fields.fault("customization_options", "must be an object from option names to lists of values")
    taken = set(BUTTONS)
    options: dict[str, tuple[str, ...]] = {}
    for written_name, choices in groups.items():
        name = _collapsed(written_name).lower()
        options[name] = options.get(name, ()) + _distinct(name, _values(fields, choices), taken)
    return tuple((name, values) for name, values in options.items() if values)


def _values(fields: Fields, choices: Any) -> Iterable[str]:
    listed = [] if choices is None else choices
    for choice in listed if isinstance(listed, list) else [listed]:
        value = choice.get("value") if isinstance(choice, dict) else None
        if not isinstance(value, str):
            raise fields.fault("customization_options", "must list objects whose 'value' is a text")
        if value.strip():
            yield _collapsed(value).lower()


def _distinct(name: str, values: Iterable[str], taken: set[str]) -> tuple[str, ...]:
    """The values, each once; one that another option or a button has taken gets the option's name before it."""
    kept: list[str] = []
    for value in dict.fromkeys(values):
        clickable = f"{name}: {value}" if value in taken else value
        if clickable not in taken:
            kept.append(clickable)
            taken.add(clickable)
    return tuple(kept)


def _collapsed(text: str) -> str:
    return " ".join(text.split())


def written(products: Sequence[Mapping[str, Any]], attributes: Mapping[str, Any], folder: str) -> tuple[str, str]:
    """The paths of `products.json` and `attributes.json` in an existing folder, after writing them.

    Args:
        products: records with the fields that `parse_products` reads.
        attributes: `{asin: {"attributes": [...]}}`.
        folder: where the files go.
    """
    paths = Path(folder, "products.json"), Path(folder, "attributes.json")
    for path, content in zip(paths, (products, attributes), strict=True):
        path.write_text(json.dumps(content, ensure_ascii=False, indent=1), encoding="utf-8")
    return str(paths[0]), str(paths[1])
