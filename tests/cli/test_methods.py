"""Each file of configs/methods is the composition that its paper names, whatever files came before it, and trains."""

from __future__ import annotations

import importlib
import inspect
import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
import yaml
from torch import Tensor

from arl_lightning.cli import main
from arl_lightning.modules.pretrained import PretrainedModel

if TYPE_CHECKING:
    from tests.cli.conftest import Outcome, SmallRun

FOLDER = Path(__file__).parents[2] / "configs" / "methods"
Parse = Callable[[list[str]], dict[str, Any]]
Read = Callable[[str], "Outcome"]
Part = tuple[str, dict[str, Any]] | None

GRPO_CLIP = ("TokenClip", {"low": 0.2, "high": 0.2, "dual": None})
DAPO_CLIP = ("TokenClip", {"low": 0.2, "high": 0.28, "dual": None})
GSPO_CLIP = ("SequenceClip", {"low": 3e-3, "high": 4e-3})
CISPO_WEIGHT = ("ClippedWeight", {"low": 1.0, "high": 0.2})
SAPO_GATE = ("SoftGate", {"tau_pos": 1.0, "tau_neg": 1.05})
WIDE_CLIP = ("SequenceClip", {"low": 0.03, "high": 0.04})
MASK = ("SequenceMask", {"delta": 3e-3})
WIDE_MASK = ("SequenceMask", {"delta": 0.03})
TOKENS: Part = ("TokenMean", {})
SEQUENCES: Part = ("SequenceMean", {})
NORMALIZED = ("GroupNormalized", {"scale": "std", "over": "episodes"})
GIGPO = ("GiGPO", {"omega": 1.0, "gamma": 0.95, "scale": "std"})
FILTERING = ("DynamicFiltering", {"by": "success", "max_attempts": 3, "exhausted": "fill"})

SLOTS = ("surrogate", "mask", "aggregation", "advantage", "filtering")
METHODS: dict[str, tuple[Part, ...]] = {
    "grpo": (GRPO_CLIP, None, TOKENS, NORMALIZED, None),
    "grpo_st": (GRPO_CLIP, None, SEQUENCES, NORMALIZED, None),
    "grpo_sm": (GRPO_CLIP, MASK, TOKENS, NORMALIZED, None),
    "dr_grpo": (GRPO_CLIP, None, ("SequenceSum", {"length": 512}), ("GroupNormalized", {"scale": "none"}), None),
    "dapo": (DAPO_CLIP, None, TOKENS, NORMALIZED, FILTERING),
    "dapo_gigpo": (DAPO_CLIP, None, TOKENS, GIGPO, FILTERING),
    "gspo": (GSPO_CLIP, None, SEQUENCES, NORMALIZED, None),
    "cispo": (CISPO_WEIGHT, None, TOKENS, NORMALIZED, None),
    "cispo_sm": (CISPO_WEIGHT, MASK, TOKENS, NORMALIZED, None),
    "sapo": (SAPO_GATE, None, TOKENS, NORMALIZED, None),
    "sapo_sm": (SAPO_GATE, MASK, TOKENS, NORMALIZED, None),
    "gigpo": (GRPO_CLIP, None, TOKENS, GIGPO, None),
    "empg": (GRPO_CLIP, None, TOKENS, ("EMPG", {"k": 1.0, "k_future": 1.0, "zeta": 0.05, "base": None}), None),
    "sampo": (GSPO_CLIP, MASK, SEQUENCES, GIGPO, FILTERING),
    # not of the table: SAMPO with a band ten times as wide
    "sampo_short": (WIDE_CLIP, WIDE_MASK, SEQUENCES, GIGPO, FILTERING),
}

CONTROLS = {"mask": {"advantages"}}  # what no method sets, but a study's words, which win over every file

NAMES = tuple(METHODS)
each_method = pytest.mark.parametrize("method", METHODS)


def parts(config: dict[str, Any]) -> dict[str, Any]:
    """What stands in each slot of a configuration."""
    return {**config["model"]["init_args"]["objective"], "filtering": config["callbacks"]["filtering"]}


