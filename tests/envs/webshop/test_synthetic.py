import os
import random
import re
import subprocess
import sys
from collections import Counter

import pytest

from arl_lightning.envs.webshop.catalogue import parse_products
from arl_lightning.envs.webshop.environment import WebShopEnv
from arl_lightning.envs.webshop.reward import type_factor
from arl_lightning.envs.webshop.synthetic import synthetic_records
from arl_lightning.envs.webshop.synthetic_tables import KINDS
from arl_lightning.envs.webshop.vocabulary import vocabulary
from arl_lightning.types import ArlError

STARTS = """
from hashlib import sha256
from arl_lightning.envs.webshop.environment import WebShopEnv
env = WebShopEnv(products=150, split="train")
shown = []
for seed in (0, 1, 2**63 - 1):
    shown += env.reset(seed=seed)
    while actions := env.expert_actions():
        shown += env.step(actions[0])
print(sha256(repr(shown).encode()).hexdigest())
"""


def test_five_thousand_products_of_forty_five_kinds_with_distinct_ids() -> None:
    records, attributes = synthetic_records(5000, 0)
    assert len({record["asin"] for record in records}) == len(attributes) == 5000
    assert len({record["product_category"] for record in records}) == len(KINDS) == 45
    assert {record["category"] for record in records} == {"beauty", "electronics", "fashion", "grocery", "garden"}
    products = parse_products(records, attributes, "synthetic")
    assert all(3 <= len(product.attributes) <= 6 for product in products)
    assert 60 < sum(product.prices == () for product in products) < 140  # 2 % are without price
    assert all(own.lower() in product.text for product in products for own in product.attributes)


def test_the_same_arguments_make_the_same_catalogue_and_another_seed_another() -> None:
    assert synthetic_records(50, 1) == synthetic_records(50, 1)
    assert synthetic_records(50, 1) != synthetic_records(50, 2)


def test_few_kinds_make_a_small_shop() -> None:
    records, _ = synthetic_records(40, 0, categories=2)
    assert Counter(record["query"] for record in records) == {"hair shampoo": 20, "wireless earbuds": 20}


@pytest.mark.parametrize("arguments", [(0, 0, None), (100_001, 0, None), (5, 0, 0), (5, 0, 46)])
def test_sizes_out_of_range_are_refused(arguments: tuple[int, int, int | None]) -> None:
    with pytest.raises(ArlError, match="products from 1 to 100000 and categories from 1 to 45"):
        synthetic_records(*arguments)


def test_products_of_one_kind_are_of_one_type_and_of_others_rarely() -> None:
    products = parse_products(*synthetic_records(900, 0), "synthetic")
    kinds: dict[str, list[int]] = {}
    for number, product in enumerate(products):
        kinds.setdefault(product.query, []).append(number)
    for numbers in kinds.values():
        first = products[numbers[0]]
        assert {type_factor(first, products[number]) for number in numbers} == {1.0}
    rng = random.Random(0)
    factors = Counter(type_factor(*rng.sample(products, 2)) for _ in range(2000))
    assert factors[0.0] > 1500
    assert factors[0.5] > 50


def test_a_seed_names_the_same_episode_in_processes_that_hash_otherwise() -> None:
    digests = set()
    for hash_seed in ("0", "1"):
        ran = subprocess.run(
            [sys.executable, "-c", STARTS],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
            timeout=120,
        )
        digests.add(ran.stdout)
    assert len(digests) == 1
    assert len(digests.pop()) == 65  # 64 digits and a newline


def test_the_vocabulary_holds_every_word_that_play_shows() -> None:
    known = set(vocabulary(120, 5, 3))
    env = WebShopEnv(products=120, catalogue_seed=5, categories=3)
    rng = random.Random(0)
    seen: set[str] = set()
    for seed in range(60):
        text, state = env.reset(seed=seed)
        ended = False
        while not ended:
            seen.update(re.findall(r"[A-Za-z]+(?:['-][A-Za-z]+)*", re.sub(r"\bb\d{5}\b", "", text)))
            action = rng.choice((*state["admissible_actions"], *env.expert_actions(), "click[submarine]"))
            observation, _, terminated, truncated, state = env.step(action)
            text = f"{observation} {action}".replace("submarine", "")
            ended = terminated or truncated
    assert seen <= known
    assert len(seen) > 0.8 * len(known)
    assert vocabulary(120, 5, 3) == tuple(sorted(known))
    assert len(vocabulary(60, 0, 1)) < 150
