"""Seeds and uniform numbers are functions of the place of the draw and of nothing else."""

import itertools

import numpy as np
import pytest

from arl_lightning.functional.seeding import Stream, derive_seed, uniforms


def test_a_place_has_the_same_seed_for_ever() -> None:
    # pinned: a change would make every published run irreproducible
    assert derive_seed(0, Stream.TRAIN_TASK, 1, 2) == 1597417224433793117
    assert uniforms(7, 3).tolist() == pytest.approx(
        [0.8720734548204873, 0.29536538151378355, 0.4200976785072422], abs=1e-15
    )


def test_every_place_has_a_seed_of_its_own() -> None:
    places = [
        (root, stream, *path) for root in (0, 1) for stream in Stream for path in itertools.product(range(4), repeat=3)
    ]
    places += [(0, Stream.TRAIN_TASK), (0, Stream.TRAIN_TASK, 0), (0, Stream.TRAIN_TASK, 0, 0)]
    seeds = {derive_seed(root, Stream(stream), *path) for root, stream, *path in places}
    assert len(seeds) == len(places)
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_more_numbers_begin_with_the_same_ones() -> None:
    assert uniforms(3, 5)[:2].tolist() == uniforms(3, 2).tolist()
    assert uniforms(3, 2).tolist() != uniforms(4, 2).tolist()


def test_numbers_are_uniform_in_the_half_open_unit_interval() -> None:
    numbers = uniforms(0, 10_000)
    assert numbers.dtype == np.float64
    assert numbers.min() >= 0
    assert numbers.max() < 1
    # each tenth holds 1000 ± 30 of 10 000 numbers; 5 standard deviations
    counts, _ = np.histogram(numbers, bins=10, range=(0, 1))
    assert np.abs(counts - 1000).max() < 150


def test_the_global_generator_is_neither_read_nor_moved() -> None:
    np.random.seed(1)
    untouched = np.random.random()
    np.random.seed(1)
    seed, numbers = derive_seed(5, Stream.SHUFFLE), uniforms(5, 2).tolist()
    assert np.random.random() == untouched
    np.random.seed(2)
    assert (derive_seed(5, Stream.SHUFFLE), uniforms(5, 2).tolist()) == (seed, numbers)