def check_composition(config: dict[str, Any], expected: tuple[Part, ...]) -> None:
    found = parts(config)
    for slot, part in zip(SLOTS, expected, strict=True):
        if part is None:
            assert found[slot] is None, slot
        else:
            name, arguments = part
            assert found[slot]["class_path"].rpartition(".")[2] == name
            assert {key: found[slot].get("init_args", {})[key] for key in arguments} == arguments


@pytest.fixture(scope="module")
def start(tiny_clone: Path) -> dict[str, Tensor]:
    """Weights that every run begins with, by their name in a checkpoint."""
    model, _ = PretrainedModel(str(tiny_clone)).load()
    return {f"policy.model.{name}": weight for name, weight in model.state_dict().items()}


def test_the_table_and_the_folder_name_the_same_methods() -> None:
    assert {path.stem for path in FOLDER.glob("*.yaml")} == set(METHODS)


@each_method
def test_a_method_is_the_composition_of_the_table_alone_and_over_another(
    method: str, small_run: SmallRun, parsed: Parse
) -> None:
    alone = parsed(small_run("fit", "never", method=method))
    check_composition(alone, METHODS[method])
    earlier = NAMES[(NAMES.index(method) + 4) % len(NAMES)]
    over = parsed(small_run("fit", "never", "--config", str(FOLDER / f"{method}.yaml"), method=earlier))
    assert over == alone, earlier


@each_method
def test_a_method_says_what_it_is_and_names_every_slot_and_argument(method: str) -> None:
    text = (FOLDER / f"{method}.yaml").read_text(encoding="utf-8")
    written = parts(yaml.safe_load(text))
    assert text.startswith("# ")
    assert set(written) == set(SLOTS)
    for slot, part in written.items():
        if part is not None:
            # what a file leaves out, the class that an earlier file named there would fill in
            module, _, name = part["class_path"].rpartition(".")
            cls = getattr(importlib.import_module(module), name)
            arguments = inspect.signature(cls).parameters if "__init__" in vars(cls) else {}
            assert set(part.get("init_args", {})) == set(arguments) - CONTROLS.get(slot, set()), slot


def check_trained(left: Outcome, start: dict[str, Tensor], epochs: int) -> None:
    assert len(left.metrics["train/loss"]) == epochs
    trains = {name: series for name, series in left.metrics.items() if name.startswith("train/")}
    assert all(math.isfinite(value) for series in trains.values() for _, value in series)
    assert left.weights.keys() <= start.keys()
    # no weight decay: whatever moved was moved by the loss
    assert not any(torch.equal(weight, start[name]) for name, weight in left.weights.items())


def fit(epochs: int, *options: str) -> tuple[str, ...]:
    """Options of a run without weight decay and without validation."""
    return (
        *("--trainer.max_epochs", str(epochs), "--trainer.limit_val_batches", "0"),
        *("--model.optimizer.weight_decay", "0", *options),
    )


@each_method
def test_a_method_trains(method: str, small_run: SmallRun, outcome: Read, start: dict[str, Tensor]) -> None:
    folder = f"methods/{method}"
    main(small_run("fit", folder, *fit(2), method=method))
    check_trained(outcome(folder), start, epochs=2)


COMBINATIONS: dict[str, tuple[str, tuple[str, ...], tuple[Part, ...]]] = {
    "cispo_gigpo_sm": (
        "cispo",
        (
            *("--model.objective.advantage", "arl_lightning.modules.estimators.GiGPO"),
            *("--model.objective.mask", "arl_lightning.modules.masks.SequenceMask"),
        ),
        (CISPO_WEIGHT, MASK, TOKENS, GIGPO, None),
    ),
    "gspo_rloo": (
        "gspo",
        ("--model.objective.advantage", "arl_lightning.modules.estimators.LeaveOneOut"),
        (GSPO_CLIP, None, SEQUENCES, ("LeaveOneOut", {}), None),
    ),
}


@pytest.mark.parametrize("name", COMBINATIONS)
def test_a_combination_is_a_few_words(
    name: str, small_run: SmallRun, parsed: Parse, outcome: Read, start: dict[str, Tensor]
) -> None:
    method, words, expected = COMBINATIONS[name]
    folder = f"methods/{name}"
    command = small_run("fit", folder, *fit(1, *words), method=method)
    check_composition(parsed(command), expected)
    main(command)
    check_trained(outcome(folder), start, epochs=1)
