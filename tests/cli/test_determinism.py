"""One seed, one run: to the bit when repeated, to rounding when cut into other passes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from arl_lightning.cli import main
from arl_lightning.modules.pretrained import PretrainedModel

if TYPE_CHECKING:
    from tests.cli.conftest import Outcome, SmallRun

Read = Callable[[str], "Outcome"]


@pytest.fixture
def fitted(small_run: SmallRun, outcome: Read) -> Callable[..., Outcome]:
    """Two epochs in a folder of their own."""

    def run(folder: str, *options: str) -> Outcome:
        main(small_run("fit", f"determinism/{folder}", "--trainer.max_epochs", "2", *options))
        return outcome(f"determinism/{folder}")

    return run


def test_one_seed_gives_one_run_and_another_seed_another(fitted: Callable[..., Outcome]) -> None:
    first, second = fitted("first"), fitted("second")
    other = fitted("other", "--seed_everything", "1")
    assert first.metrics == second.metrics
    assert all(torch.equal(first.weights[name], second.weights[name]) for name in first.weights)
    assert first.metrics["train/loss"] != other.metrics["train/loss"]
    assert not any(torch.equal(first.weights[name], other.weights[name]) for name in first.weights)


def test_how_a_step_is_cut_into_passes_does_not_change_it(fitted: Callable[..., Outcome]) -> None:
    # plain gradient descent, since Adam blows rounding up where a gradient is next to nothing
    descent = ("--trainer.max_epochs", "1", "--model.optimizer", "torch.optim.SGD", "--model.optimizer.lr", "0.3")
    whole = fitted("whole", *descent, "--model.tokens_per_pass", "65536")
    parts = fitted("parts", *descent, "--model.tokens_per_pass", "300")
    assert whole.metrics["train/mask/dropped"][-1][1] > 0  # else the counting pass ahead of the mask were not tested
    for name, weight in whole.weights.items():
        torch.testing.assert_close(parts.weights[name], weight, rtol=0, atol=1e-5)


def test_an_exported_checkpoint_is_the_same_model_to_plain_transformers(
    small_run: SmallRun, runs: Path, tiny_clone: Path, fitted: Callable[..., Outcome]
) -> None:
    weights = fitted("exported").weights
    folder = runs / "determinism" / "exported_model"
    main(small_run("export", "determinism/exported", "--ckpt_path", "last", "--output", str(folder)))
    model: Any = AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    start, _ = PretrainedModel(str(tiny_clone)).load()
    input_ids = torch.tensor([tokenizer.encode("######\n#P_X_#<action>up</action>")])
    before: Tensor = start(input_ids=input_ids).logits
    trained = {name.removeprefix("policy.model."): weight for name, weight in weights.items()}
    missing, unexpected = start.load_state_dict(trained, strict=False)
    assert not unexpected
    assert set(missing) <= {"lm_head.weight"}  # tied to the embedding
    expected: Tensor = start(input_ids=input_ids).logits
    assert torch.equal(model(input_ids=input_ids).logits, expected)
    assert not torch.allclose(before, expected, atol=1e-3)
