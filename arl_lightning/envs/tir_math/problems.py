"""Where maths problems come from: a seed names one, and splits are disjoint by content."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from typing import Any, Protocol

import numpy as np

from arl_lightning.envs.extras import load_extra
from arl_lightning.envs.tir_math.judges import Key
from arl_lightning.types import ArlError

SPLIT_ENDS = {"test": 10, "validation": 20, "demonstration": 30, "train": 100}  # cumulative, per cent of all problems
DEFAULT_GENERATORS: Mapping[str, Mapping[str, Any]] = {
    "chain_sum": {},
    "products": {},
    "gcd": {},
    "lcm": {},
    "prime_factorization": {},
    "fraction_simplification": {},
    "simple_equations": {},
    "polynomial_equations": {"max_degree": 2},  # the library drops real roots of some cubics from its own answers
    "calendar_arithmetic": {},
    "countdown": {"min_numbers": 3, "max_numbers": 4, "min_target": 10},  # the library's own range is rarely met: slow
}
_MAX_DRAWS = 2_000  # the smallest split has a tenth of all problems: 10 draws are usual, 300 already unheard of
_SEED_BITS = 31  # some generators hand their seed to numpy, which takes 32 bits
_ENTRIES = 10_000  # of each data set; a few generators lay out all their entries when made
_NUMERIC = frozenset(DEFAULT_GENERATORS) - {"calendar_arithmetic"}
_WORDING = frozenset({"difficulty", "source_dataset", "source_index"})  # metadata that is not about the problem


@dataclass(frozen=True, slots=True)
class Problem:
    """One task: its text, what its answer is held against, and its type."""

    question: str
    key: Key
    task_type: str


class ProblemSource(Protocol):
    """Problems of one split, each named by a seed."""

    def problem(self, seed: int) -> Problem:
        """The problem of the seed, the same in each process."""
        ...


def require_split(split: str) -> None:
    """Returns when there is such a split.

    Raises:
        ArlError: there is none.
    """
    if split not in ("all", *SPLIT_ENDS):
        raise ArlError(f"TIRMath has no split {split!r}: choose one of all, {', '.join(SPLIT_ENDS)}.")


def split_of(identity: str) -> str:
    """The split that a problem belongs to by its identity."""
    bucket = digest(identity) % 100
    return next(split for split, end in SPLIT_ENDS.items() if bucket < end)


def digest(text: str) -> int:
    """A 64-bit hash that is the same in each process."""
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big")


class GeneratedProblems:
    """Problems of reasoning-gym generators; seeds go round the generators, in the order given.

    Args:
        generators: configuration of each generator by its name in reasoning-gym; its `seed` and `size` are set here.
        split: which problems to draw, or `all`. Two wordings of one problem are in the same split.
    """

    def __init__(self, generators: Mapping[str, Mapping[str, Any]], split: str) -> None:
        if not generators:
            raise ArlError("TIRMath needs at least one generator: name some, or leave `generators` out.")
        gym = load_extra("reasoning_gym", extra="math")
        unknown = sorted(set(generators) - set(load_extra("reasoning_gym.factory", extra="math").DATASETS))
        if unknown:
            raise ArlError(f"reasoning-gym has no generator {unknown[0]!r}: its gallery lists the names.")
        self._split = split
        self._names = tuple(generators)
        self._entries = {name: _entries(gym.create_dataset, name, config) for name, config in generators.items()}
        self.problem: Callable[[int], Problem] = lru_cache(maxsize=1024)(self._draw)  # a group resets to one seed

    def _draw(self, seed: int) -> Problem:
        """The first problem of the split among those that follow from the seed.

        Raises:
            ArlError: the generator gives none, its configuration allows too few different problems.
        """
        name = self._names[seed % len(self._names)]
        rng = random.Random(seed)
        with _global_generators_kept():
            for _ in range(_MAX_DRAWS):
                entry = self._entry(name, rng.getrandbits(_SEED_BITS))
                if entry and not isinstance(entry["answer"], str):
                    raise ArlError(f"{name} gives no answer to hold others against: leave this generator out.")
                if entry and (self._split == "all" or split_of(_identity(name, entry)) == self._split):
                    return Problem(entry["question"], Key(entry["answer"], name, entry["metadata"]), name)
        raise ArlError(f"{name} gave no {self._split} problem in {_MAX_DRAWS} draws: widen its configuration.")

    def _entry(self, name: str, seed: int) -> Mapping[str, Any] | None:
        """The generator's entry; None where it finds none with this seed."""
        random.seed(seed)
        np.random.seed(seed)  # a few generators draw from the global ones
        entries = self._entries[name]
        entries.seed, entries.size = seed, _ENTRIES  # an entry's own seed is the sum of this one and its place
        try:
            entry: Mapping[str, Any] = entries[seed % _ENTRIES]
        except ValueError as error:
            if "Failed to generate" not in str(error):
                raise
            return None
        return entry


def _entries(create: Callable[..., Any], name: str, config: Mapping[str, Any]) -> Any:
    """The generator's data set."""
    try:
        return create(name, **{**config, "seed": 0, "size": _ENTRIES})
    except (AssertionError, TypeError, ValueError) as error:
        raise ArlError(f"reasoning-gym refuses the configuration {dict(config)} of {name}: {error}.") from error


def _identity(name: str, entry: Mapping[str, Any]) -> str:
    """What makes a generated problem that problem, whatever its wording, order of operands or name of variable.

    Coarser than the problem where that is simpler: problems that share an identity share a split, no more.
    """
    if name in _NUMERIC:
        return f"{name} {sorted(map(int, re.findall('[0-9]+', entry['question'])))}"
    if name == "calendar_arithmetic":
        kept = {key: value for key, value in entry["metadata"].items() if key not in _WORDING}
        return f"{name} {json.dumps(kept, sort_keys=True)}"
    return f"{name} {entry['question']}"


@contextmanager
def _global_generators_kept() -> Iterator[None]:
    """Python's and numpy's global random states are afterwards what they were before."""
    ours, theirs = random.getstate(), np.random.get_state()
    try:
        yield
    finally:
        random.setstate(ours)
        np.random.set_state(theirs)


@lru_cache(maxsize=16)
def _shared(generators_json: str, split: str) -> GeneratedProblems:
    return GeneratedProblems(dict(json.loads(generators_json)), split)


def generated_problems(
    generators: Mapping[str, Mapping[str, Any]] | Sequence[str] | None, split: str
) -> GeneratedProblems:
    """The source of these generators, shared by all environments of the process; None means the default mix."""
    if generators is None:
        generators = DEFAULT_GENERATORS
    if isinstance(generators, str):
        raise ArlError(f"`generators` is a list or a mapping of names, not the text {generators!r}.")
    if not isinstance(generators, Mapping):
        generators = {name: DEFAULT_GENERATORS.get(name, {}) for name in generators}
    return _shared(json.dumps([(name, dict(config or {})) for name, config in generators.items()]), split)
